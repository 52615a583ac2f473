#include "storage/policy/cohort_policy.h"

#include <algorithm>

namespace pagoda::policy {
namespace {

constexpr uint64_t kTurnover = uint64_t{1} << 26;    // clock ticks while the tier is filled once
constexpr uint64_t kUsedAgainBonus = kTurnover / 4;  // point 3
constexpr uint64_t kCommonChildrenMin = 8;           // so many branches: no conversation's own
constexpr double kGainMin = 1.25;                    // point 1
constexpr double kWorseThanLru = 0.9;                // point 4
constexpr double kDecay = 0.9;                       // of the statistics, each window
constexpr int64_t kWindowUsesMin = 16384;            // fewer say too little of small tiers
constexpr int64_t kWindowTurnovers = 4;
constexpr int kPenaltyWindowsMax = 64;

// Independent of the stack's sample.
uint64_t CohortHash(uint64_t x) {
  x = (x ^ 0x9e3779b97f4a7c15) * 0xff51afd7ed558ccd;
  x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53;
  return x ^ (x >> 33);
}

}  // namespace

void CohortPolicy::OnInsert(const NewEntry& entry) {
  const bool sampled = capacity_bytes() > 0 && stack_.Samples(entry.fingerprint);
  if (sampled) {
    CountSampled(entry.fingerprint, entry.bytes, /*hit=*/false, /*is_common=*/false);
    fingerprints_[entry.id] = entry.fingerprint;
  }
  Advance(entry.bytes);
  word(entry.id) = clock_ | (Admits(entry) ? kAdmitted : 0) | (sampled ? kSampled : 0);
  if (entry.parent != kNoEntry && resident(entry.parent) &&
      children_ever(entry.parent) < kChildrenMax) {
    word(entry.parent) += uint64_t{1} << kChildrenShift;
  }
  KeyRaised(entry.id);
}

void CohortPolicy::OnTouch(EntryId id) {
  if (word(id) & kSampled) {
    const uint64_t fingerprint = fingerprints_.at(id);
    if (stack_.Samples(fingerprint)) {
      CountSampled(fingerprint, bytes_of(id), /*hit=*/true, common(id));
    }
  }
  Advance(bytes_of(id));
  word(id) = (word(id) & ~kPlaceMask) | kAdmitted | (clock_ + kUsedAgainBonus);
  KeyRaised(id);
}

void CohortPolicy::OnRemove(EntryId id) {
  if (word(id) & kSampled) fingerprints_.erase(id);
}

bool CohortPolicy::common(EntryId id) const { return children_ever(id) >= kCommonChildrenMin; }

bool CohortPolicy::Admits(const NewEntry& entry) const {
  const bool has_parent = entry.parent != kNoEntry && resident(entry.parent);
  if (has_parent && !common(entry.parent)) return (word(entry.parent) & kAdmitted) != 0;
  if (!has_parent && entry.parent != kNoEntry) return true;  // its chain is not known
  return share_shift_ == 0 || CohortHash(entry.fingerprint) >> (64 - share_shift_) == 0;
}

void CohortPolicy::CountSampled(uint64_t fingerprint, int64_t bytes, bool hit, bool is_common) {
  if (stack_.capacity_bytes() != capacity_bytes()) stack_.Fit(capacity_bytes(), entry_count());
  const int band = stack_.Use(fingerprint, bytes);
  if (is_common) return;  // hits whatever the share is
  const auto weight = static_cast<double>(bytes) * static_cast<double>(1 << stack_.shift());
  if (band != ReuseStack::kNoBand) reused_[band] += weight;
  if (hit) hit_while_refusing_ += weight;
  if (band == 0) lru_hit_while_refusing_ += weight;
}

void CohortPolicy::Advance(int64_t bytes) {
  if (capacity_bytes() == 0) {
    ++clock_;
    return;
  }
  const double turnovers = static_cast<double>(bytes) / static_cast<double>(capacity_bytes());
  clock_ += std::max<uint64_t>(1, static_cast<uint64_t>(turnovers * kTurnover));
  ++window_uses_;
  window_bytes_ += bytes;
  if (window_uses_ >= kWindowUsesMin && window_bytes_ >= kWindowTurnovers * capacity_bytes()) {
    EndWindow();
  }
}

void CohortPolicy::EndWindow() {
  window_uses_ = 0;
  window_bytes_ = 0;
  // The first window after a change shows what the change costs, not what it brings.
  const bool judged = refusing_windows_ > 1;
  if (judged && hit_while_refusing_ < kWorseThanLru * lru_hit_while_refusing_) {
    windows_open_ = penalty_windows_;
    penalty_windows_ = std::min(2 * penalty_windows_, kPenaltyWindowsMax);
  } else if (windows_open_ > 0) {
    --windows_open_;
  }
  share_shift_ = windows_open_ > 0 ? 0 : BestShareShift();
  refusing_windows_ = share_shift_ > 0 ? refusing_windows_ + 1 : 0;
  const double kept = refusing_windows_ > 1 && judged ? kDecay : 0;
  hit_while_refusing_ *= kept;
  lru_hit_while_refusing_ *= kept;
  for (double& bytes : reused_) bytes *= kDecay;
  stack_.Fit(capacity_bytes(), entry_count());
}

int CohortPolicy::BestShareShift() const {
  const double unrefused = reused_[0];
  double within = 0;
  double best = 0;
  int best_shift = 0;
  for (int shift = 0; shift < ReuseStack::kBandCount; ++shift) {
    within += reused_[shift];
    const double hits = within / static_cast<double>(1 << shift);
    if (hits <= best || (shift > 0 && hits <= kGainMin * unrefused)) continue;
    best = hits;
    best_shift = shift;
  }
  return best_shift;
}

}  // namespace pagoda::policy
