// An Admin service whose answers the test writes and whose requests the test reads.
//
// Threads    set answers before a request, read requests after it; Synchronize() between the two,
//            as the order goes through another process, where no tool sees it
#pragma once

#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "absl/synchronization/mutex.h"
#include "pagoda/v1/admin.grpc.pb.h"

namespace pagoda::cli {

class FakeAdmin : public v1::Admin::Service {
 public:
  // Listens at once, on a free port of the loopback.
  FakeAdmin();
  ~FakeAdmin() override { server_->Shutdown(); }

  const std::string& address() const { return address_; }

  // What this thread did comes before the next request, past requests before what it does next.
  void Synchronize() { absl::MutexLock lock(&mutex_); }

  // What every call answers when it is not OK.
  grpc::Status failure;
  int delay_milliseconds = 0;  // before an answer

  v1::StatusResponse status;
  v1::ListModelsResponse models;
  v1::ListPagesResponse pages;  // sent in batches of two
  v1::SetLadderResponse ladder;
  v1::SetPolicyResponse policy;
  v1::PinResponse pinned;
  v1::EvictResponse evicted;
  v1::DrainResponse drained;
  v1::FlushResponse flushed;

  int call_count = 0;
  std::string authorization;  // of the last call
  v1::ListPagesRequest pages_request;
  v1::SetLadderRequest ladder_request;
  v1::SetPolicyRequest policy_request;
  v1::PinRequest pin_request;
  v1::PinRequest unpin_request;
  v1::EvictRequest evict_request;
  v1::DrainRequest drain_request;
  v1::FlushRequest flush_request;

  grpc::Status Status(grpc::ServerContext* context, const v1::StatusRequest*,
                      v1::StatusResponse* response) override;
  grpc::Status ListModels(grpc::ServerContext* context, const v1::ListModelsRequest*,
                          v1::ListModelsResponse* response) override;
  grpc::Status ListPages(grpc::ServerContext* context, const v1::ListPagesRequest* request,
                         grpc::ServerWriter<v1::ListPagesResponse>* writer) override;
  grpc::Status SetLadder(grpc::ServerContext* context, const v1::SetLadderRequest* request,
                         v1::SetLadderResponse* response) override;
  grpc::Status SetPolicy(grpc::ServerContext* context, const v1::SetPolicyRequest* request,
                         v1::SetPolicyResponse* response) override;
  grpc::Status Pin(grpc::ServerContext* context, const v1::PinRequest* request,
                   v1::PinResponse* response) override;
  grpc::Status Unpin(grpc::ServerContext* context, const v1::PinRequest* request,
                     v1::PinResponse* response) override;
  grpc::Status Evict(grpc::ServerContext* context, const v1::EvictRequest* request,
                     v1::EvictResponse* response) override;
  grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                     v1::DrainResponse* response) override;
  grpc::Status Flush(grpc::ServerContext* context, const v1::FlushRequest* request,
                     v1::FlushResponse* response) override;

 private:
  grpc::Status Begin(const grpc::ServerContext& context);

  absl::Mutex mutex_;  // held while a request is answered
  std::string address_;
  std::unique_ptr<grpc::Server> server_;
};

}  // namespace pagoda::cli
