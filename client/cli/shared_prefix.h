// A daemon that holds the beginning of a text, for the rows of `pagoda eval ablate` that share it:
// a worker pushes, the daemon lets the pages age to q8, another worker loads them.
//
// Threads    one at a time
// Ownership  the engine must outlive it; a daemon of its own ends with it
// Errors     those of SelfDaemon and of the client, with the daemon's address
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cli/connection.h"
#include "client/cli/self_daemon.h"
#include "client/client.h"
#include "client/worker/engine.h"
#include "client/worker/pagoda_prefix_cache.h"

namespace pagoda::cli {

class SharedPrefix {
 public:
  // With a daemon of its own, in this process, with room for `token_count` tokens and a ladder that
  // ends at q8.
  static absl::StatusOr<std::unique_ptr<SharedPrefix>> StartOwn(const Engine& engine,
                                                                int64_t token_count);
  // With the one that is named, as it is configured.
  static absl::StatusOr<std::unique_ptr<SharedPrefix>> Connect(const Engine& engine,
                                                               const ConnectionOptions& options);

  // Of the private scope.
  PrefixCache& cache() { return *cache_; }

  // Why the last request could not use the daemon as it wanted; and waits, after a request that
  // pushed these tokens, until no page of them is raw16. A daemon whose ladder is raw16 keeps them:
  // the wait ends after ten seconds.
  absl::Status AwaitEncoded(absl::Span<const uint32_t> ids);

 private:
  SharedPrefix() = default;

  std::unique_ptr<SelfDaemon> daemon_;  // null: somebody else's
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<PagodaPrefixCache> cache_;
};

}  // namespace pagoda::cli
