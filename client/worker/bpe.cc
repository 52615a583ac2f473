#include "client/worker/bpe.h"

#include <queue>

#include "storage/base/check.h"

namespace pagoda {
namespace {

// One token of the word under work, in a doubly linked list over a vector.
struct Symbol {
  uint32_t token;
  int32_t previous;
  int32_t next;
  bool gone;  // merged into its left neighbour
};

// A pair that may be merged. It is stale when its symbols have changed since.
struct Candidate {
  uint32_t rank;
  int32_t left;
  uint32_t merged;

  // std::priority_queue pops the greatest: the best rank, then the leftmost.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : left > other.left;
  }
};

}  // namespace

void Bpe::AddMerge(uint32_t left, uint32_t right, uint32_t merged) {
  merges_.insert_or_assign({left, right}, Merge{next_rank_++, merged});
}

std::vector<uint32_t> Bpe::MergeWord(absl::string_view word) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (const char c : word) {
    const uint32_t token = byte_tokens_[static_cast<uint8_t>(c)];
    if (token == kNoToken) continue;
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({token, index - 1, index + 1, false});
  }
  if (symbols.empty()) return {};
  symbols.back().next = -1;

  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const auto it = merges_.find({symbols[left].token, symbols[symbols[left].next].token});
    if (it != merges_.end()) queue.push({it->second.rank, left, it->second.merged});
  };
  for (size_t i = 0; i + 1 < symbols.size(); ++i) consider(static_cast<int32_t>(i));

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.left];
    if (left.gone || left.next < 0) continue;
    Symbol& right = symbols[left.next];
    const auto it = merges_.find({left.token, right.token});
    if (it == merges_.end() || it->second.merged != best.merged) continue;  // stale
    left.token = best.merged;
    left.next = right.next;
    right.gone = true;
    if (right.next >= 0) symbols[right.next].previous = best.left;
    consider(left.previous);
    consider(best.left);
  }

  std::vector<uint32_t> tokens;
  for (int32_t i = 0; i >= 0; i = symbols[i].next) tokens.push_back(symbols[i].token);
  return tokens;
}

void Bpe::Encode(absl::string_view word, std::vector<uint32_t>* tokens) const {
  PAGODA_CHECK(word.size() < (uint64_t{1} << 31));
  if (word.size() > kCachedWordBytesMax) {
    const std::vector<uint32_t> merged = MergeWord(word);
    tokens->insert(tokens->end(), merged.begin(), merged.end());
    return;
  }
  {
    absl::MutexLock lock(&mutex_);
    const auto it = cache_.find(word);
    if (it != cache_.end()) {
      tokens->insert(tokens->end(), it->second.begin(), it->second.end());
      return;
    }
  }
  std::vector<uint32_t> merged = MergeWord(word);
  tokens->insert(tokens->end(), merged.begin(), merged.end());
  absl::MutexLock lock(&mutex_);
  if (cache_.size() >= kCachedWordsMax) cache_.clear();
  cache_.emplace(word, std::move(merged));
}

}  // namespace pagoda
