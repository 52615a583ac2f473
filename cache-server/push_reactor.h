// One Push stream: pages in, an answer per page, in order. Reads the next message while answers go
// out, but no further ahead than kAnswersMax answers.
//
// Threads    gRPC's callbacks, one read and one write at a time; the session's end from any thread
// Ownership  deletes itself when gRPC is done. What is staged belongs to the stream and goes with
//            it, or with the session if that ends first.
#pragma once

#include <grpcpp/grpcpp.h>

#include "cache-server/service_context.h"

namespace pagoda {

// A raw stream of PushRequest and PushResponse.
grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>* StartPush(
    ServiceContext& context, grpc::CallbackServerContext* call);

}  // namespace pagoda
