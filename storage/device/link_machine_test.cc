// Goal: every way through a connection ends in ready or in an abort, and a broken one rests before
// it is joined again. Method: each edge by hand, then seeded runs whose every step is checked.
#include "storage/device/link_machine.h"

#include <gtest/gtest.h>

#include <random>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

using Action = LinkMachine::Action;
using Phase = LinkMachine::Phase;

const LinkTimes kTimes{.join_timeout = absl::Seconds(10),
                       .pause_min = absl::Seconds(1),
                       .pause_max = absl::Seconds(4)};
constexpr absl::Duration kZero = absl::ZeroDuration();

TEST(LinkMachineTest, JoinsMovesAndIsReadyAgain) {
  LinkMachine link(kTimes);
  EXPECT_THAT(link.Start(kZero, absl::Seconds(1)), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(link.Step(kZero, true), Action::kWait);
  PAGODA_ASSERT_OK(link.Join(kZero));
  EXPECT_THAT(link.Join(kZero), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(link.Step(kZero, false), Action::kWait);
  EXPECT_EQ(link.phase(), Phase::kJoining);
  EXPECT_EQ(link.Step(kZero, true), Action::kWait);
  EXPECT_EQ(link.phase(), Phase::kReady);
  for (int i = 0; i < 2; ++i) {
    PAGODA_ASSERT_OK(link.Start(kZero, absl::Seconds(1)));
    EXPECT_THAT(link.Start(kZero, absl::Seconds(1)),
                StatusIs(absl::StatusCode::kFailedPrecondition));
    EXPECT_EQ(link.Step(kZero, false), Action::kWait);
    EXPECT_EQ(link.Step(kZero, true), Action::kFollow);
    EXPECT_EQ(link.Step(kZero, false), Action::kWait);
    EXPECT_EQ(link.Step(kZero, true), Action::kComplete);
    EXPECT_EQ(link.Step(absl::Hours(1), true), Action::kWait);  // being ready has no deadline
  }
}

TEST(LinkMachineTest, DeadlinesOnBothSides) {
  LinkMachine link(kTimes);
  PAGODA_ASSERT_OK(link.Join(kZero));
  EXPECT_EQ(link.Step(absl::Seconds(10) - absl::Nanoseconds(1), false), Action::kWait);
  EXPECT_EQ(link.Step(absl::Seconds(10), false), Action::kAbort);
  EXPECT_EQ(link.phase(), Phase::kBroken);
  EXPECT_THAT(link.fault(), StatusIs(absl::StatusCode::kDeadlineExceeded));
  EXPECT_THAT(link.Join(absl::Seconds(11) - absl::Nanoseconds(1)),
              StatusIs(absl::StatusCode::kUnavailable, "joins again in 1ns"));
  PAGODA_ASSERT_OK(link.Join(absl::Seconds(11)));
  EXPECT_EQ(link.Step(absl::Seconds(21), true), Action::kWait);  // it came, if late
  PAGODA_ASSERT_OK(link.Start(absl::Seconds(30), absl::Seconds(1)));
  EXPECT_EQ(link.Step(absl::Seconds(30), true), Action::kFollow);
  EXPECT_EQ(link.Step(absl::Seconds(31), false), Action::kAbort);
  EXPECT_EQ(link.phase(), Phase::kDraining);
  EXPECT_THAT(link.Join(absl::Hours(1)), StatusIs(absl::StatusCode::kFailedPrecondition));
  EXPECT_EQ(link.Step(absl::Hours(1), false), Action::kWait);  // memory has no deadline either
  EXPECT_EQ(link.Step(absl::Hours(1), true), Action::kRelease);
  EXPECT_EQ(link.phase(), Phase::kBroken);
}

TEST(LinkMachineTest, PausesGrowUntilATransferIsDone) {
  LinkMachine link(kTimes);
  absl::Duration now = kZero;
  const auto fail = [&] {
    PAGODA_EXPECT_OK(link.Join(now));
    EXPECT_EQ(link.Step(now, absl::UnavailableError("x")), Action::kAbort);
  };
  for (const int seconds : {1, 2, 4, 4}) {
    fail();
    EXPECT_FALSE(link.Join(now + absl::Seconds(seconds) - absl::Nanoseconds(1)).ok());
    now += absl::Seconds(seconds);
  }
  PAGODA_ASSERT_OK(link.Join(now));
  (void)link.Step(now, true);
  PAGODA_ASSERT_OK(link.Start(now, absl::Seconds(1)));
  (void)link.Step(now, true);
  EXPECT_EQ(link.Step(now, true), Action::kComplete);
  EXPECT_EQ(link.Step(now, absl::UnavailableError("idle peer died")), Action::kAbort);
  EXPECT_EQ(link.phase(), Phase::kBroken);
  PAGODA_EXPECT_OK(link.Join(now + absl::Seconds(1)));
}

TEST(LinkMachineTest, SeededRunsAbortOnceForEveryBrokenConnection) {
  for (uint32_t seed = 1; seed <= 50; ++seed) {
    std::mt19937 random(seed);
    LinkMachine link(kTimes);
    absl::Duration now = kZero;
    bool connected = false;
    bool requested = false;  // memory is held for one
    for (int step = 0; step < 2000; ++step) {
      now += absl::Milliseconds(random() % 500);
      if (random() % 3 == 0 && link.Join(now).ok()) {
        ASSERT_FALSE(connected);
        ASSERT_FALSE(requested);
        connected = true;
      }
      if (random() % 3 == 0 && link.Start(now, absl::Seconds(2)).ok()) {
        ASSERT_TRUE(connected);
        ASSERT_FALSE(requested);
        requested = true;
      }
      absl::StatusOr<bool> progress = random() % 2 == 0;
      if (random() % 20 == 0) progress = absl::UnavailableError("fault");
      switch (link.Step(now, progress)) {
        case Action::kWait:
          break;
        case Action::kFollow:
          ASSERT_TRUE(requested);
          break;
        case Action::kAbort:
          ASSERT_TRUE(connected);
          connected = false;
          ASSERT_EQ(link.phase() == Phase::kDraining, requested);
          break;
        case Action::kComplete:
        case Action::kRelease:
          ASSERT_TRUE(requested);
          requested = false;
          break;
      }
    }
  }
}

}  // namespace
}  // namespace pagoda
