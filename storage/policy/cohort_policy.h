// Leaf-first LRU that keeps a share of the conversations when it cannot keep all of them.
//
// A conversation's pages are used again when its next turn comes, minutes later: the chance rises
// first and falls after. When a tier turns over faster than that, LRU drops every page just before
// its return. A tier that takes in every second conversation turns over half as fast. So:
//
//   1. A ReuseStack measures h(x): how many re-uses an LRU tier of x times this capacity would hit.
//      With the share a of the conversations, a tier of capacity c behaves towards them like one of
//      capacity c/a: it hits a * h(1/a). The share is the best of 1, 1/2, 1/4, 1/8: refusing must
//      promise 1.25 times the hits of refusing none.
//   2. A new conversation begins at a root, or below an entry that many chains share. Whether it is
//      taken in says a hash of that page, so that it is the same at every turn. What continues it
//      follows its parent. Refused pages are stored too, but go first; a use takes them in.
//   3. A page that was used again is worth more than a new one: it goes in front by a quarter of
//      the tier's turnover. Three of four new pages are never used again.
//   4. The stack also says what LRU would have hit. If refusing hits clearly less, all are taken
//      in again, for longer each time.
//
// One set of constants, fixed on the first halves of the traces that storage/README.md names.
//
// Cost       that of KeyedPolicy, and ReuseStack's for one page in 2^shift. REQUIRES: a known
//            capacity and real fingerprints, else it is lru with point 3.
#pragma once

#include <array>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "storage/policy/keyed_policy.h"
#include "storage/policy/reuse_stack.h"

namespace pagoda::policy {

class CohortPolicy final : public KeyedPolicy {
 public:
  using KeyedPolicy::KeyedPolicy;
  absl::string_view name() const override { return "cohort"; }

  // The share of new conversations that are taken in now: 1, 1/2, 1/4 or 1/8.
  double admitted_share() const { return 1.0 / static_cast<double>(1 << share_shift_); }

 protected:
  void OnInsert(const NewEntry& entry) override;
  void OnTouch(EntryId id) override;
  void OnRemove(EntryId id) override;
  uint64_t KeyOf(EntryId id) const override { return word(id) & kKeyMask; }

 private:
  // An entry's word: taken in | sampled | children ever, saturated | place on the clock.
  static constexpr uint64_t kAdmitted = uint64_t{1} << 63;
  static constexpr uint64_t kSampled = uint64_t{1} << 62;
  static constexpr int kChildrenShift = 58;
  static constexpr uint64_t kChildrenMax = 15;
  static constexpr uint64_t kPlaceMask = (uint64_t{1} << kChildrenShift) - 1;
  static constexpr uint64_t kKeyMask = kAdmitted | kPlaceMask;

  uint64_t children_ever(EntryId id) const { return word(id) >> kChildrenShift & kChildrenMax; }
  bool common(EntryId id) const;
  bool Admits(const NewEntry& entry) const;
  void Advance(int64_t bytes);  // the clock and the window, after a use
  void CountSampled(uint64_t fingerprint, int64_t bytes, bool hit, bool is_common);
  void EndWindow();
  int BestShareShift() const;

  uint64_t clock_ = 0;  // in turnovers of the tier, 2^26 to one
  ReuseStack stack_;
  absl::flat_hash_map<EntryId, uint64_t> fingerprints_;  // of the sampled residents

  // Statistics, in bytes of the sample, halved slowly.
  std::array<double, ReuseStack::kBandCount> reused_{};  // by the band of the last use
  double hit_while_refusing_ = 0;
  double lru_hit_while_refusing_ = 0;
  // The window that is running.
  int64_t window_uses_ = 0;
  int64_t window_bytes_ = 0;

  int share_shift_ = 0;
  int refusing_windows_ = 0;  // in a row, this one included
  int windows_open_ = 0;      // so many windows more all are taken in
  int penalty_windows_ = 8;
};

}  // namespace pagoda::policy
