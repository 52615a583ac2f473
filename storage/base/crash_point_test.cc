// Goal: an armed place ends the process the asked time it is passed, and nothing else does.
// Method: death tests, and every malformed specification.
#include "storage/base/crash_point.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

TEST(CrashPointTest, UnarmedPlacesDoNothing) {
  PAGODA_ASSERT_OK(ArmCrashPoint(""));
  for (int i = 0; i < kCrashAtCount; ++i) CrashPoint(static_cast<CrashAt>(i));
}

TEST(CrashPointDeathTest, EveryPlaceEndsTheProcess) {
  for (int i = 0; i < kCrashAtCount; ++i) {
    const auto place = static_cast<CrashAt>(i);
    EXPECT_EXIT(
        {
          if (!ArmCrashPoint(CrashAtName(place)).ok()) _exit(1);
          CrashPoint(static_cast<CrashAt>((i + 1) % kCrashAtCount));  // another one: no effect
          CrashPoint(place);
          _exit(0);
        },
        ::testing::ExitedWithCode(kCrashExitCode), "crash point reached");
  }
}

TEST(CrashPointDeathTest, CountsPasses) {
  const auto passes = [](int count) {
    if (!ArmCrashPoint("ssd_put:3").ok()) _exit(1);
    for (int i = 0; i < count; ++i) CrashPoint(CrashAt::kSsdPut);
    _exit(0);
  };
  EXPECT_EXIT(passes(2), ::testing::ExitedWithCode(0), "");
  EXPECT_EXIT(passes(3), ::testing::ExitedWithCode(kCrashExitCode), "");
}

TEST(CrashPointTest, RefusesWhatItDoesNotKnow) {
  for (const char* spec : {"nowhere", "ssd_put:", "ssd_put:0", "ssd_put:-1", "ssd_put:x",
                           "ssd_put:1:2", ":1", "SSD_PUT", " ssd_put"}) {
    EXPECT_THAT(ArmCrashPoint(spec), StatusIs(absl::StatusCode::kInvalidArgument)) << spec;
  }
  CrashPoint(CrashAt::kSsdPut);  // A refused specification arms nothing.
}

}  // namespace
}  // namespace pagoda
