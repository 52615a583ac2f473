// What became of prefetched pages, as metrics. The store counts; here the counts get their names,
// for a scrape and for the Status RPC alike.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "cache-server/metric_names.h"
#include "storage/prefetch/prefetch_outcomes.h"

namespace pagoda {

struct CountedSeries {
  const MetricInfo& info;
  std::map<std::string, std::string> labels;
  int64_t value;
  std::string Name() const;  // name{label="value"}
};

// Every series, zeros too, those of one metric together.
std::vector<CountedSeries> PrefetchSeriesOf(const prefetch::Counters& counters);

}  // namespace pagoda
