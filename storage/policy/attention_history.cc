#include "storage/policy/attention_history.h"

#include <algorithm>
#include <bit>

namespace pagoda::policy {
namespace {

constexpr double kMassMax = 1e30;

uint16_t ToBits(double value) {
  const auto bits = std::bit_cast<uint32_t>(static_cast<float>(std::clamp(value, 0.0, kMassMax)));
  return static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);  // ties to even
}

double FromBits(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

}  // namespace

void AttentionHistory::Add(EntryId id, double mass) {
  if (masses_.size() <= id) masses_.resize(size_t{id} + 1);
  Masses& masses = masses_[id];
  if (masses.count == 0) {
    ++entry_count_;
  } else {
    mean_sum_ -= MeanOf(masses);
  }
  masses.bits[masses.next] = ToBits(mass);
  masses.next = static_cast<uint8_t>((masses.next + 1) % kMassCount);
  masses.count = static_cast<uint8_t>(std::min<int>(masses.count + 1, kMassCount));
  mean_sum_ += MeanOf(masses);
}

void AttentionHistory::Forget(EntryId id) {
  if (id >= masses_.size() || masses_[id].count == 0) return;
  mean_sum_ -= MeanOf(masses_[id]);
  masses_[id] = Masses();
  if (--entry_count_ == 0) mean_sum_ = 0;  // and no rounding is carried on
}

std::optional<uint16_t> AttentionHistory::MeanBits(EntryId id) const {
  if (id >= masses_.size() || masses_[id].count == 0) return std::nullopt;
  return ToBits(MeanOf(masses_[id]));
}

uint16_t AttentionHistory::AverageBits() const {
  return entry_count_ == 0 ? 0 : ToBits(mean_sum_ / static_cast<double>(entry_count_));
}

double AttentionHistory::MeanOf(const Masses& masses) {
  double sum = 0;
  for (int i = 0; i < masses.count; ++i) sum += FromBits(masses.bits[i]);
  return sum / masses.count;
}

}  // namespace pagoda::policy
