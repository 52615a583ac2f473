// One Fetch over gRPC: asks for pages of a lease, puts every piece straight into its segment's
// memory, and gives out only what is complete and verified.
//
// Threads    pieces arrive on gRPC's threads; methods as PageFetch
// Errors     those of cache.proto; DATA_LOSS also when a header, a key or a checksum does not fit
#pragma once

#include <memory>

#include "absl/types/span.h"
#include "client/client.h"
#include "client/fetch_stream.h"
#include "pagoda/v1/cache.pb.h"

namespace pagoda::client {

// `expected` are those of the pages asked for, in order. After `timeout` the fetch is over.
std::unique_ptr<PageFetch> FetchOverGrpc(std::shared_ptr<FetchStreams> streams,
                                         const v1::FetchRequest& request, absl::Duration timeout,
                                         const Identity& identity,
                                         absl::Span<const RecordKey> expected, PageTarget target);

}  // namespace pagoda::client
