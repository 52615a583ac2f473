// What became of pages in device memory, as metrics: for a scrape and for the Status RPC alike.
#pragma once

#include <vector>

#include "cache-server/prefetch_metrics.h"
#include "storage/hbm_tier.h"

namespace pagoda {

// Every series, zeros too, those of one metric together.
std::vector<CountedSeries> HbmSeriesOf(const HbmTierStats& counts);

}  // namespace pagoda
