// Goal: room is made exactly when it should be. Method: both sides of every mark.
#include "storage/policy/watermarks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "storage/base/testing/status_matchers.h"

namespace pagoda::policy {
namespace {

TEST(WatermarksTest, ValidatesTheirOrder) {
  const auto valid = [](double start, double stop, double hard) {
    return Watermarks{start, stop, hard}.Validate();
  };
  PAGODA_EXPECT_OK(Watermarks{}.Validate());
  PAGODA_EXPECT_OK(valid(0.5, 0.4, 1.0));
  const double nan = std::nan("");
  for (const Watermarks& bad :
       {Watermarks{0.5, 0.5, 0.9}, Watermarks{0.4, 0.5, 0.9}, Watermarks{0.9, 0.5, 0.9},
        Watermarks{0.9, 0.0, 0.95}, Watermarks{0.9, 0.5, 1.1}, Watermarks{nan, 0.5, 0.9},
        Watermarks{0.9, nan, 0.95}, Watermarks{0.9, 0.5, nan}}) {
    EXPECT_THAT(bad.Validate(), StatusIs(absl::StatusCode::kInvalidArgument, "stop < start"));
  }
}

TEST(WatermarksTest, ExcessBeginsAtStartAndGoesDownToStop) {
  const Watermarks marks;
  EXPECT_EQ(marks.ExcessBytes(0, 1000), 0);
  EXPECT_EQ(marks.ExcessBytes(849, 1000), 0);
  EXPECT_EQ(marks.ExcessBytes(850, 1000), 100);
  EXPECT_EQ(marks.ExcessBytes(1000, 1000), 250);
}

TEST(WatermarksTest, ShortBytesBeginBeyondHard) {
  const Watermarks marks;
  EXPECT_EQ(marks.ShortBytes(900, 50, 1000), 0);
  EXPECT_EQ(marks.ShortBytes(900, 51, 1000), 1);
  EXPECT_EQ(marks.ShortBytes(1000, 0, 1000), 50);
}

}  // namespace
}  // namespace pagoda::policy
