// One Fetch: asks for pages of a lease, puts every piece straight into its segment's memory, and
// gives out only what is complete and verified.
//
// Threads    Run() blocks its caller until the deadline at most.
// Errors     those of cache.proto; DATA_LOSS also when a header, a key or a checksum does not fit
#pragma once

#include <grpcpp/generic/generic_stub.h>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/client.h"
#include "pagoda/v1/cache.pb.h"

namespace pagoda::client {

// `expected_keys` are those of the pages asked for, in order.
FetchResult RunFetch(grpc::GenericStub& stub, const v1::FetchRequest& request,
                     const std::string& token, absl::Duration timeout, const Identity& identity,
                     absl::Span<const PageKey> expected_keys);

}  // namespace pagoda::client
