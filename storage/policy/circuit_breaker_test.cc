// Goal: the breaker opens when it must, never because of stale news, and always finds its way back.
// Method: every edge of the state machine, then seeded runs against a disk that is sick or not.
#include "storage/policy/circuit_breaker.h"

#include <gtest/gtest.h>

#include <random>

namespace pagoda::policy {
namespace {

using absl::Milliseconds;
using absl::Seconds;
constexpr auto kOk = BreakerOutcome::kOk;
constexpr auto kFailed = BreakerOutcome::kFailed;
constexpr auto kHung = BreakerOutcome::kHung;
constexpr auto kNeutral = BreakerOutcome::kNeutral;

class CircuitBreakerTest : public ::testing::Test {
 protected:
  bool Report(BreakerOutcome outcome, absl::Duration took = Milliseconds(1)) {
    return breaker_.Report(breaker_.epoch(), outcome, took, now_);
  }
  void Trip() {
    while (breaker_.closed()) Report(kFailed);
  }
  CircuitBreaker breaker_{CircuitBreaker::Options{}};
  absl::Duration now_ = Seconds(1000);
};

TEST_F(CircuitBreakerTest, OpensAfterFailuresInARowOnly) {
  for (int i = 0; i < 10; ++i) {
    EXPECT_FALSE(Report(kFailed));
    EXPECT_FALSE(Report(kFailed));
    EXPECT_FALSE(Report(kNeutral));  // neither a failure nor a success
    EXPECT_FALSE(Report(kOk));
  }
  EXPECT_FALSE(Report(kFailed));
  EXPECT_FALSE(Report(kNeutral));
  EXPECT_FALSE(Report(kFailed));
  EXPECT_TRUE(Report(kFailed));
  EXPECT_EQ(breaker_.state(), BreakerState::kOpen);
  EXPECT_EQ(breaker_.reason(), BreakerReason::kErrors);
  EXPECT_EQ(breaker_.trip_count(BreakerReason::kErrors), 1);
}

TEST_F(CircuitBreakerTest, SlowSuccessesOpenItToo) {
  EXPECT_FALSE(Report(kOk, Seconds(2)));  // exactly the limit is not slow
  EXPECT_FALSE(Report(kOk, Seconds(3)));
  EXPECT_FALSE(Report(kOk, Seconds(3)));
  EXPECT_TRUE(Report(kOk, Seconds(3)));
  EXPECT_EQ(breaker_.reason(), BreakerReason::kSlow);
}

TEST_F(CircuitBreakerTest, OneHangingOperationOpensAtOnce) {
  EXPECT_TRUE(Report(kHung, Seconds(9)));
  EXPECT_EQ(breaker_.reason(), BreakerReason::kHung);
}

TEST_F(CircuitBreakerTest, StaleOutcomesChangeNothing) {
  const CircuitBreaker::Epoch before = breaker_.epoch();
  Trip();
  EXPECT_FALSE(breaker_.Report(before, kOk, Milliseconds(1), now_));
  EXPECT_FALSE(Report(kOk));
  EXPECT_EQ(breaker_.state(), BreakerState::kOpen);
  now_ += Seconds(5);
  ASSERT_TRUE(breaker_.BeginProbe(now_));
  ASSERT_TRUE(breaker_.EndProbe(breaker_.epoch(), true, now_));
  for (int i = 0; i < 5; ++i) {
    EXPECT_FALSE(breaker_.Report(before, kFailed, Milliseconds(1), now_));
    EXPECT_FALSE(breaker_.Report(before, kHung, Milliseconds(1), now_));
  }
  EXPECT_TRUE(breaker_.closed());
}

TEST_F(CircuitBreakerTest, ProbesOneAtATimeAndThePeriodDoubles) {
  Trip();
  for (int64_t period : {5, 10, 20, 40, 80, 160, 300, 300}) {
    EXPECT_EQ(breaker_.open_period(), Seconds(period));
    EXPECT_FALSE(breaker_.BeginProbe(now_ + Seconds(period) - Milliseconds(1)));
    now_ += Seconds(period);
    EXPECT_TRUE(breaker_.BeginProbe(now_));
    EXPECT_FALSE(breaker_.BeginProbe(now_));
    EXPECT_TRUE(breaker_.EndProbe(breaker_.epoch(), false, now_));
  }
  now_ += Seconds(300);
  ASSERT_TRUE(breaker_.BeginProbe(now_));
  EXPECT_TRUE(breaker_.EndProbe(breaker_.epoch(), true, now_));
  EXPECT_TRUE(breaker_.closed());
  Trip();
  EXPECT_EQ(breaker_.open_period(), Seconds(5));  // starts over
}

TEST_F(CircuitBreakerTest, AProbeThatHangsIsAFailureAndItsLateAnswerIsStale) {
  Trip();
  now_ += Seconds(5);
  ASSERT_TRUE(breaker_.BeginProbe(now_));
  const CircuitBreaker::Epoch probe = breaker_.epoch();
  now_ += Seconds(5) + Milliseconds(1);
  EXPECT_FALSE(breaker_.BeginProbe(now_));
  EXPECT_EQ(breaker_.state(), BreakerState::kOpen);
  EXPECT_EQ(breaker_.open_period(), Seconds(10));
  EXPECT_FALSE(breaker_.EndProbe(probe, true, now_));
  now_ += Seconds(10);
  ASSERT_TRUE(breaker_.BeginProbe(now_));
  EXPECT_FALSE(breaker_.EndProbe(probe, true, now_));
  EXPECT_TRUE(breaker_.EndProbe(breaker_.epoch(), true, now_));
}

TEST_F(CircuitBreakerTest, SeededRunsHealWithinOnePeriodOfTheDisk) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    std::mt19937 rng(seed);
    CircuitBreaker breaker{CircuitBreaker::Options{}};
    absl::Duration now = Seconds(1);
    bool sick = false;
    for (int step = 0; step < 2000; ++step) {
      now += Milliseconds(rng() % 2000);
      if (rng() % 200 == 0) sick = !sick;
      if (breaker.closed()) {
        breaker.Report(breaker.epoch(), sick ? kFailed : kOk, Milliseconds(1), now);
      } else if (breaker.BeginProbe(now)) {
        ASSERT_TRUE(breaker.EndProbe(breaker.epoch(), !sick, now)) << seed;
        ASSERT_EQ(breaker.closed(), !sick) << seed;
      }
      ASSERT_LE(breaker.open_period(), Seconds(300)) << seed;
    }
    now += Seconds(300);  // healthy now: one probe is enough
    if (!breaker.closed()) {
      ASSERT_TRUE(breaker.BeginProbe(now)) << seed;
      ASSERT_TRUE(breaker.EndProbe(breaker.epoch(), true, now)) << seed;
    }
    ASSERT_TRUE(breaker.closed()) << seed;
  }
}

}  // namespace
}  // namespace pagoda::policy
