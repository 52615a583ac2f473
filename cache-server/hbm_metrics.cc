#include "cache-server/hbm_metrics.h"

namespace pagoda {

std::vector<CountedSeries> HbmSeriesOf(const HbmTierStats& counts) {
  return {{metric::kHbmPromotions, {{"result", "copied"}}, counts.promoted_count},
          {metric::kHbmPromotions, {{"result", "refused"}}, counts.refused_count},
          {metric::kHbmPromotions, {{"result", "failed"}}, counts.failed_count},
          {metric::kHbmPromotedBytes, {}, counts.promoted_bytes},
          {metric::kHbmEvictedPages, {}, counts.evicted_count}};
}

}  // namespace pagoda
