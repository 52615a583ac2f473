// Goal: over any time no more passes than rate x time + burst, and no piece waits longer than it
// must. Method: edges, then a seeded run that obeys every answer.
#include "storage/policy/token_bucket.h"

#include <gtest/gtest.h>

#include <random>

namespace pagoda::policy {
namespace {

TEST(TokenBucketTest, NoRateMeansNoLimit) {
  TokenBucket bucket(0, 1);
  EXPECT_EQ(bucket.Take(int64_t{1} << 40, absl::Seconds(1)), absl::ZeroDuration());
  EXPECT_EQ(bucket.Take(int64_t{1} << 40, absl::Seconds(1)), absl::ZeroDuration());
}

TEST(TokenBucketTest, ABurstPassesAndWhatFollowsWaits) {
  TokenBucket bucket(1000, 500);
  absl::Duration now = absl::Seconds(100);
  EXPECT_EQ(bucket.Take(500, now), absl::ZeroDuration());
  EXPECT_EQ(bucket.Take(1000, now), absl::ZeroDuration());  // the bucket was just empty
  EXPECT_EQ(bucket.Take(1, now), absl::Seconds(1));
  now += absl::Seconds(10);  // full again, not more than full
  EXPECT_EQ(bucket.Take(600, now), absl::ZeroDuration());
  EXPECT_EQ(bucket.Take(1, now), absl::Milliseconds(100));
}

TEST(TokenBucketTest, SeededRunKeepsTheRate) {
  std::mt19937 rng(3);
  TokenBucket bucket(int64_t{100} << 20, int64_t{16} << 20);
  absl::Duration now = absl::Seconds(5);
  const absl::Duration begin = now;
  int64_t bytes = 0;
  for (int i = 0; i < 5000; ++i) {
    const auto piece = static_cast<int64_t>(rng() % (4 << 20));
    now += bucket.Take(piece, now);
    bytes += piece;
  }
  const double seconds = absl::ToDoubleSeconds(now - begin);
  const double rate = static_cast<double>(bytes) / (1 << 20) / seconds;
  EXPECT_GT(rate, 99);
  EXPECT_LT(rate, 101);
}

}  // namespace
}  // namespace pagoda::policy
