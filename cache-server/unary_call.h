// What every unary call does before and after its own work: name the caller, refuse messages that
// are too long, time and count.
#pragma once

#include <grpcpp/grpcpp.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "cache-server/service_context.h"
#include "google/protobuf/message.h"
#include "proto/wire.h"

namespace pagoda {

inline absl::StatusOr<CallerPtr> AdmitCall(const ServiceContext& context,
                                           grpc::CallbackServerContext* call,
                                           const google::protobuf::Message& request) {
  absl::StatusOr<CallerPtr> caller = context.callers.Identify(call->client_metadata());
  if (!caller.ok()) return caller;
  const auto bytes = static_cast<int64_t>(request.ByteSizeLong());
  if (bytes > context.options.limits.control_message_bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("message of %d bytes, control_message_bytes_max is %d", bytes,
                        context.options.limits.control_message_bytes_max));
  }
  return caller;
}

// `work(caller)` returns absl::Status and does not block.
template <typename Work>
grpc::ServerUnaryReactor* AnswerUnary(ServiceContext& context, grpc::CallbackServerContext* call,
                                      RpcMethod method, const google::protobuf::Message& request,
                                      Work&& work) {
  RpcTimer timer(context.metrics, method);
  grpc::ServerUnaryReactor* reactor = call->DefaultReactor();
  const absl::StatusOr<CallerPtr> caller = AdmitCall(context, call, request);
  const absl::Status status = caller.ok() ? std::forward<Work>(work)(**caller) : caller.status();
  timer.Finish(status.code());
  reactor->Finish(ToGrpc(status));
  return reactor;
}

}  // namespace pagoda
