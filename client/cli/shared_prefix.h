// A daemon that holds the beginning of a text, for the rows of `pagoda eval ablate` that share it:
// a worker pushes, the daemon lets the pages age to q8, another worker loads them, and no more.
//
// Threads    one at a time
// Ownership  the engine must outlive it; a daemon of its own ends with it
// Errors     those of SelfDaemon and of the client, with the daemon's address
//            DEADLINE_EXCEEDED  pages did not arrive, or stay raw16: with how many
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "client/cli/connection.h"
#include "client/cli/self_daemon.h"
#include "client/client.h"
#include "client/worker/engine.h"
#include "client/worker/pagoda_prefix_cache.h"
#include "kernels/layer_profile.h"

namespace pagoda::cli {

class SharedPrefix {
 public:
  // With a daemon of its own, in this process, with room for `token_count` tokens, a ladder that
  // ends at q8, and the profile if there is one.
  static absl::StatusOr<std::unique_ptr<SharedPrefix>> StartOwn(
      const Engine& engine, int64_t token_count, const std::optional<LayerProfile>& profile);
  // With the one that is named, as it is configured.
  static absl::StatusOr<std::unique_ptr<SharedPrefix>> Connect(const Engine& engine,
                                                               const ConnectionOptions& options);

  // Of the private scope: who fills it, and who reads it. The reader loads whole pages of the first
  // `token_count` tokens at most, and stores nothing.
  PrefixCache& writer() { return *cache_; }
  PrefixCache& reader(int64_t token_count);

  // After the writer's request over these tokens: OK once the daemon has all their pages in an
  // encoded form.
  absl::Status AwaitEncoded(absl::Span<const uint32_t> ids);
  // Why the last request could not use the daemon as it wanted.
  const absl::Status& last_problem() const { return cache_->last_problem(); }
  const std::string& address() const { return address_; }

 private:
  class Reader;
  SharedPrefix();

 public:
  ~SharedPrefix();

 private:
  std::unique_ptr<SelfDaemon> daemon_;  // null: somebody else's
  std::string address_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<PagodaPrefixCache> cache_;
  std::unique_ptr<Reader> reader_;
};

}  // namespace pagoda::cli
