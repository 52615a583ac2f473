// How much each page is used lately: uses that fade by half every half_life. From it follows the
// tier a page deserves, over HBM, host memory and SSD, with hysteresis. Pure.
//
// Kept as forward decay: a use at time t weighs 2^(t / half_life), so that no score needs an update
// as time passes; a score is read relative to the weight of now.
//
// Threads    externally synchronised; times never go back
// Limits     pages_max pages; when full the coldest are forgotten, whose score then reads 0
// Cost       Use, ScoreOf: one hash look-up and one exponential; about 30 bytes a page
// Source     the tiered policy that the seed articles describe beside MagicPIG: moving average of
//            access frequency, half-life 60 s, promotion across three tiers
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "storage/prefetch/prefetch_page.h"
#include "storage/tier.h"

namespace pagoda::prefetch {

class Hotness {
 public:
  struct Options {
    absl::Duration half_life = absl::Seconds(60);
    double host_min = 3;  // uses, faded, from which a page deserves host memory
    double hbm_min = 12;  // and HBM
    int64_t pages_max = 65536;
  };
  explicit Hotness(const Options& options) : options_(options) {}

  void Use(absl::Span<const PageId> pages, absl::Duration now);
  // Uses, faded: 1 right after the only use, 0.5 a half-life later.
  double ScoreOf(PageId page, absl::Duration now) const;

  // Where a page that lies in `current` should be. It rises when its score reaches the tier's
  // minimum and falls when it is below half of that, one tier at a time.
  TierKind WantedTier(PageId page, TierKind current, absl::Duration now) const;
  // True if a page on SSD deserves host memory.
  bool IsHot(PageId page, absl::Duration now) const {
    return WantedTier(page, TierKind::kSsd, now) == TierKind::kHost;
  }

  int64_t page_count() const { return static_cast<int64_t>(sums_.size()); }

 private:
  double WeightOf(absl::Duration now) const;
  void Rebase(absl::Duration now);
  void MakeRoom(double weight);

  const Options options_;
  absl::Duration base_ = absl::ZeroDuration();  // the moment whose weight is 1
  absl::flat_hash_map<PageId, double> sums_;
};

}  // namespace pagoda::prefetch
