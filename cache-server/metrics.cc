#include "cache-server/metrics.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "cache-server/metric_names.h"
#include "storage/base/clock.h"

namespace pagoda {
namespace {

using prometheus::Counter;
using prometheus::Gauge;
using prometheus::Histogram;
using Labels = std::map<std::string, std::string>;

constexpr size_t kTenantsMax = 200;
constexpr size_t kAnnouncedModelsMax = 8;
constexpr char kOther[] = "other";
constexpr absl::string_view kPutResultNames[kPutResultCount] = {
    "stored",          "duplicate",         "replaced",
    "rejected_parent", "rejected_scope",    "rejected_request",
    "rejected_room",   "rejected_checksum", "error"};
constexpr const char* kPathNames[] = {"grpc", "ssd", "shm", "cuda", "nccl"};
constexpr const char* kDirectionNames[] = {"in", "out"};
constexpr const char* kRefusedReasons[] = {"descriptors", "memory", "other"};
constexpr const char* kRejectReasons[] = {"authn", "authz", "limit", "unavailable"};

const Histogram::BucketBoundaries& SecondsBuckets() {
  static const auto* buckets = new Histogram::BucketBoundaries{
      1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 2.5e-2, 5e-2, 0.1, 0.25, 0.5, 1, 2.5, 5, 10};
  return *buckets;
}

// Within its bucket a value may be anywhere: taken to lie evenly.
double QuantileOf(const prometheus::ClientMetric::Histogram& histogram, double share) {
  const double rank = share * static_cast<double>(histogram.sample_count);
  double edge = 0;
  double before = 0;
  for (const prometheus::ClientMetric::Bucket& bucket : histogram.bucket) {
    const auto upto = static_cast<double>(bucket.cumulative_count);
    if (upto >= rank && upto > before) {
      if (std::isinf(bucket.upper_bound)) return edge;
      return edge + (bucket.upper_bound - edge) * (rank - before) / (upto - before);
    }
    edge = bucket.upper_bound;
    before = upto;
  }
  return edge;
}

PathFigures::Times TimesOf(const Histogram& seconds) {
  const prometheus::ClientMetric::Histogram histogram = seconds.Collect().histogram;
  if (histogram.sample_count == 0) return {};
  return {histogram.sample_count, QuantileOf(histogram, 0.5), QuantileOf(histogram, 0.99)};
}

std::string Text(absl::string_view text) { return std::string(text); }

prometheus::Family<Counter>& CounterFamily(prometheus::Registry& registry, const MetricInfo& info) {
  return prometheus::BuildCounter().Name(info.name).Help(info.help).Register(registry);
}
prometheus::Family<Gauge>& GaugeFamily(prometheus::Registry& registry, const MetricInfo& info) {
  return prometheus::BuildGauge().Name(info.name).Help(info.help).Register(registry);
}
prometheus::Family<Histogram>& HistogramFamily(prometheus::Registry& registry,
                                               const MetricInfo& info) {
  return prometheus::BuildHistogram().Name(info.name).Help(info.help).Register(registry);
}

absl::flat_hash_set<std::string> FirstOf(const std::vector<std::string>& names, size_t count) {
  return {names.begin(), names.begin() + static_cast<ptrdiff_t>(std::min(count, names.size()))};
}

}  // namespace

absl::string_view RpcMethodName(RpcMethod method) {
  constexpr absl::string_view kNames[kRpcMethodCount] = {
      "Hello",     "Session", "Lookup", "Fetch",  "Push",       "Release",   "Renew",
      "Prefetch",  "Report",  "Peer",   "Status", "ListModels", "ListPages", "SetLadder",
      "SetPolicy", "Pin",     "Unpin",  "Evict",  "Drain",      "Flush"};
  return kNames[static_cast<int>(method)];
}

Metrics::Metrics(const std::vector<std::string>& tenants, const std::vector<std::string>& models)
    : registry_(std::make_shared<prometheus::Registry>()),
      tenants_(FirstOf(tenants, kTenantsMax)),
      lookup_requests_(CounterFamily(*registry_, metric::kLookupRequests)),
      requested_tokens_(CounterFamily(*registry_, metric::kLookupRequestedTokens)),
      hit_tokens_(CounterFamily(*registry_, metric::kLookupHitTokens)),
      tenant_tokens_(CounterFamily(*registry_, metric::kTenantLookupTokens)),
      put_bytes_(CounterFamily(*registry_, metric::kPutBytes)),
      rpc_requests_(CounterFamily(*registry_, metric::kRpcRequests)),
      evicted_pages_(CounterFamily(*registry_, metric::kEvictedPages)),
      evicted_bytes_(CounterFamily(*registry_, metric::kEvictedBytes)),
      integrity_(CounterFamily(*registry_, metric::kIntegrityFailures)),
      encoded_pages_(CounterFamily(*registry_, metric::kEncodedPages)),
      shed_bytes_(CounterFamily(*registry_, metric::kShedBytes)),
      models_(models.begin(), models.end()) {
  prometheus::Registry& registry = *registry_;
  auto& hit_pages = CounterFamily(registry, metric::kLookupHitPages);
  for (const TierKind tier : {TierKind::kHost, TierKind::kSsd}) {
    hit_pages_[static_cast<int>(tier)] = &hit_pages.Add({{"tier", Text(TierName(tier))}});
  }
  auto& precision_lookups = CounterFamily(registry, metric::kPrecisionLookups);
  for (const int low : {0, 1}) {
    for (const int miss : {0, 1}) {
      precision_lookups_[low][miss] = &precision_lookups.Add(
          {{"precision_class", low ? "low" : "high"}, {"result", miss ? "miss" : "hit"}});
    }
  }
  auto& cross_share = CounterFamily(registry, metric::kCrossShareTokens);
  for (const ScopeKind kind : {ScopeKind::kPrivate, ScopeKind::kGroup, ScopeKind::kPublic}) {
    cross_share_[static_cast<int>(kind)] = &cross_share.Add({{"scope", Text(ScopeKindName(kind))}});
  }
  prefix_pages_ =
      &HistogramFamily(registry, metric::kLookupPrefixPages)
           .Add({}, Histogram::BucketBoundaries{0, 1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024});
  auto& put_pages = CounterFamily(registry, metric::kPutPages);
  for (int i = 0; i < kPutResultCount; ++i) {
    put_pages_[i] = &put_pages.Add({{"result", Text(kPutResultNames[i])}});
  }
  commit_seconds_ = &HistogramFamily(registry, metric::kCommitSeconds).Add({}, SecondsBuckets());
  pusher_mismatch_ = &CounterFamily(registry, metric::kPusherMismatch).Add({});
  promoted_ =
      &CounterFamily(registry, metric::kPromotedBytes).Add({{"from", "ssd"}, {"to", "host"}});
  demoted_ = &CounterFamily(registry, metric::kDemotedBytes).Add({{"from", "host"}, {"to", "ssd"}});
  auto& bytes = CounterFamily(registry, metric::kTransferBytes);
  auto& failures = CounterFamily(registry, metric::kTransferFailures);
  auto& seconds = HistogramFamily(registry, metric::kTransferSeconds);
  auto& inflight = GaugeFamily(registry, metric::kInflightTransfers);
  for (const int direction : {0, 1}) {
    for (int path = 0; path < kTransferPathCount; ++path) {
      const Labels labels = {{"path", kPathNames[path]}, {"direction", kDirectionNames[direction]}};
      transfer_bytes_[path][direction] = &bytes.Add(labels);
      transfer_failures_[path][direction] = &failures.Add(labels);
    }
    for (const TransferPath path : {TransferPath::kGrpc, TransferPath::kShm}) {
      const int index = static_cast<int>(path);
      transfer_seconds_[index][direction] =
          &seconds.Add({{"path", kPathNames[index]}, {"direction", kDirectionNames[direction]}},
                       SecondsBuckets());
    }
    if (direction == static_cast<int>(TransferDirection::kOut)) {
      const int index = static_cast<int>(TransferPath::kNccl);
      transfer_seconds_[index][direction] =
          &seconds.Add({{"path", kPathNames[index]}, {"direction", kDirectionNames[direction]}},
                       SecondsBuckets());
    }
    const Labels grpc = {{"path", "grpc"}, {"direction", kDirectionNames[direction]}};
    inflight_[direction] = &inflight.Add(grpc);
  }
  constexpr const char* kFallbackNames[] = {"absent", "other_device", "export", "lost",
                                            "room",   "loading",      "scope",  "limit"};
  auto& fallbacks = CounterFamily(registry, metric::kDeviceFallbacks);
  for (int i = 0; i < kDeviceFallbackCount; ++i) {
    device_fallbacks_[i] = &fallbacks.Add({{"reason", kFallbackNames[i]}});
  }
  auto& encode_seconds = HistogramFamily(registry, metric::kEncodeSeconds);
  for (const Precision precision : kStoredPrecisions) {
    if (precision == Precision::kRaw16) continue;
    encode_seconds_[precision] =
        &encode_seconds.Add({{"precision", Text(PrecisionName(precision))}}, SecondsBuckets());
  }
  auto& encode_failures = CounterFamily(registry, metric::kEncodeFailures);
  constexpr const char* kReasons[] = {"values", "room", "other"};
  for (int i = 0; i < 3; ++i) encode_failures_[i] = &encode_failures.Add({{"reason", kReasons[i]}});
  encode_refusals_ = &CounterFamily(registry, metric::kEncodeRefusals).Add({});
  auto& rpc_seconds = HistogramFamily(registry, metric::kRpcSeconds);
  auto& rpc_inflight = GaugeFamily(registry, metric::kRpcInflight);
  for (int i = 0; i < kRpcMethodCount; ++i) {
    const Labels labels = {{"method", Text(RpcMethodName(static_cast<RpcMethod>(i)))}};
    rpc_seconds_[i] = &rpc_seconds.Add(labels, SecondsBuckets());
    rpc_inflight_[i] = &rpc_inflight.Add(labels);
  }
  auto& rejected = CounterFamily(registry, metric::kRpcRejected);
  for (const char* reason : kRejectReasons) {
    rpc_rejected_[reason] = &rejected.Add({{"reason", reason}});
  }
  auto& refused = CounterFamily(registry, metric::kConnectionsRefused);
  for (const char* reason : kRefusedReasons) {
    connections_refused_[reason] = &refused.Add({{"reason", reason}});
  }
  ssd_read_ = &HistogramFamily(registry, metric::kSsdRead).Add({}, SecondsBuckets());
  ssd_write_ = &HistogramFamily(registry, metric::kSsdWrite).Add({}, SecondsBuckets());
  auto& ssd_errors = CounterFamily(registry, metric::kSsdErrors);
  ssd_errors_ = {&ssd_errors.Add({{"op", "read"}}), &ssd_errors.Add({{"op", "write"}})};
  ssd_refusals_ = &CounterFamily(registry, metric::kSsdRefusals).Add({});
  auto& trips = CounterFamily(registry, metric::kSsdBreakerTrips);
  for (int i = 0; i < policy::kBreakerReasonCount; ++i) {
    const auto reason = static_cast<policy::BreakerReason>(i);
    ssd_breaker_trips_[i] = &trips.Add({{"reason", Text(policy::BreakerReasonName(reason))}});
  }
  ssd_loads_late_ = &CounterFamily(registry, metric::kSsdLoadsLate).Add({});
  auto& ended = CounterFamily(registry, metric::kSessionsEnded);
  for (int i = 0; i < kSessionEndReasonCount; ++i) {
    sessions_ended_[i] =
        &ended.Add({{"reason", Text(SessionEndReasonName(static_cast<SessionEndReason>(i)))}});
  }
  leases_expired_ = &CounterFamily(registry, metric::kLeasesExpired).Add({});
  auto& ttft = HistogramFamily(registry, metric::kTtft);
  constexpr const char* kCaches[] = {"cold", "partial", "warm"};
  for (int i = 0; i < 3; ++i) ttft_[i] = &ttft.Add({{"cache", kCaches[i]}}, SecondsBuckets());
  decode_tokens_ = &CounterFamily(registry, metric::kDecodeTokens).Add({});
  prefill_saved_ = &CounterFamily(registry, metric::kPrefillSaved).Add({});
}

std::map<std::string, uint64_t> Metrics::Counters() const {
  std::map<std::string, uint64_t> out;
  for (const prometheus::MetricFamily& family : registry_->Collect()) {
    if (family.type != prometheus::MetricType::Counter) continue;
    for (const prometheus::ClientMetric& metric : family.metric) {
      if (metric.counter.value == 0) continue;
      std::string name = family.name;
      for (size_t i = 0; i < metric.label.size(); ++i) {
        absl::StrAppend(&name, i == 0 ? "{" : ",", metric.label[i].name, "=\"",
                        metric.label[i].value, "\"", i + 1 == metric.label.size() ? "}" : "");
      }
      out[name] = static_cast<uint64_t>(metric.counter.value);
    }
  }
  return out;
}

std::string Metrics::TenantLabel(absl::string_view tenant) const {
  return tenants_.contains(tenant) ? Text(tenant) : kOther;
}

std::string Metrics::ModelLabel(absl::string_view model) {
  absl::MutexLock lock(&mutex_);
  if (models_.contains(model)) return Text(model);
  if (model.empty() || model_counters_.size() >= kAnnouncedModelsMax) return kOther;
  models_.insert(Text(model));
  return Text(model);
}

Metrics::ModelCounters& Metrics::ModelOf(absl::string_view model) {
  const std::string label = ModelLabel(model);
  absl::MutexLock lock(&mutex_);
  ModelCounters& counters = model_counters_[label];
  if (counters.requested_tokens == nullptr) {
    constexpr const char* kResults[] = {"hit", "partial", "miss", "error"};
    for (int i = 0; i < 4; ++i) {
      counters.requests[i] = &lookup_requests_.Add({{"model", label}, {"result", kResults[i]}});
    }
    counters.requested_tokens = &requested_tokens_.Add({{"model", label}});
  }
  return counters;
}

void Metrics::OnRpcStart(RpcMethod method) { rpc_inflight_[static_cast<int>(method)]->Increment(); }

void Metrics::OnRpcEnd(RpcMethod method, absl::StatusCode code, absl::Duration took) {
  rpc_inflight_[static_cast<int>(method)]->Decrement();
  rpc_seconds_[static_cast<int>(method)]->Observe(absl::ToDoubleSeconds(took));
  rpc_requests_
      .Add({{"method", Text(RpcMethodName(method))}, {"code", absl::StatusCodeToString(code)}})
      .Increment();
  if (code == absl::StatusCode::kUnauthenticated) rpc_rejected_.at("authn")->Increment();
  if (code == absl::StatusCode::kPermissionDenied) rpc_rejected_.at("authz")->Increment();
  if (code == absl::StatusCode::kResourceExhausted) rpc_rejected_.at("limit")->Increment();
  if (code == absl::StatusCode::kUnavailable) rpc_rejected_.at("unavailable")->Increment();
}

void Metrics::OnLookup(const LookupEvent& event) {
  const size_t hits = event.found.size();
  ModelCounters& model = ModelOf(event.model);
  const int result = hits == 0 ? 2 : hits < event.asked_pages ? 1 : 0;
  model.requests[result]->Increment();
  const double tokens = event.page_tokens;
  model.requested_tokens->Increment(tokens * static_cast<double>(event.asked_pages));
  prefix_pages_->Observe(static_cast<double>(hits));
  std::map<std::pair<TierKind, Precision>, int64_t> kinds;
  for (const LookupEvent::Found& page : event.found) ++kinds[{page.tier, page.precision}];
  const std::string label = ModelLabel(event.model);
  for (const auto& [kind, count] : kinds) {
    hit_tokens_
        .Add({{"model", label},
              {"tier", Text(TierName(kind.first))},
              {"precision", Text(PrecisionName(kind.second))}})
        .Increment(tokens * static_cast<double>(count));
    if (Counter* pages = hit_pages_[static_cast<int>(kind.first)]; pages != nullptr) {
      pages->Increment(static_cast<double>(count));
    }
  }
  const auto hit = static_cast<double>(hits);
  const auto miss = static_cast<double>(event.asked_pages - hits);
  const std::string tenant = TenantLabel(event.tenant);
  tenant_tokens_.Add({{"tenant", tenant}, {"result", "hit"}}).Increment(tokens * hit);
  tenant_tokens_.Add({{"tenant", tenant}, {"result", "miss"}}).Increment(tokens * miss);
  const int low = event.precision_min >= Precision::kQ8 ? 0 : 1;
  precision_lookups_[low][0]->Increment(hit);
  precision_lookups_[low][1]->Increment(miss);
  cross_share_[static_cast<int>(event.scope_kind)]->Increment(tokens * hit);
}

void Metrics::OnLookupError(absl::string_view model) { ModelOf(model).requests[3]->Increment(); }

void Metrics::OnPut(PutResult result) { put_pages_[static_cast<int>(result)]->Increment(); }

void Metrics::OnPutBytes(absl::string_view tenant, Precision precision, int64_t bytes) {
  put_bytes_.Add({{"tenant", TenantLabel(tenant)}, {"precision", Text(PrecisionName(precision))}})
      .Increment(static_cast<double>(bytes));
}

void Metrics::OnCommitted(absl::Duration took) {
  commit_seconds_->Observe(absl::ToDoubleSeconds(took));
}

void Metrics::OnPusherMismatch() { pusher_mismatch_->Increment(); }

void Metrics::OnTransferStart(TransferDirection direction) {
  inflight_[static_cast<int>(direction)]->Increment();
}

void Metrics::OnTransferEnd(TransferDirection direction, bool ok) {
  inflight_[static_cast<int>(direction)]->Decrement();
  if (!ok) transfer_failures_[0][static_cast<int>(direction)]->Increment();
}

void Metrics::OnTransferBytes(TransferDirection direction, int64_t bytes) {
  transfer_bytes_[0][static_cast<int>(direction)]->Increment(static_cast<double>(bytes));
}

void Metrics::OnShmLocated(int64_t bytes) {
  constexpr auto kShm = static_cast<size_t>(TransferPath::kShm);
  transfer_bytes_[kShm][1]->Increment(static_cast<double>(bytes));
}

void Metrics::OnDeviceLocated(int64_t bytes) {
  constexpr auto kCuda = static_cast<size_t>(TransferPath::kCuda);
  transfer_bytes_[kCuda][1]->Increment(static_cast<double>(bytes));
}

void Metrics::OnDeviceFallback(DeviceFallback reason) {
  device_fallbacks_[static_cast<int>(reason)]->Increment();
}

void Metrics::OnPeerSent(int64_t bytes, absl::Duration took) {
  constexpr auto kNccl = static_cast<size_t>(TransferPath::kNccl);
  transfer_bytes_[kNccl][1]->Increment(static_cast<double>(bytes));
  transfer_seconds_[kNccl][1]->Observe(absl::ToDoubleSeconds(took));
}

void Metrics::OnPeerFailed() {
  constexpr auto kNccl = static_cast<size_t>(TransferPath::kNccl);
  transfer_failures_[kNccl][1]->Increment();
}

void Metrics::OnShmTaken(int64_t bytes) {
  constexpr auto kShm = static_cast<size_t>(TransferPath::kShm);
  transfer_bytes_[kShm][0]->Increment(static_cast<double>(bytes));
}

void Metrics::OnTransferTook(TransferDirection direction, absl::Duration took, TransferPath path) {
  transfer_seconds_[static_cast<int>(path)][static_cast<int>(direction)]->Observe(
      absl::ToDoubleSeconds(took));
}

std::vector<PathFigures> Metrics::Paths() const {
  std::vector<PathFigures> paths;
  for (const TransferPath path : {TransferPath::kShm, TransferPath::kNccl, TransferPath::kGrpc}) {
    const int index = static_cast<int>(path);
    const auto value = [](const Counter* counter) {
      return static_cast<uint64_t>(counter->Value());
    };
    // Most daemons have no such links: the path is told of once it was used.
    if (path == TransferPath::kNccl &&
        value(transfer_bytes_[index][1]) + value(transfer_failures_[index][1]) == 0) {
      continue;
    }
    PathFigures figures;
    figures.path = kPathNames[index];
    figures.bytes_in = value(transfer_bytes_[index][0]);
    figures.bytes_out = value(transfer_bytes_[index][1]);
    figures.failures = value(transfer_failures_[index][0]) + value(transfer_failures_[index][1]);
    if (const Histogram* in = transfer_seconds_[index][0]; in != nullptr) figures.in = TimesOf(*in);
    figures.out = TimesOf(*transfer_seconds_[index][1]);
    paths.push_back(figures);
  }
  return paths;
}

void Metrics::OnEncoded(EncodePlace place, Precision precision, int64_t freed_bytes,
                        absl::Duration took) {
  constexpr const char* kPlaces[] = {"ladder", "fetch", "pressure", "ssd"};
  const char* const why = kPlaces[static_cast<int>(place)];
  const std::string label = Text(PrecisionName(precision));
  encoded_pages_.Add({{"precision", label}, {"place", why}}).Increment();
  if (freed_bytes > 0) {
    shed_bytes_.Add({{"precision", label}, {"place", why}})
        .Increment(static_cast<double>(freed_bytes));
  }
  encode_seconds_.at(precision)->Observe(absl::ToDoubleSeconds(took));
}

void Metrics::OnEncodeFailed(EncodeFailure failure) {
  encode_failures_[static_cast<int>(failure)]->Increment();
}

void Metrics::OnEncodeRefused() { encode_refusals_->Increment(); }

void Metrics::OnConnectionRefused(absl::string_view reason) {
  connections_refused_.find(reason)->second->Increment();
}

void Metrics::OnSessionEnded(SessionEndReason reason) {
  sessions_ended_[static_cast<int>(reason)]->Increment();
}

void Metrics::OnReport(double ttft_seconds, uint32_t prompt_tokens, uint32_t hit_tokens,
                       uint32_t decoded_tokens) {
  const uint32_t hits = std::min(hit_tokens, prompt_tokens);
  if (ttft_seconds > 0 && ttft_seconds < 1e6) {
    const bool warm = uint64_t{hits} * 10 >= uint64_t{prompt_tokens} * 9;
    ttft_[hits == 0 ? 0 : warm ? 2 : 1]->Observe(ttft_seconds);
  }
  prefill_saved_->Increment(hits);
  decode_tokens_->Increment(decoded_tokens);
}

void Metrics::OnCommit(CommitOutcome, int64_t) {}  // Push counts its pages, refused ones too.

void Metrics::OnEvicted(TierKind tier, EvictionReason reason, EvictionAction action,
                        int64_t bytes) {
  const Labels labels = {{"tier", Text(TierName(tier))},
                         {"reason", Text(EvictionReasonName(reason))},
                         {"action", Text(EvictionActionName(action))}};
  evicted_pages_.Add(labels).Increment();
  evicted_bytes_.Add(labels).Increment(static_cast<double>(bytes));
  if (action == EvictionAction::kDemote) demoted_->Increment(static_cast<double>(bytes));
}

void Metrics::OnPromoted(int64_t bytes) { promoted_->Increment(static_cast<double>(bytes)); }

void Metrics::OnIntegrityFailure(TierKind tier, IntegrityKind kind) {
  integrity_.Add({{"tier", Text(TierName(tier))}, {"kind", Text(IntegrityKindName(kind))}})
      .Increment();
  if (kind == IntegrityKind::kContent) pusher_mismatch_->Increment();
}

void Metrics::OnSsdRead(absl::Duration took, int64_t bytes, bool ok) {
  ssd_read_->Observe(absl::ToDoubleSeconds(took));
  transfer_bytes_[1][0]->Increment(static_cast<double>(bytes));
  if (!ok) ssd_errors_[0]->Increment();
  if (!ok) transfer_failures_[1][0]->Increment();
}

void Metrics::OnSsdWrite(absl::Duration took, int64_t bytes, bool ok) {
  ssd_write_->Observe(absl::ToDoubleSeconds(took));
  transfer_bytes_[1][1]->Increment(static_cast<double>(bytes));
  if (!ok) ssd_errors_[1]->Increment();
  if (!ok) transfer_failures_[1][1]->Increment();
}

void Metrics::OnWriteQueueFull() { ssd_refusals_->Increment(); }

void Metrics::OnSsdBreaker(policy::BreakerState state, policy::BreakerReason why) {
  if (state == policy::BreakerState::kOpen) ssd_breaker_trips_[static_cast<int>(why)]->Increment();
}

void Metrics::OnLoadsLate(int64_t count) { ssd_loads_late_->Increment(static_cast<double>(count)); }

void Metrics::OnLeasesExpired(int64_t count) {
  leases_expired_->Increment(static_cast<double>(count));
}

RpcTimer::RpcTimer(Metrics& metrics, RpcMethod method)
    : metrics_(metrics), method_(method), start_(SystemClock().Monotonic()) {
  metrics_.OnRpcStart(method_);
}

void RpcTimer::Finish(absl::StatusCode code) {
  if (finished_) return;
  finished_ = true;
  metrics_.OnRpcEnd(method_, code, SystemClock().Monotonic() - start_);
}

}  // namespace pagoda
