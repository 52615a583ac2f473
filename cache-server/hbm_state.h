// What device memory holds, for status and metrics. Plain.
#pragma once

#include "storage/hbm_tier.h"
#include "storage/store_stats.h"

namespace pagoda {

struct HbmState {
  TierStats tier;  // not present without a device
  HbmTierStats counts;
  bool lost = false;
  int64_t peer_links = 0;  // to GPUs of other nodes, those that end included
};

}  // namespace pagoda
