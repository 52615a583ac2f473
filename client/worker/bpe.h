// Byte-pair merging of one word: joins neighbours by the rank of their pair, lowest first, leftmost
// first among equals, until no pair is left. Cutting text into words is pre_tokenizer.h.
//
// A byte that has no token of its own vanishes, as in Hugging Face's BPE without an unknown token:
// its neighbours then touch (SmolLM2 has no token for U+0004, for example).
//
// Threads    any thread, at the same time; the word cache is guarded
// Limits     words below 2^31 bytes; the cache holds 65,536 words of at most 64 bytes and starts
// anew
//            when it is full
// Cost       O(n log n) per word; a cached word is one look-up
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"

namespace pagoda {

class Bpe {
 public:
  static constexpr uint32_t kNoToken = 0xffffffff;
  static constexpr size_t kCachedWordsMax = 65536;
  static constexpr size_t kCachedWordBytesMax = 64;

  // Token of each single byte, or kNoToken.
  explicit Bpe(const std::array<uint32_t, 256>& byte_tokens) : byte_tokens_(byte_tokens) {}

  // The pair (left, right) becomes `merged`. Calls come in order of rank, best first; before the
  // first Encode only. A pair added twice keeps its later rank.
  void AddMerge(uint32_t left, uint32_t right, uint32_t merged);

  // Appends the tokens of `word`.
  void Encode(absl::string_view word, std::vector<uint32_t>* tokens) const
      ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Merge {
    uint32_t rank;
    uint32_t merged;
  };

  std::vector<uint32_t> MergeWord(absl::string_view word) const;

  // Constant after the last AddMerge().
  const std::array<uint32_t, 256> byte_tokens_;
  absl::flat_hash_map<std::pair<uint32_t, uint32_t>, Merge> merges_;
  uint32_t next_rank_ = 0;

  // Guarded by mutex_.
  mutable absl::Mutex mutex_;
  mutable absl::flat_hash_map<std::string, std::vector<uint32_t>> cache_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda
