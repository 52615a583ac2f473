#include "storage/prefetch/hotness.h"

#include <cmath>

namespace pagoda::prefetch {
namespace {

constexpr double kHalfLivesMax = 256;  // 2^256 is far from where doubles end

}  // namespace

double Hotness::WeightOf(absl::Duration now) const {
  return std::exp2(absl::FDivDuration(now - base_, options_.half_life));
}

void Hotness::Rebase(absl::Duration now) {
  const double weight = WeightOf(now);
  for (auto& [page, sum] : sums_) sum /= weight;
  base_ = now;
}

// Forgets the coldest until a quarter is free: raises the bar until enough are below it.
void Hotness::MakeRoom(double weight) {
  const int64_t kept_max = options_.pages_max * 3 / 4;
  for (double bar = weight / 64; page_count() > kept_max; bar *= 2) {
    for (auto it = sums_.begin(); it != sums_.end();) {
      if (it->second < bar) {
        sums_.erase(it++);
      } else {
        ++it;
      }
    }
  }
}

void Hotness::Use(absl::Span<const PageId> pages, absl::Duration now) {
  if (absl::FDivDuration(now - base_, options_.half_life) > kHalfLivesMax) Rebase(now);
  const double weight = WeightOf(now);
  for (const PageId page : pages) {
    sums_[page] += weight;
    if (page_count() > options_.pages_max) MakeRoom(weight);
  }
}

double Hotness::ScoreOf(PageId page, absl::Duration now) const {
  const auto it = sums_.find(page);
  return it == sums_.end() ? 0 : it->second / WeightOf(now);
}

TierKind Hotness::WantedTier(PageId page, TierKind current, absl::Duration now) const {
  const double score = ScoreOf(page, now);
  switch (current) {
    case TierKind::kHbm:
      return score < options_.hbm_min / 2 ? TierKind::kHost : TierKind::kHbm;
    case TierKind::kHost:
      if (score >= options_.hbm_min) return TierKind::kHbm;
      return score < options_.host_min / 2 ? TierKind::kSsd : TierKind::kHost;
    default:
      return score >= options_.host_min ? TierKind::kHost : current;
  }
}

}  // namespace pagoda::prefetch
