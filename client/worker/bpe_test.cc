// Goal: merges happen in order of rank, leftmost first, and the cache changes nothing. Method: a
// tiny vocabulary by hand; a naive quadratic merger over random words.
#include "client/worker/bpe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>

#include "client/worker/splitmix64.h"

namespace pagoda {
namespace {

using ::testing::ElementsAre;

std::array<uint32_t, 256> IdentityBytes() {
  std::array<uint32_t, 256> tokens;
  for (uint32_t i = 0; i < 256; ++i) tokens[i] = i;
  return tokens;
}

std::vector<uint32_t> Encode(const Bpe& bpe, absl::string_view word) {
  std::vector<uint32_t> tokens;
  bpe.Encode(word, &tokens);
  return tokens;
}

TEST(BpeTest, LowestRankThenLeftmost) {
  Bpe bpe(IdentityBytes());
  bpe.AddMerge('b', 'c', 300);
  bpe.AddMerge('a', 'b', 301);
  bpe.AddMerge('a', 'a', 302);
  bpe.AddMerge(301, 'c', 303);
  bpe.AddMerge('a', 300, 304);
  EXPECT_THAT(Encode(bpe, "abc"), ElementsAre(304));
  EXPECT_THAT(Encode(bpe, "aaa"), ElementsAre(302, 'a'));
  EXPECT_THAT(Encode(bpe, "abab"), ElementsAre(301, 301));
  EXPECT_THAT(Encode(bpe, "xyz"), ElementsAre('x', 'y', 'z'));
  EXPECT_TRUE(Encode(bpe, "").empty());
}

TEST(BpeTest, BytesWithoutATokenVanish) {
  std::array<uint32_t, 256> bytes = IdentityBytes();
  bytes['?'] = Bpe::kNoToken;
  Bpe bpe(bytes);
  bpe.AddMerge('a', 'b', 300);
  EXPECT_THAT(Encode(bpe, "?a?b?"), ElementsAre(300));
  EXPECT_TRUE(Encode(bpe, "???").empty());
}

// Scans for the best pair again after every merge.
std::vector<uint32_t> Naive(const std::vector<std::pair<uint32_t, uint32_t>>& merges,
                            absl::string_view word) {
  std::map<std::pair<uint32_t, uint32_t>, size_t> ranks;
  for (size_t i = 0; i < merges.size(); ++i) ranks.emplace(merges[i], i);
  std::vector<uint32_t> tokens;
  for (const char c : word) tokens.push_back(static_cast<uint8_t>(c));
  while (true) {
    size_t best = merges.size();
    size_t place = 0;
    for (size_t i = 0; i + 1 < tokens.size(); ++i) {
      const auto it = ranks.find({tokens[i], tokens[i + 1]});
      if (it != ranks.end() && it->second < best) {
        best = it->second;
        place = i;
      }
    }
    if (best == merges.size()) return tokens;
    tokens[place] = static_cast<uint32_t>(1000 + best);
    tokens.erase(tokens.begin() + static_cast<int64_t>(place) + 1);
  }
}

TEST(BpeTest, EqualsTheNaiveMergerCachedOrNot) {
  SplitMix64 random(3);
  std::vector<std::pair<uint32_t, uint32_t>> merges;
  Bpe bpe(IdentityBytes());
  std::map<std::pair<uint32_t, uint32_t>, bool> seen;
  while (merges.size() < 60) {
    const auto part = [&]() -> uint32_t {
      if (!merges.empty() && random.Below(2) == 1) return 1000 + random.Below(merges.size());
      return 'a' + random.Below(4);
    };
    const std::pair<uint32_t, uint32_t> pair = {part(), part()};
    if (!seen.emplace(pair, true).second) continue;
    bpe.AddMerge(pair.first, pair.second, static_cast<uint32_t>(1000 + merges.size()));
    merges.push_back(pair);
  }
  for (int i = 0; i < 3000; ++i) {
    std::string word;
    const uint64_t size = random.Below(i % 10 == 0 ? 200 : 20);
    for (uint64_t k = 0; k < size; ++k) word += static_cast<char>('a' + random.Below(4));
    const std::vector<uint32_t> expected = Naive(merges, word);
    ASSERT_EQ(Encode(bpe, word), expected) << word;
    ASSERT_EQ(Encode(bpe, word), expected) << word << " from the cache";
  }
}

TEST(BpeTest, AFullCacheStartsAnew) {
  Bpe bpe(IdentityBytes());
  for (size_t i = 0; i < Bpe::kCachedWordsMax + 10; ++i) {
    const std::string word = std::to_string(i);
    ASSERT_EQ(Encode(bpe, word).size(), word.size());
  }
  EXPECT_THAT(Encode(bpe, "17"), ElementsAre('1', '7'));
}

TEST(BpeTest, LongWordsAreFast) {
  Bpe bpe(IdentityBytes());
  uint32_t last = 'a';
  for (uint32_t i = 0; i < 16; ++i) {
    bpe.AddMerge(last, last, 300 + i);
    last = 300 + i;
  }
  EXPECT_EQ(Encode(bpe, std::string(1 << 18, 'a')).size(), 4u);
}

}  // namespace
}  // namespace pagoda
