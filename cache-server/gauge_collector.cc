#include "cache-server/gauge_collector.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "cache-server/hbm_metrics.h"
#include "cache-server/metric_names.h"
#include "cache-server/prefetch_metrics.h"
#include "cache-server/version.h"
#include "storage/base/precision.h"
#include "storage/tier.h"

namespace pagoda {
namespace {

using Labels = std::vector<prometheus::ClientMetric::Label>;

class Families {
 public:
  void Set(const MetricInfo& info, double value, Labels labels = {}) {
    if (out_.empty() || out_.back().name != info.name) {
      prometheus::MetricFamily family;
      family.name = info.name;
      family.help = info.help;
      family.type = info.kind == MetricKind::kCounter ? prometheus::MetricType::Counter
                                                      : prometheus::MetricType::Gauge;
      out_.push_back(std::move(family));
    }
    prometheus::ClientMetric metric;
    metric.label = std::move(labels);
    if (info.kind == MetricKind::kCounter) {
      metric.counter.value = value;
    } else {
      metric.gauge.value = value;
    }
    out_.back().metric.push_back(std::move(metric));
  }
  std::vector<prometheus::MetricFamily> Take() { return std::move(out_); }

 private:
  std::vector<prometheus::MetricFamily> out_;
};

struct NamedTier {
  TierKind kind;
  const TierStats& stats;
};

void SetTiers(const DaemonState& state, Families& out) {
  std::vector<NamedTier> tiers;
  if (state.hbm.tier.present) tiers.push_back({TierKind::kHbm, state.hbm.tier});
  if (state.store.host.present) tiers.push_back({TierKind::kHost, state.store.host});
  if (state.store.ssd.present) tiers.push_back({TierKind::kSsd, state.store.ssd});
  const auto each = [&](const MetricInfo& info, auto value) {
    for (const NamedTier& tier : tiers) {
      out.Set(info, static_cast<double>(value(tier.stats)),
              {{"tier", std::string(TierName(tier.kind))}});
    }
  };
  each(metric::kTierCapacity, [](const TierStats& t) { return t.capacity_bytes; });
  each(metric::kTierUsed, [](const TierStats& t) { return t.used_bytes; });
  each(metric::kTierReserved, [](const TierStats& t) { return t.reserved_bytes; });
  each(metric::kTierPinned, [](const TierStats& t) { return t.pinned_bytes; });
  each(metric::kTierFragmentation, [](const TierStats& t) {
    return t.reserved_bytes == 0
               ? 0.0
               : 1.0 - static_cast<double>(t.used_bytes) / static_cast<double>(t.reserved_bytes);
  });
  each(metric::kTierLingering, [](const TierStats& t) { return t.lingering_bytes; });
  each(metric::kTierUnaccounted, [](const TierStats& t) { return t.unaccounted_bytes; });
  for (const NamedTier& tier : tiers) {
    for (const Precision precision : kStoredPrecisions) {
      const auto found = tier.stats.pages_by_precision.find(precision);
      const int64_t pages = found == tier.stats.pages_by_precision.end() ? 0 : found->second;
      out.Set(metric::kTierPages, static_cast<double>(pages),
              {{"tier", std::string(TierName(tier.kind))},
               {"precision", std::string(PrecisionName(precision))}});
    }
  }
  for (const NamedTier& tier : tiers) {
    if (tier.kind == TierKind::kHbm) continue;  // has no marks: it makes room as it is asked
    const std::string name(TierName(tier.kind));
    const policy::Watermarks& marks =
        tier.kind == TierKind::kHost ? state.policies.host.marks : state.policies.ssd.marks;
    out.Set(metric::kTierWatermark, marks.start, {{"tier", name}, {"kind", "high"}});
    out.Set(metric::kTierWatermark, marks.stop, {{"tier", name}, {"kind", "low"}});
    out.Set(metric::kTierWatermark, marks.hard, {{"tier", name}, {"kind", "hard"}});
  }
}

void SetScopes(const DaemonState& state, Families& out) {
  struct Bytes {
    int64_t host = 0;
    int64_t ssd = 0;
  };
  std::map<std::string, Bytes> scopes;
  for (const auto& [id, name] : state.scope_names) scopes[name];  // at 0, too
  for (const ScopeStats& scope : state.store.scopes) {
    const auto known = state.scope_names.find(scope.scope);
    Bytes& bytes = scopes[known != state.scope_names.end() ? known->second : "other"];
    bytes.host += scope.host_bytes;
    bytes.ssd += scope.ssd_bytes;
  }
  for (const auto& [name, bytes] : scopes) {
    out.Set(metric::kScopeBytes, static_cast<double>(bytes.host),
            {{"tier", "host"}, {"scope", name}});
    out.Set(metric::kScopeBytes, static_cast<double>(bytes.ssd),
            {{"tier", "ssd"}, {"scope", name}});
  }
}

void SetCounts(const DaemonState& state, Families& out) {
  const StoreStats& store = state.store;
  out.Set(metric::kPages, static_cast<double>(store.page_count));
  out.Set(metric::kDirectoryMemory, static_cast<double>(store.directory_memory_bytes));
  out.Set(metric::kCompactedBytes, static_cast<double>(store.counters.compacted_bytes));
  out.Set(metric::kCompactedChunks, static_cast<double>(store.counters.compacted_chunks));
  out.Set(metric::kEncodeQueue, static_cast<double>(state.encode_queue_pages));
  out.Set(metric::kPrefetchQueue, static_cast<double>(store.prefetch.queued));
  out.Set(metric::kSsdQueue, static_cast<double>(store.write_queue_count));
  out.Set(metric::kSsdUnflushed, static_cast<double>(store.unflushed_count));
  out.Set(metric::kSsdFileBytes, static_cast<double>(store.ssd_file_bytes));
  out.Set(metric::kSsdBreaker, static_cast<double>(store.ssd_breaker));
  out.Set(metric::kDirtyPages, static_cast<double>(store.dirty_page_count));
  out.Set(metric::kSessions, static_cast<double>(state.sessions));
  out.Set(metric::kSequences, static_cast<double>(state.sequences));
  out.Set(metric::kLeases, static_cast<double>(store.lease_count));
  out.Set(metric::kLeasedPages, static_cast<double>(store.leased_page_count));
  out.Set(metric::kStagedBytes, static_cast<double>(store.host.staged_bytes));
  out.Set(metric::kBuildInfo, 1, {{"version", kVersion}});
  out.Set(metric::kDraining, state.draining ? 1 : 0);
}

void SetSeries(const CountedSeries& series, Families& out) {
  Labels labels;
  for (const auto& [name, value] : series.labels) labels.push_back({name, value});
  out.Set(series.info, static_cast<double>(series.value), std::move(labels));
}

// Fields of /proc/self/stat after the command, whose name may hold anything: proc(5) numbers the
// first of them 3.
std::vector<double> ReadProcessStat() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  const size_t end_of_name = line.rfind(')');
  if (end_of_name == std::string::npos) return {};
  std::istringstream fields(line.substr(end_of_name + 1));
  std::string state;
  fields >> state;
  std::vector<double> out;
  for (double value = 0; fields >> value;) out.push_back(value);
  return out;
}

double BootUnixSeconds() {
  std::ifstream file("/proc/stat");
  for (std::string line; std::getline(file, line);) {
    if (line.rfind("btime ", 0) == 0) return std::strtod(line.c_str() + 6, nullptr);
  }
  return 0;
}

void SetProcess(Families& out) {
  const std::vector<double> stat = ReadProcessStat();
  if (stat.size() < 21) return;  // No /proc: no process metrics.
  const auto field = [&](size_t number) { return stat[number - 4]; };  // numbers of proc(5)
  const auto ticks = static_cast<double>(::sysconf(_SC_CLK_TCK));
  static const double boot_unix_seconds = BootUnixSeconds();
  out.Set(metric::kProcessCpu, (field(14) + field(15)) / ticks);
  out.Set(metric::kProcessResident, field(24) * static_cast<double>(::sysconf(_SC_PAGESIZE)));
  out.Set(metric::kProcessVirtual, field(23));
  std::error_code ignored;
  const auto fds = std::filesystem::directory_iterator("/proc/self/fd", ignored);
  out.Set(metric::kProcessFds, static_cast<double>(std::distance(begin(fds), end(fds))));
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    out.Set(metric::kProcessFdsMax, static_cast<double>(limit.rlim_cur));
  }
  out.Set(metric::kProcessThreads, field(20));
  out.Set(metric::kProcessStart, boot_unix_seconds + field(22) / ticks);
}

}  // namespace

std::vector<prometheus::MetricFamily> GaugeCollector::Collect() const {
  const DaemonState state = read_();
  Families out;
  SetTiers(state, out);
  SetScopes(state, out);
  SetCounts(state, out);
  for (const CountedSeries& series : PrefetchSeriesOf(state.store.prefetch)) {
    SetSeries(series, out);
  }
  if (state.hbm.tier.present) {
    out.Set(metric::kHbmLost, state.hbm.lost ? 1 : 0);
    out.Set(metric::kPeerLinks, static_cast<double>(state.hbm.peer_links));
    for (const CountedSeries& series : HbmSeriesOf(state.hbm.counts)) SetSeries(series, out);
  }
  SetProcess(out);
  return out.Take();
}

}  // namespace pagoda
