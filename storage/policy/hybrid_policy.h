// Leaf-first by a sum of three ranks in [0, 1]: of recency, attention (the mean of the last five
// reported masses) and frequency (uses while resident). The entry with the least sum goes first; of
// equals, the least recently used.
//
// Ranks, because times, masses and counts have no common unit: an entry's rank is the share of the
// evictable entries below it, half of its equals counted. They are looked up in a snapshot of the
// evictable entries' values (three sorted lists) that stands for a round. A round ends at a pick,
// once a tenth as many entries were removed as there were evictable ones, or as many were used as
// there are. In between, entries that are used, inserted or lose their last child are ranked
// against the snapshot. So a pick costs a logarithm, and a change of the distribution is followed
// within a tenth of a turnover.
//
// When nothing resident was reported, the attention term is dropped and the other weights take its
// place in proportion. When something was, an entry without a report has the middle rank.
//
// Cost       Touch: O(1). Round: O(n log n), n evictable entries, amortised over its removals.
//            Memory: that of KeyedPolicy and AttentionHistory, and 12 bytes an evictable entry
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "storage/policy/attention_history.h"
#include "storage/policy/keyed_policy.h"

namespace pagoda::policy {

struct HybridOptions {
  // Recency weighs most: in multi-turn traffic it predicts best.
  double recency_weight = 0.5;
  double attention_weight = 0.3;
  double frequency_weight = 0.2;

  // INVALID_ARGUMENT unless none is negative, and recency and frequency are not both 0.
  absl::Status Validate() const;
};

class HybridPolicy final : public KeyedPolicy {
 public:
  // REQUIRES: valid options.
  explicit HybridPolicy(const HybridOptions& options, bool leaves_only = true)
      : KeyedPolicy(leaves_only), options_(options) {}
  absl::string_view name() const override { return "hybrid"; }

 protected:
  void OnInsert(const NewEntry& entry) override { OnTouch(entry.id); }
  void OnTouch(EntryId id) override;
  void OnReport(EntryId id, double mass) override;
  void OnRemove(EntryId id) override;
  void OnPick() override;
  uint64_t KeyOf(EntryId id) const override;

 private:
  void BeginRound();

  const HybridOptions options_;
  AttentionHistory history_;
  uint64_t next_time_ = 1;

  // The snapshot of the round, each list sorted.
  std::vector<uint64_t> times_;
  std::vector<uint16_t> use_counts_;
  std::vector<uint16_t> mass_bits_;  // of those that were reported; empty: no attention term
  int64_t removals_ = 0;
  int64_t uses_ = 0;
};

}  // namespace pagoda::policy
