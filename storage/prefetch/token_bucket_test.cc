// Goal: over any stretch of time no more passes than rate and burst allow, and nothing starves.
// Method: cases by hand, and random items checked against the bound at every moment.
#include "storage/prefetch/token_bucket.h"

#include <gtest/gtest.h>

#include <random>

namespace pagoda::prefetch {
namespace {

TEST(TokenBucketTest, AnItemLargerThanTheBurstPassesAndIsPaidBack) {
  TokenBucket bucket(/*bytes_per_second=*/100, /*saved_max=*/absl::Seconds(1));
  EXPECT_TRUE(bucket.Open(absl::ZeroDuration()));
  bucket.Take(350);
  EXPECT_FALSE(bucket.Open(absl::ZeroDuration()));
  EXPECT_FALSE(bucket.Open(absl::Seconds(2.4)));
  EXPECT_TRUE(bucket.Open(absl::Seconds(2.6)));
  EXPECT_TRUE(bucket.Open(absl::Seconds(1)));  // a clock that goes back gives nothing
}

TEST(TokenBucketTest, NeverMoreThanRateBurstAndOneItem) {
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    std::mt19937 rng(seed);
    TokenBucket bucket(1000, absl::Milliseconds(500));
    absl::Duration now = absl::Seconds(100);
    const absl::Duration start = now;
    int64_t taken = 0;
    for (int step = 0; step < 2000; ++step) {
      now += absl::Milliseconds(rng() % 50);
      if (!bucket.Open(now)) continue;
      const int64_t bytes = 1 + rng() % 200;
      bucket.Take(bytes);
      taken += bytes;
      ASSERT_LE(taken, absl::ToDoubleSeconds(now - start) * 1000 + 500 + 200) << "seed " << seed;
    }
    EXPECT_GE(taken, absl::ToDoubleSeconds(now - start) * 1000 * 0.9);
  }
}

}  // namespace
}  // namespace pagoda::prefetch
