#include "proto/callback_queue.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>

#include <chrono>
#include <memory>

#include "absl/synchronization/notification.h"

namespace pagoda {
namespace {

// A channel takes its reference at its first callback call, whatever becomes of the call.
std::shared_ptr<grpc::Channel>* MakeUser() {
  auto* channel = new std::shared_ptr<grpc::Channel>(
      grpc::CreateChannel("unix:/nonexistent/pagoda", grpc::InsecureChannelCredentials()));
  grpc::GenericStub stub(*channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now());
  const grpc::Slice nothing("");
  const grpc::ByteBuffer request(&nothing, 1);
  grpc::ByteBuffer response;
  absl::Notification done;
  stub.UnaryCall(&context, "/none", {}, &request, &response,
                 [&done](const grpc::Status&) { done.Notify(); });
  done.WaitForNotification();  // The deadline has passed already.
  return channel;
}

}  // namespace

void KeepCallbackQueue() {
  // Never destroyed, on purpose. Kept in memory although nobody reads it: that is what tells a leak
  // checker that it is not lost.
  [[gnu::used]] static std::shared_ptr<grpc::Channel>* const user = MakeUser();
}

}  // namespace pagoda
