// One Session stream: heartbeats and sequence events in, the session id and events out.
//
// Threads    gRPC's callbacks, one read and one write at a time; the session's end and draining
//            from any thread
// Ownership  deletes itself when gRPC is done
// Limits     64 events waiting to be written; beyond, the stream ends with RESOURCE_EXHAUSTED
#pragma once

#include <grpcpp/grpcpp.h>

#include "cache-server/service_context.h"
#include "pagoda/v1/cache.pb.h"

namespace pagoda {

grpc::ServerBidiReactor<v1::SessionRequest, v1::SessionResponse>* StartSession(
    ServiceContext& context, grpc::CallbackServerContext* call);

}  // namespace pagoda
