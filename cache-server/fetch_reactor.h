// One Fetch call: a stream of requests, answered one after another. A client that keeps it open
// saves the call's own cost, which for small pages is more than their bytes'.
//
// Threads    gRPC's callbacks, and those of the answer
// Ownership  deletes itself when gRPC is done
// Limits     one answer at a time; ends when its session does
#pragma once

#include <grpcpp/grpcpp.h>

#include "cache-server/service_context.h"

namespace pagoda {

grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartFetch(
    ServiceContext& context, grpc::CallbackServerContext* call);

}  // namespace pagoda
