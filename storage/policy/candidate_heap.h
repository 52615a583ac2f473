// Entries in the order of their keys, least first; equal keys in the order of ids. Entries are not
// taken out when they change or go: who pops one asks whether it still holds, and a heap that has
// become mostly stale is cleaned.
//
// Cost       Push, Pop: O(log n); Clean: O(n log n). 12 bytes a candidate
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "absl/functional/function_ref.h"
#include "storage/policy/eviction_policy.h"

namespace pagoda::policy {

class Candidate {
 public:
  Candidate(uint64_t key, EntryId id)
      : key_high_(static_cast<uint32_t>(key >> 32)),
        key_low_(static_cast<uint32_t>(key)),
        id_(id) {}
  uint64_t key() const { return (uint64_t{key_high_} << 32) | key_low_; }
  EntryId id() const { return id_; }
  bool operator>(const Candidate& other) const {
    return key() != other.key() ? key() > other.key() : id_ > other.id_;
  }

 private:
  uint32_t key_high_;  // in halves: 12 bytes instead of 16, for each of millions
  uint32_t key_low_;
  EntryId id_;
};

class CandidateHeap {
 public:
  void Push(const Candidate& candidate) {
    // By an eighth, not by doubling.
    if (heap_.size() == heap_.capacity()) heap_.reserve(heap_.size() + heap_.size() / 8 + 64);
    heap_.push_back(candidate);
    std::push_heap(heap_.begin(), heap_.end(), std::greater<>());
  }

  Candidate Pop() {  // REQUIRES: not empty
    std::pop_heap(heap_.begin(), heap_.end(), std::greater<>());
    const Candidate least = heap_.back();
    heap_.pop_back();
    return least;
  }

  // Keeps one candidate of each entry that has a key, under that key.
  void Clean(absl::FunctionRef<std::optional<uint64_t>(EntryId)> key_of) {
    std::sort(heap_.begin(), heap_.end(),
              [](const Candidate& a, const Candidate& b) { return a.id() < b.id(); });
    const auto same_id = [](const Candidate& a, const Candidate& b) { return a.id() == b.id(); };
    heap_.erase(std::unique(heap_.begin(), heap_.end(), same_id), heap_.end());
    size_t kept = 0;
    for (const Candidate& candidate : heap_) {
      const std::optional<uint64_t> key = key_of(candidate.id());
      if (key.has_value()) heap_[kept++] = {*key, candidate.id()};
    }
    heap_.erase(heap_.begin() + static_cast<std::ptrdiff_t>(kept), heap_.end());
    std::make_heap(heap_.begin(), heap_.end(), std::greater<>());
  }
  // Worth cleaning, where this many entries may stand in it. Cleaned then, it costs O(log n) a
  // push.
  bool MostlyStale(int64_t entry_count) const {
    return heap_.size() > 64 && heap_.size() > 2 * static_cast<size_t>(entry_count);
  }

  bool empty() const { return heap_.empty(); }
  int64_t memory_bytes() const {
    return static_cast<int64_t>(heap_.capacity() * sizeof(Candidate));
  }
  const std::vector<Candidate>& candidates() const { return heap_; }

 private:
  std::vector<Candidate> heap_;
};

}  // namespace pagoda::policy
