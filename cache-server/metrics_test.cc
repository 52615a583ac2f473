// Goal: what happens is counted once, under bounded labels. Method: events in, counters out.
#include "cache-server/metrics.h"

#include "absl/strings/str_cat.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

TEST(MetricsTest, ALookupIsCountedByTierPrecisionTenantAndScope) {
  Metrics metrics({"acme"}, {"m"});
  LookupEvent event;
  event.tenant = "acme";
  event.model = "m";
  event.scope_kind = ScopeKind::kPublic;
  event.precision_min = Precision::kQ8;
  event.page_tokens = 64;
  event.asked_pages = 5;
  event.found = {{TierKind::kHost, Precision::kQ8},
                 {TierKind::kHost, Precision::kQ8},
                 {TierKind::kSsd, Precision::kQ8}};
  metrics.OnLookup(event);
  const std::map<std::string, uint64_t> counters = metrics.Counters();
  const std::map<std::string, uint64_t> expected = {
      {"pagoda_lookup_requests_total{model=\"m\",result=\"partial\"}", 1},
      {"pagoda_lookup_requested_tokens_total{model=\"m\"}", 320},
      {"pagoda_lookup_hit_tokens_total{model=\"m\",precision=\"q8\",tier=\"host\"}", 128},
      {"pagoda_lookup_hit_tokens_total{model=\"m\",precision=\"q8\",tier=\"ssd\"}", 64},
      {"pagoda_lookup_hit_pages_total{tier=\"host\"}", 2},
      {"pagoda_lookup_hit_pages_total{tier=\"ssd\"}", 1},
      {"pagoda_tenant_lookup_tokens_total{result=\"hit\",tenant=\"acme\"}", 192},
      {"pagoda_tenant_lookup_tokens_total{result=\"miss\",tenant=\"acme\"}", 128},
      {"pagoda_precision_lookups_total{precision_class=\"high\",result=\"hit\"}", 3},
      {"pagoda_precision_lookups_total{precision_class=\"high\",result=\"miss\"}", 2},
      {"pagoda_tenant_cross_share_tokens_total{scope=\"public\"}", 192},
  };
  EXPECT_EQ(counters, expected);
}

TEST(MetricsTest, LabelsOfClientsAreBounded) {
  std::vector<std::string> tenants;
  for (int i = 0; i < 1000; ++i) tenants.push_back(absl::StrCat("tenant-", i));
  Metrics metrics(tenants, {});
  for (int i = 0; i < 1000; ++i) {
    LookupEvent event;
    const std::string model = absl::StrCat("model-", i);
    event.tenant = tenants[static_cast<size_t>(i)];
    event.model = model;
    event.page_tokens = 64;
    event.asked_pages = 1;
    metrics.OnLookup(event);
    metrics.OnPutBytes(event.tenant, Precision::kRaw16, 1);
  }
  size_t series = 0;
  uint64_t others = 0;
  for (const prometheus::MetricFamily& family : metrics.registry()->Collect()) {
    series += family.metric.size();
  }
  for (const auto& [name, value] : metrics.Counters()) {
    if (name == "pagoda_lookup_requests_total{model=\"other\",result=\"miss\"}") others = value;
  }
  EXPECT_LT(series, 1500u);
  EXPECT_GT(others, 900u);
}

TEST(MetricsTest, EveryEventOfTheStoreAndOfCallsHasItsCounter) {
  Metrics metrics({}, {});
  metrics.OnEvicted(TierKind::kHost, EvictionReason::kWatermark, EvictionAction::kDemote, 100);
  metrics.OnEvicted(TierKind::kSsd, EvictionReason::kPressure, EvictionAction::kDrop, 7);
  metrics.OnPromoted(5);
  metrics.OnIntegrityFailure(TierKind::kSsd, IntegrityKind::kSegment);
  metrics.OnSsdRead(absl::Milliseconds(1), 10, true);
  metrics.OnSsdWrite(absl::Milliseconds(1), 0, false);
  metrics.OnWriteQueueFull();
  metrics.OnSsdBreaker(policy::BreakerState::kOpen, policy::BreakerReason::kHung);
  metrics.OnSsdBreaker(policy::BreakerState::kClosed, policy::BreakerReason::kHung);
  metrics.OnLoadsLate(2);
  metrics.OnLeasesExpired(3);
  metrics.OnSessionEnded(SessionEndReason::kTimeout);
  metrics.OnEncoded(EncodePlace::kLadder, Precision::kQ4, 50, absl::Milliseconds(1));
  metrics.OnEncodeFailed(EncodeFailure::kRoom);
  RpcTimer timer(metrics, RpcMethod::kLookup);
  timer.Finish(absl::StatusCode::kPermissionDenied);
  timer.Finish(absl::StatusCode::kOk);  // the first one counts
  const std::map<std::string, uint64_t> expected = {
      {"pagoda_evicted_pages_total{action=\"demote\",reason=\"watermark\",tier=\"host\"}", 1},
      {"pagoda_evicted_bytes_total{action=\"demote\",reason=\"watermark\",tier=\"host\"}", 100},
      {"pagoda_evicted_pages_total{action=\"drop\",reason=\"pressure\",tier=\"ssd\"}", 1},
      {"pagoda_evicted_bytes_total{action=\"drop\",reason=\"pressure\",tier=\"ssd\"}", 7},
      {"pagoda_demoted_bytes_total{from=\"host\",to=\"ssd\"}", 100},
      {"pagoda_promoted_bytes_total{from=\"ssd\",to=\"host\"}", 5},
      {"pagoda_integrity_failures_total{kind=\"segment\",tier=\"ssd\"}", 1},
      {"pagoda_transfer_bytes_total{direction=\"in\",path=\"ssd\"}", 10},
      {"pagoda_transfer_failures_total{direction=\"out\",path=\"ssd\"}", 1},
      {"pagoda_ssd_io_errors_total{op=\"write\"}", 1},
      {"pagoda_ssd_write_refusals_total", 1},
      {"pagoda_ssd_breaker_trips_total{reason=\"hung\"}", 1},
      {"pagoda_ssd_loads_late_total", 2},
      {"pagoda_leases_expired_total", 3},
      {"pagoda_sessions_ended_total{reason=\"timeout\"}", 1},
      {"pagoda_encoded_pages_total{place=\"ladder\",precision=\"q4\"}", 1},
      {"pagoda_shed_bytes_total{place=\"ladder\",precision=\"q4\"}", 50},
      {"pagoda_encode_failures_total{reason=\"room\"}", 1},
      {"pagoda_rpc_requests_total{code=\"PERMISSION_DENIED\",method=\"Lookup\"}", 1},
      {"pagoda_rpc_rejected_total{reason=\"authz\"}", 1},
  };
  EXPECT_EQ(metrics.Counters(), expected);
}

// p50 and p99 are estimates from buckets: within the bucket that holds them.
TEST(MetricsTest, PathsSayBytesAndTimes) {
  Metrics metrics({}, {});
  metrics.OnTransferBytes(TransferDirection::kOut, 1000);
  for (int i = 0; i < 98; ++i)
    metrics.OnTransferTook(TransferDirection::kOut, absl::Milliseconds(2));
  for (int i = 0; i < 2; ++i)
    metrics.OnTransferTook(TransferDirection::kOut, absl::Milliseconds(400));
  metrics.OnShmTaken(64);
  metrics.OnTransferTook(TransferDirection::kIn, absl::Seconds(100), TransferPath::kShm);
  const std::vector<PathFigures> paths = metrics.Paths();
  ASSERT_EQ(paths.size(), 2u);
  EXPECT_EQ(paths[0].path, "shm");
  EXPECT_EQ(paths[0].bytes_in, 64u);
  EXPECT_EQ(paths[0].in.count, 1u);
  EXPECT_EQ(paths[0].in.p99_seconds, 10);  // the last edge
  EXPECT_EQ(paths[0].out.count, 0u);
  EXPECT_EQ(paths[0].out.p99_seconds, 0);
  EXPECT_EQ(paths[1].path, "grpc");
  EXPECT_EQ(paths[1].bytes_out, 1000u);
  EXPECT_EQ(paths[1].out.count, 100u);
  EXPECT_GT(paths[1].out.p50_seconds, 1e-3);
  EXPECT_LE(paths[1].out.p50_seconds, 2.5e-3);
  EXPECT_GT(paths[1].out.p99_seconds, 0.25);
  EXPECT_LE(paths[1].out.p99_seconds, 0.5);
}

}  // namespace
}  // namespace pagoda
