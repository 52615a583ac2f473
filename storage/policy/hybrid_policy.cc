#include "storage/policy/hybrid_policy.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/policy/use_word.h"

namespace pagoda::policy {
namespace {

// A round's length: this part of the evictable entries is removed in it.
constexpr int64_t kRoundsPerTurnover = 10;

// Share of the sorted values below `value`, half of the equal ones counted.
template <typename T>
double RankOf(const std::vector<T>& sorted, T value) {
  if (sorted.empty()) return 0.5;
  const auto [first, last] = std::equal_range(sorted.begin(), sorted.end(), value);
  const auto below = static_cast<double>(first - sorted.begin());
  const auto equal = static_cast<double>(last - first);
  return (below + equal / 2) / static_cast<double>(sorted.size());
}

}  // namespace

absl::Status HybridOptions::Validate() const {
  for (const double weight : {recency_weight, attention_weight, frequency_weight}) {
    if (weight >= 0 && weight <= 1) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("hybrid: weight %g is not in [0, 1]", weight));
  }
  if (recency_weight + frequency_weight > 0) return absl::OkStatus();
  return absl::InvalidArgumentError(
      "hybrid: the weights of recency and frequency are both 0; without reports nothing would "
      "order the pages: give one of them a weight, or use the policy attention");
}

void HybridPolicy::OnTouch(EntryId id) {
  word(id) = MakeUseWord(OneMore(WorthOf(word(id))), next_time_++);
  ++uses_;
  KeyRaised(id);
}

void HybridPolicy::OnReport(EntryId id, double mass) {
  const bool evictable = MayGo(id);
  const uint64_t before = evictable ? KeyOf(id) : 0;
  history_.Add(id, mass);
  if (!evictable) return;
  KeyOf(id) < before ? KeyLowered(id) : KeyRaised(id);
}

void HybridPolicy::OnRemove(EntryId id) {
  history_.Forget(id);
  ++removals_;
}

void HybridPolicy::OnPick() {
  KeyedPolicy::OnPick();
  const auto snapshot_count = static_cast<int64_t>(times_.size());
  if (kRoundsPerTurnover * removals_ >= snapshot_count || uses_ >= entry_count()) BeginRound();
}

void HybridPolicy::BeginRound() {
  times_.clear();
  use_counts_.clear();
  mass_bits_.clear();
  ForEachEvictable([this](EntryId id) {
    times_.push_back(UseTimeOf(word(id)));
    use_counts_.push_back(WorthOf(word(id)));
    if (const auto mass = history_.MeanBits(id)) mass_bits_.push_back(*mass);
  });
  std::sort(times_.begin(), times_.end());
  std::sort(use_counts_.begin(), use_counts_.end());
  std::sort(mass_bits_.begin(), mass_bits_.end());
  removals_ = 0;
  uses_ = 0;
  KeysChanged();
}

uint64_t HybridPolicy::KeyOf(EntryId id) const {
  const uint64_t use_word = word(id);
  double score = options_.recency_weight * RankOf(times_, UseTimeOf(use_word)) +
                 options_.frequency_weight * RankOf(use_counts_, WorthOf(use_word));
  double weights = options_.recency_weight + options_.frequency_weight;
  if (!mass_bits_.empty()) {
    const auto mass = history_.MeanBits(id);
    score += options_.attention_weight * (mass.has_value() ? RankOf(mass_bits_, *mass) : 0.5);
    weights += options_.attention_weight;
  }
  return MakeUseWord(static_cast<uint16_t>(score / weights * UINT16_MAX), UseTimeOf(use_word));
}

}  // namespace pagoda::policy
