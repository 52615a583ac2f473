// The Cache service: the gRPC side of every call. What calls mean is in hello.h, lookup.h,
// fetch_answer.h, peer_reactor.h, push_reactor.h and session_reactor.h.
//
// Threads    gRPC's callback threads; nothing here blocks
// Ownership  the context must outlive the server
#pragma once

#include <grpcpp/grpcpp.h>

#include "cache-server/service_context.h"
#include "pagoda/v1/cache.grpc.pb.h"

namespace pagoda {

// All methods by callback; Fetch and Push on bytes, so that payload is not copied by protobuf.
using CacheServiceBase = v1::Cache::WithCallbackMethod_Hello<
    v1::Cache::WithCallbackMethod_Session<v1::Cache::WithCallbackMethod_Lookup<
        v1::Cache::WithRawCallbackMethod_Fetch<v1::Cache::WithRawCallbackMethod_Push<
            v1::Cache::WithCallbackMethod_Release<v1::Cache::WithCallbackMethod_Renew<
                v1::Cache::WithCallbackMethod_Prefetch<v1::Cache::WithCallbackMethod_Report<
                    v1::Cache::WithCallbackMethod_Peer<v1::Cache::Service>>>>>>>>>>;

class CacheService : public CacheServiceBase {
 public:
  explicit CacheService(ServiceContext& context) : context_(context) {}

  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* call,
                                  const v1::HelloRequest* request,
                                  v1::HelloResponse* response) override;
  grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>* Session(
      grpc::CallbackServerContext* call) override;
  grpc::ServerUnaryReactor* Lookup(grpc::CallbackServerContext* call,
                                   const v1::LookupRequest* request,
                                   v1::LookupResponse* response) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Fetch(
      grpc::CallbackServerContext* call) override;
  grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* Push(
      grpc::CallbackServerContext* call) override;
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* call,
                                    const v1::ReleaseRequest* request,
                                    v1::ReleaseResponse* response) override;
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* call,
                                  const v1::RenewRequest* request,
                                  v1::RenewResponse* response) override;
  grpc::ServerUnaryReactor* Prefetch(grpc::CallbackServerContext* call,
                                     const v1::PrefetchRequest* request,
                                     v1::PrefetchResponse* response) override;
  grpc::ServerUnaryReactor* Report(grpc::CallbackServerContext* call,
                                   const v1::ReportRequest* request,
                                   v1::ReportResponse* response) override;
  grpc::ServerBidiReactor<v1::PeerRequest, v1::PeerResponse>* Peer(
      grpc::CallbackServerContext* call) override;

 private:
  ServiceContext& context_;
};

}  // namespace pagoda
