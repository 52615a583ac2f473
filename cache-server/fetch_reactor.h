// One Fetch call: waits for the pages without holding a thread, then streams their bytes straight
// from the slabs.
//
//   gather (loads and encodes call back) -> headers -> segments, layers outermost -> ends -> finish
//
// Pages that come up from SSD are gathered once their headers are read; the stream waits where a
// segment is not there yet, and those of the first layers are read first.
//
// Threads    gRPC's callbacks, loaders and encoders call in; one at a time drives the stream
// Ownership  deletes itself when gRPC is done; callbacks that come later find it detached
// Limits     messages of about 1 MiB; waits no longer than the call's deadline or one lease
#pragma once

#include <grpcpp/grpcpp.h>

#include "cache-server/service_context.h"

namespace pagoda {

// Answers a raw FetchRequest.
grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(ServiceContext& context,
                                                       grpc::CallbackServerContext* call,
                                                       const grpc::ByteBuffer& request);

}  // namespace pagoda
