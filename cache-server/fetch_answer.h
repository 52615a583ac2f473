// The answer to one FetchRequest: waits for the pages without holding a thread, then gives their
// bytes straight from the slabs to whoever writes them.
//
//   gather (loads and encodes call back) -> headers -> segments, layers outermost -> ends
//
// Pages that come up from SSD are gathered once their headers are read; the answer waits where a
// segment is not there yet, and those of the first layers are read first.
//
// Threads    Start(), OnWritten() and GiveUp() from gRPC's callbacks; loaders and encoders call in;
//            one at a time drives the answer
// Ownership  shared_ptr; loads that call back later hold it and find it finished
// Limits     messages of about 1 MiB; waits no longer than the request says, or one lease
#pragma once

#include <grpcpp/support/byte_buffer.h>

#include <memory>

#include "cache-server/caller.h"
#include "cache-server/service_context.h"
#include "pagoda/v1/cache.pb.h"

namespace pagoda {

// Where an answer goes. It is called by one thread at a time.
class FetchSink {
 public:
  virtual ~FetchSink() = default;
  // OnWritten() of the answer follows. The message stays in place until then.
  virtual void Write(const grpc::ByteBuffer& message) = 0;
  // Last: the answer calls no more. False: what it wrote did not get through.
  virtual void OnAnswered(bool written) = 0;
};

class FetchAnswer {
 public:
  virtual ~FetchAnswer() = default;
  // Of a request from that caller. A refusal is an answer, too.
  virtual void Start(const Caller& caller, const v1::FetchRequest& request) = 0;
  virtual void Refuse(const absl::Status& status) = 0;  // instead of Start()
  virtual void OnWritten(bool ok) = 0;
  // Ends the answer, at once or after the message that is being written.
  virtual void GiveUp(const absl::Status& status) = 0;
};

// `sink` outlives its OnAnswered().
std::shared_ptr<FetchAnswer> MakeFetchAnswer(ServiceContext& context, FetchSink& sink);

}  // namespace pagoda
