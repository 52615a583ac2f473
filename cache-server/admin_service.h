// The Admin service: what operators see and do. Callers need the admin right.
//
// Threads    gRPC's callback threads; calls that wait or walk over all pages run as admin jobs
// Ownership  the context must outlive the server; SetDrainHook() before the server starts
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>

#include "cache-server/service_context.h"
#include "pagoda/v1/admin.grpc.pb.h"

namespace pagoda {

class AdminService : public v1::Admin::CallbackService {
 public:
  // `listen` is what Status shows; `on_drain` turns health to NOT_SERVING.
  AdminService(ServiceContext& context, std::function<void()> on_drain);
  void set_listen(std::string listen) { listen_ = std::move(listen); }

  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* call,
                                   const v1::StatusRequest* request,
                                   v1::StatusResponse* response) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* call,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerWriteReactor<v1::ListPagesResponse>* ListPages(
      grpc::CallbackServerContext* call, const v1::ListPagesRequest* request) override;
  grpc::ServerUnaryReactor* SetLadder(grpc::CallbackServerContext* call,
                                      const v1::SetLadderRequest* request,
                                      v1::SetLadderResponse* response) override;
  grpc::ServerUnaryReactor* SetPolicy(grpc::CallbackServerContext* call,
                                      const v1::SetPolicyRequest* request,
                                      v1::SetPolicyResponse* response) override;
  grpc::ServerUnaryReactor* Pin(grpc::CallbackServerContext* call, const v1::PinRequest* request,
                                v1::PinResponse* response) override;
  grpc::ServerUnaryReactor* Unpin(grpc::CallbackServerContext* call, const v1::PinRequest* request,
                                  v1::PinResponse* response) override;
  grpc::ServerUnaryReactor* Evict(grpc::CallbackServerContext* call,
                                  const v1::EvictRequest* request,
                                  v1::EvictResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* call,
                                  const v1::DrainRequest* request,
                                  v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Flush(grpc::CallbackServerContext* call,
                                  const v1::FlushRequest* request,
                                  v1::FlushResponse* response) override;

 private:
  using Work = std::function<absl::Status()>;
  // Runs `work` as an admin job once the caller is admitted.
  grpc::ServerUnaryReactor* AnswerLater(grpc::CallbackServerContext* call, RpcMethod method,
                                        const google::protobuf::Message& request, Work work);

  ServiceContext& context_;
  const std::function<void()> on_drain_;
  std::string listen_;
  const absl::Duration start_;
};

}  // namespace pagoda
