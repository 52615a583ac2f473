// One Peer call: opens a link to the caller's GPU, and hands its requests to the links' thread one
// after another. The link lives as long as the call.
//
// Threads    gRPC's callbacks, and the links' thread
// Ownership  deletes itself when gRPC is done and the links' thread has let go
// Limits     reads a request when the one before it is over; two calls of a session
#pragma once

#include <grpcpp/grpcpp.h>

#include "cache-server/service_context.h"
#include "pagoda/v1/cache.pb.h"

namespace pagoda {

grpc::ServerBidiReactor<v1::PeerRequest, v1::PeerResponse>* StartPeer(
    ServiceContext& context, grpc::CallbackServerContext* call);

}  // namespace pagoda
