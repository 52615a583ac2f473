#include "cache-server/prefetch_metrics.h"

#include "absl/strings/str_cat.h"

namespace pagoda {

std::string CountedSeries::Name() const {
  std::string name = info.name;
  const char* before = "{";
  for (const auto& [label, value] : labels) {
    absl::StrAppend(&name, before, label, "=\"", value, "\"");
    before = ",";
  }
  if (!labels.empty()) name += "}";
  return name;
}

std::vector<CountedSeries> PrefetchSeriesOf(const prefetch::Counters& counters) {
  using prefetch::DropReason;
  using prefetch::Source;
  using prefetch::SourceCounters;
  const struct {
    const MetricInfo& info;
    int64_t SourceCounters::*count;
  } kinds[] = {
      {metric::kPrefetchAsked, &SourceCounters::asked},
      {metric::kPrefetchLoaded, &SourceCounters::loaded},
      {metric::kPrefetchUsed, &SourceCounters::used},
      {metric::kPrefetchLate, &SourceCounters::late},
      {metric::kPrefetchUnused, &SourceCounters::unused},
      {metric::kPrefetchVictims, &SourceCounters::victims},
  };
  const auto name_of = [](int source) {
    return std::string(prefetch::SourceName(static_cast<Source>(source)));
  };
  std::vector<CountedSeries> series;
  for (const auto& [info, count] : kinds) {
    for (int source = 0; source < prefetch::kSourceCount; ++source) {
      series.push_back({info, {{"source", name_of(source)}}, counters.by_source[source].*count});
    }
  }
  for (int source = 0; source < prefetch::kSourceCount; ++source) {
    for (int i = 0; i < prefetch::kDropReasonCount; ++i) {
      const std::string reason(prefetch::DropReasonName(static_cast<DropReason>(i)));
      series.push_back({metric::kPrefetchDropped,
                        {{"source", name_of(source)}, {"reason", reason}},
                        counters.by_source[source].dropped[i]});
    }
  }
  series.push_back({metric::kPrefetchDemanded, {}, counters.demanded});
  return series;
}

}  // namespace pagoda
