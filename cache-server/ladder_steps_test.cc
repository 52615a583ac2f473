// Goal: at every moment a page may go exactly where its ladder's steps and its readers' needs say.
// Method: both sides of each edge by hand; all combinations against the rule in words.
#include <gtest/gtest.h>

#include "cache-server/ladder.h"

namespace pagoda {
namespace {

constexpr Precision kRaw16 = Precision::kRaw16;
constexpr Precision kQ8 = Precision::kQ8;
constexpr Precision kQ4 = Precision::kQ4;
constexpr PageNeed kNobody;

Ladder AllSteps() {
  Ladder ladder(kQ8);
  ladder.idle = kQ4;
  ladder.idle_after = absl::Minutes(10);
  ladder.pressure = kQ4;
  ladder.ssd = kQ4;
  return ladder;
}

TEST(LadderStepsTest, OneWordIsOneStep) {
  const Ladder ladder = kQ8;
  EXPECT_EQ(TargetPrecision(kNobody, ladder), kQ8);
  EXPECT_EQ(TargetPrecision(kNobody, ladder, absl::Hours(1000), /*pressure=*/true), kQ8);
  EXPECT_EQ(SsdPrecision(ladder, kRaw16), kRaw16);
  EXPECT_EQ(SsdPrecision(ladder, kQ4), kQ4);
  EXPECT_EQ(LadderText(ladder), "q8");
}

TEST(LadderStepsTest, StepsAreTakenAtTheirEdges) {
  const Ladder ladder = AllSteps();
  EXPECT_EQ(TargetPrecision(kNobody, ladder), kQ8);
  EXPECT_EQ(TargetPrecision(kNobody, ladder, absl::Minutes(10) - absl::Nanoseconds(1)), kQ8);
  EXPECT_EQ(TargetPrecision(kNobody, ladder, absl::Minutes(10)), kQ4);
  EXPECT_EQ(TargetPrecision(kNobody, ladder, absl::ZeroDuration(), /*pressure=*/true), kQ4);
  EXPECT_EQ(SsdPrecision(ladder, kRaw16), kQ4);
  EXPECT_EQ(SsdPrecision(ladder, kQ4), kQ4);
  EXPECT_EQ(LadderText(ladder), "q8, idle 10m q4, pressure q4, ssd q4");
}

TEST(LadderStepsTest, NoStepGoesBelowWhatSequencesNeed) {
  for (const Precision fresh : kStoredPrecisions) {
    for (const Precision step : kStoredPrecisions) {
      for (const Precision need :
           {Precision::kNone, Precision::kQ2, Precision::kQ3, kQ4, kQ8, kRaw16}) {
        for (int mask = 0; mask < 4; ++mask) {
          Ladder ladder(fresh);
          ladder.idle = step;
          ladder.idle_after = absl::Seconds(1);
          ladder.pressure = step;
          const bool idle = (mask & 1) != 0;
          const bool pressure = (mask & 2) != 0;
          const Precision lowest = (idle || pressure) ? std::min(fresh, step) : fresh;
          EXPECT_EQ(TargetPrecision({false, need}, ladder,
                                    idle ? absl::Seconds(1) : absl::ZeroDuration(), pressure),
                    std::max(lowest, need));
        }
      }
    }
  }
}

}  // namespace
}  // namespace pagoda
