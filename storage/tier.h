// The words for places where pages live. Metrics, JSON and the proto use these names.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

namespace pagoda {

enum class TierKind : uint8_t { kHbm = 0, kHost = 1, kSsd = 2, kPeer = 3 };
constexpr int kTierKindCount = 4;

constexpr absl::string_view TierName(TierKind tier) {
  switch (tier) {
    case TierKind::kHbm:
      return "hbm";
    case TierKind::kHost:
      return "host";
    case TierKind::kSsd:
      return "ssd";
    case TierKind::kPeer:
      return "peer";
  }
  return "unknown";
}

}  // namespace pagoda
