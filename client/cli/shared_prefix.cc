#include "client/cli/shared_prefix.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "proto/wire.h"
#include "storage/base/page_key.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

constexpr absl::Duration kConnectTimeout = absl::Seconds(10);
constexpr absl::Duration kEncodeTimeout = absl::Seconds(10);
constexpr absl::Duration kPoll = absl::Milliseconds(20);

}  // namespace

absl::StatusOr<std::unique_ptr<SharedPrefix>> SharedPrefix::StartOwn(const Engine& engine,
                                                                     int64_t token_count) {
  const LlamaConfig& config = engine.config();
  const int64_t raw16_bytes = int64_t{4} * config.layer_count * config.kv_size() * token_count;
  PAGODA_ASSIGN_OR_RETURN(
      std::unique_ptr<SelfDaemon> daemon,
      SelfDaemon::Start({.host_bytes = std::max(int64_t{512} << 20, 4 * raw16_bytes),
                         .ladder = Precision::kQ8,
                         .policies = {}}));
  ConnectionOptions connection;
  connection.daemon = daemon->address();
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<SharedPrefix> shared, Connect(engine, connection));
  shared->daemon_ = std::move(daemon);
  return shared;
}

absl::StatusOr<std::unique_ptr<SharedPrefix>> SharedPrefix::Connect(
    const Engine& engine, const ConnectionOptions& options) {
  client::ClientOptions client_options;
  client_options.target = options.daemon;
  client_options.token = options.token;
  client_options.client_name = "pagoda-eval";
  client_options.model = engine.model_spec();
  client_options.page_tokens = LlamaModel::kPageTokens;
  client_options.backend_tag = BackendTagOf(engine.backend());
  // Nobody waits for this answer, and a busy machine must not turn a hit into a miss.
  client_options.control_timeout = absl::Seconds(10);
  client_options.transfer_timeout = absl::Seconds(60);
  std::unique_ptr<SharedPrefix> shared(new SharedPrefix());
  PAGODA_ASSIGN_OR_RETURN(shared->client_, client::Client::Create(client_options));
  PAGODA_RETURN_IF_ERROR(shared->client_->WaitConnected(kConnectTimeout));
  shared->cache_ =
      std::make_unique<PagodaPrefixCache>(*shared->client_, Scope{ScopeKind::kPrivate, ""});
  return shared;
}

absl::Status SharedPrefix::AwaitEncoded(absl::Span<const uint32_t> ids) {
  PAGODA_RETURN_IF_ERROR(cache_->last_problem());
  const std::optional<client::ScopeInfo> scope = client_->FindScope({ScopeKind::kPrivate, ""});
  if (!scope.has_value()) return absl::PermissionDeniedError("the daemon offers no private scope");
  client::LookupQuery query;
  query.chains = {{scope->id, KeyChain(scope->root, ids, LlamaModel::kPageTokens)}};
  query.peek = true;
  for (const absl::Time deadline = absl::Now() + kEncodeTimeout; absl::Now() < deadline;) {
    PAGODA_ASSIGN_OR_RETURN(const client::LookupResult found, client_->Lookup(query));
    const bool encoded = std::all_of(
        found.pages.begin(), found.pages.end(),
        [](const client::FoundPage& page) { return page.precision < Precision::kRaw16; });
    if (encoded && found.pages.size() == query.chains[0].keys.size()) break;
    absl::SleepFor(kPoll);
  }
  return absl::OkStatus();
}

}  // namespace pagoda::cli
