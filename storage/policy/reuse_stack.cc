#include "storage/policy/reuse_stack.h"

#include <algorithm>
#include <bit>

#include "storage/base/check.h"

namespace pagoda::policy {
namespace {

constexpr int64_t kSampleWanted = 16384;

}  // namespace

void ReuseStack::Fit(int64_t capacity_bytes, int64_t entry_count) {
  // All bands together hold 8 times the capacity. A sixteenth of that is enough, if it is enough
  // pages; beyond kSampleMax more would not say more.
  const int64_t population = 8 * std::max<int64_t>(entry_count, 1);
  const int64_t wanted =
      std::clamp(population / 16, std::min(kSampleWanted, population), kSampleMax / 2);
  const int shift = std::bit_width(static_cast<uint64_t>((population - 1) / wanted));
  const bool coarser = shift > shift_;
  // Not finer for a little less: the sample would start from nothing each time.
  if (coarser || shift + 1 < shift_) shift_ = shift;
  if (coarser) {
    std::vector<Slot> left_out;
    for (const auto& [fingerprint, slot] : index_) {
      if (!Samples(fingerprint)) left_out.push_back(slot);
    }
    for (const Slot slot : left_out) Forget(slot);
  }
  capacity_bytes_ = capacity_bytes;
  Settle();
}

int ReuseStack::Use(uint64_t fingerprint, int64_t bytes) {
  const auto [it, added] = index_.try_emplace(fingerprint, kNoSlot);
  int band = kNoBand;
  if (added) {
    if (free_.empty()) {
      it->second = static_cast<Slot>(nodes_.size());
      nodes_.emplace_back();
    } else {
      it->second = free_.back();
      free_.pop_back();
    }
    nodes_[it->second].fingerprint = fingerprint;
  } else {
    band = nodes_[it->second].band;
    Unlink(it->second);
  }
  nodes_[it->second].bytes = bytes;
  PushNewest(it->second);
  Settle();
  return band;
}

uint64_t ReuseStack::Mixed(uint64_t x) {  // the finaliser of SplitMix64
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

int64_t ReuseStack::BandBytes(int band) const {
  const int64_t whole = band == 0 ? capacity_bytes_ : capacity_bytes_ << (band - 1);
  return std::max<int64_t>(1, whole >> shift_);
}

void ReuseStack::Unlink(Slot slot) {
  Node& node = nodes_[slot];
  Band& band = bands_[node.band];
  band.bytes -= node.bytes;
  if (band.oldest == slot) {
    const bool has_newer = node.newer != kNoSlot && nodes_[node.newer].band == node.band;
    band.oldest = has_newer ? node.newer : kNoSlot;
  }
  if (node.newer != kNoSlot) nodes_[node.newer].older = node.older;
  if (node.older != kNoSlot) nodes_[node.older].newer = node.newer;
  if (newest_ == slot) newest_ = node.older;
  node.newer = node.older = kNoSlot;
}

void ReuseStack::PushNewest(Slot slot) {
  Node& node = nodes_[slot];
  node.band = 0;
  node.older = newest_;
  if (newest_ != kNoSlot) nodes_[newest_].newer = slot;
  newest_ = slot;
  bands_[0].bytes += node.bytes;
  if (bands_[0].oldest == kNoSlot) bands_[0].oldest = slot;
}

void ReuseStack::Settle() {
  for (int b = 0; b < kBandCount; ++b) {
    Band& band = bands_[b];
    while (band.bytes > BandBytes(b) || (b == kBandCount - 1 && sampled_count() > kSampleMax)) {
      const Slot slot = band.oldest;
      if (slot == kNoSlot || slot == newest_) break;  // the newest stays, however large it is
      if (b == kBandCount - 1) {
        Forget(slot);
        continue;
      }
      Node& node = nodes_[slot];
      const bool has_newer = node.newer != kNoSlot && nodes_[node.newer].band == b;
      band.bytes -= node.bytes;
      band.oldest = has_newer ? node.newer : kNoSlot;
      node.band = b + 1;
      Band& next = bands_[b + 1];
      next.bytes += node.bytes;
      if (next.oldest == kNoSlot) next.oldest = slot;
    }
  }
}

void ReuseStack::Forget(Slot slot) {
  Unlink(slot);
  index_.erase(nodes_[slot].fingerprint);
  free_.push_back(slot);
}

}  // namespace pagoda::policy
