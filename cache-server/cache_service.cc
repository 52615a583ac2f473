#include "cache-server/cache_service.h"

#include "cache-server/fetch_reactor.h"
#include "cache-server/hello.h"
#include "cache-server/lookup.h"
#include "cache-server/peer_reactor.h"
#include "cache-server/push_reactor.h"
#include "cache-server/session_reactor.h"
#include "cache-server/unary_call.h"

namespace pagoda {

grpc::ServerUnaryReactor* CacheService::Hello(grpc::CallbackServerContext* call,
                                              const v1::HelloRequest* request,
                                              v1::HelloResponse* response) {
  return AnswerUnary(context_, call, RpcMethod::kHello, *request, [&](const Caller& caller) {
    return AnswerHello(context_, caller, *request, *response);
  });
}

grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>* CacheService::Session(
    grpc::CallbackServerContext* call) {
  return StartSession(context_, call);
}

grpc::ServerUnaryReactor* CacheService::Lookup(grpc::CallbackServerContext* call,
                                               const v1::LookupRequest* request,
                                               v1::LookupResponse* response) {
  return AnswerUnary(context_, call, RpcMethod::kLookup, *request, [&](const Caller& caller) {
    return AnswerLookup(context_, caller, *request, *response);
  });
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CacheService::Fetch(
    grpc::CallbackServerContext* call) {
  return StartFetch(context_, call);
}

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* CacheService::Push(
    grpc::CallbackServerContext* call) {
  return StartPush(context_, call);
}

grpc::ServerUnaryReactor* CacheService::Release(grpc::CallbackServerContext* call,
                                                const v1::ReleaseRequest* request,
                                                v1::ReleaseResponse*) {
  return AnswerUnary(context_, call, RpcMethod::kRelease, *request, [&](const Caller& caller) {
    return AnswerRelease(context_, caller, *request);
  });
}

grpc::ServerUnaryReactor* CacheService::Renew(grpc::CallbackServerContext* call,
                                              const v1::RenewRequest* request,
                                              v1::RenewResponse* response) {
  return AnswerUnary(context_, call, RpcMethod::kRenew, *request, [&](const Caller& caller) {
    return AnswerRenew(context_, caller, *request, *response);
  });
}

grpc::ServerUnaryReactor* CacheService::Prefetch(grpc::CallbackServerContext* call,
                                                 const v1::PrefetchRequest* request,
                                                 v1::PrefetchResponse* response) {
  return AnswerUnary(context_, call, RpcMethod::kPrefetch, *request, [&](const Caller& caller) {
    return AnswerPrefetch(context_, caller, *request, *response);
  });
}

grpc::ServerUnaryReactor* CacheService::Report(grpc::CallbackServerContext* call,
                                               const v1::ReportRequest* request,
                                               v1::ReportResponse*) {
  return AnswerUnary(context_, call, RpcMethod::kReport, *request, [&](const Caller& caller) {
    return AnswerReport(context_, caller, *request);
  });
}

grpc::ServerBidiReactor<v1::PeerRequest, v1::PeerResponse>* CacheService::Peer(
    grpc::CallbackServerContext* call) {
  return StartPeer(context_, call);
}

}  // namespace pagoda
