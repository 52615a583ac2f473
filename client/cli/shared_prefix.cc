#include "client/cli/shared_prefix.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "proto/wire.h"
#include "storage/base/page_key.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

constexpr absl::Duration kEncodeTimeout = absl::Seconds(10);
constexpr absl::Duration kPoll = absl::Milliseconds(20);

}  // namespace

class SharedPrefix::Reader : public PrefixCache {
 public:
  Reader(PagodaPrefixCache& cache, int64_t token_count)
      : cache_(cache), token_count_(token_count) {}

  PrefixHit Load(absl::Span<const uint32_t> prompt_ids, KvSequence& sequence) override {
    // One token more: a hit leaves at least that to be computed.
    return cache_.Load(prompt_ids.subspan(0, static_cast<size_t>(token_count_) + 1), sequence);
  }
  void StorePage(const KvSequence&, int64_t, absl::Span<const uint32_t>) override {}
  void Advance(int64_t token_count) override { cache_.Advance(token_count); }
  void Finish() override { cache_.Finish(); }

 private:
  PagodaPrefixCache& cache_;
  const int64_t token_count_;
};

SharedPrefix::SharedPrefix() = default;
SharedPrefix::~SharedPrefix() = default;

absl::StatusOr<std::unique_ptr<SharedPrefix>> SharedPrefix::StartOwn(
    const Engine& engine, int64_t token_count, const std::optional<LayerProfile>& profile) {
  const LlamaConfig& config = engine.config();
  const int64_t raw16_bytes = int64_t{4} * config.layer_count * config.kv_size() * token_count;
  SelfDaemonOptions options;
  options.host_bytes = std::max(int64_t{512} << 20, 4 * raw16_bytes);
  options.ladder = Precision::kQ8;
  if (profile.has_value()) options.profiles[engine.model_spec().model] = *profile;
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<SelfDaemon> daemon, SelfDaemon::Start(options));
  ConnectionOptions connection;
  connection.daemon = daemon->address();
  connection.timeout_seconds = 10;  // a busy machine must not turn a hit into a miss
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<SharedPrefix> shared, Connect(engine, connection));
  shared->daemon_ = std::move(daemon);
  return shared;
}

absl::StatusOr<std::unique_ptr<SharedPrefix>> SharedPrefix::Connect(
    const Engine& engine, const ConnectionOptions& options) {
  client::ClientOptions client_options;
  client_options.target = options.daemon;
  client_options.token = options.token;
  client_options.tls = options.tls;
  client_options.client_name = "pagoda-eval";
  client_options.model = engine.model_spec();
  client_options.page_tokens = LlamaModel::kPageTokens;
  client_options.backend_tag = BackendTagOf(engine.backend());
  client_options.control_timeout = absl::Seconds(options.timeout_seconds);
  client_options.transfer_timeout = 10 * client_options.control_timeout;
  std::unique_ptr<SharedPrefix> shared(new SharedPrefix());
  shared->address_ = options.daemon;
  PAGODA_ASSIGN_OR_RETURN(shared->client_, client::Client::Create(client_options));
  const absl::Status connected = shared->client_->WaitConnected(client_options.control_timeout);
  if (!connected.ok()) return ExplainError(connected, options);
  shared->cache_ =
      std::make_unique<PagodaPrefixCache>(*shared->client_, Scope{ScopeKind::kPrivate, ""});
  return shared;
}

PrefixCache& SharedPrefix::reader(int64_t token_count) {
  reader_ = std::make_unique<Reader>(*cache_, token_count);
  return *reader_;
}

absl::Status SharedPrefix::AwaitEncoded(absl::Span<const uint32_t> ids) {
  PAGODA_RETURN_IF_ERROR(cache_->last_problem());
  const std::optional<client::ScopeInfo> scope = client_->FindScope({ScopeKind::kPrivate, ""});
  if (!scope.has_value()) {
    return absl::PermissionDeniedError(
        absl::StrCat("daemon ", address_, " offers no private scope to this caller; see --token"));
  }
  client::LookupQuery query;
  query.chains = {{scope->id, KeyChain(scope->root, ids, LlamaModel::kPageTokens)}};
  query.precision_min = query.fidelity_min = Precision::kNone;
  query.peek = true;
  const auto wanted = static_cast<int64_t>(query.chains[0].keys.size());
  int64_t encoded = 0;
  for (const absl::Time deadline = absl::Now() + kEncodeTimeout; absl::Now() < deadline;) {
    PAGODA_ASSIGN_OR_RETURN(const client::LookupResult found, client_->Lookup(query));
    encoded = std::count_if(
        found.pages.begin(), found.pages.end(),
        [](const client::FoundPage& page) { return page.precision < Precision::kRaw16; });
    if (encoded == wanted) return absl::OkStatus();
    absl::SleepFor(kPoll);
  }
  return absl::DeadlineExceededError(absl::StrFormat(
      "daemon %s has %d of %d pages encoded after %s; is its ladder raw16, or its memory full?",
      address_, encoded, wanted, absl::FormatDuration(kEncodeTimeout)));
}

}  // namespace pagoda::cli
