// Goal: numbers read as intended, at both sides of each change of unit. Method: exact texts.
#include "client/cli/units.h"

#include <gtest/gtest.h>

#include <cmath>

namespace pagoda::cli {
namespace {

TEST(UnitsTest, Bytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes(1536), "1.5 KiB");
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(1 << 20), "1.0 MiB");
  EXPECT_EQ(FormatBytes(20.0 * (1 << 30)), "20.0 GiB");
  EXPECT_EQ(FormatBytes(std::ldexp(1.0, 70)), "1048576.0 PiB");
}

TEST(UnitsTest, Counts) {
  EXPECT_EQ(FormatCount(0), "0");
  EXPECT_EQ(FormatCount(999), "999");
  EXPECT_EQ(FormatCount(1000), "1,000");
  EXPECT_EQ(FormatCount(1234567), "1,234,567");
  EXPECT_EQ(FormatCount(-100), "-100");
  EXPECT_EQ(FormatCount(-1000), "-1,000");
}

TEST(UnitsTest, Seconds) {
  EXPECT_EQ(FormatSeconds(0), "0 us");
  EXPECT_EQ(FormatSeconds(0.000999), "999 us");
  EXPECT_EQ(FormatSeconds(0.001), "1.0 ms");
  EXPECT_EQ(FormatSeconds(0.0123), "12.3 ms");
  EXPECT_EQ(FormatSeconds(0.25), "250 ms");
  EXPECT_EQ(FormatSeconds(0.9999), "1.00 s");
  EXPECT_EQ(FormatSeconds(12.345), "12.35 s");
}

TEST(UnitsTest, Ages) {
  EXPECT_EQ(FormatAge(-1), "0 s");
  EXPECT_EQ(FormatAge(59.9), "59 s");
  EXPECT_EQ(FormatAge(60), "1 min 0 s");
  EXPECT_EQ(FormatAge(3599), "59 min 59 s");
  EXPECT_EQ(FormatAge(3600), "1 h 0 min");
  EXPECT_EQ(FormatAge(86399), "23 h 59 min");
  EXPECT_EQ(FormatAge(100000), "1 d 3 h");
}

TEST(UnitsTest, SharesAndRates) {
  EXPECT_EQ(FormatPercent(0.1234), "12.3 %");
  EXPECT_EQ(FormatPercent(-0.0005), "-0.1 %");
  EXPECT_EQ(FormatRate(1.234e9), "1.23 GB/s");
  EXPECT_EQ(FormatRate(999e6), "999.0 MB/s");
  EXPECT_EQ(FormatRate(0), "0.0 kB/s");
}

TEST(UnitsTest, BarsShowNonEmptyAndNonFull) {
  EXPECT_EQ(Bar(0, 4), "[----]");
  EXPECT_EQ(Bar(1e-9, 4), "[#---]");
  EXPECT_EQ(Bar(0.5, 4), "[##--]");
  EXPECT_EQ(Bar(0.999, 4), "[###-]");
  EXPECT_EQ(Bar(1, 4), "[####]");
  EXPECT_EQ(Bar(7, 4), "[####]");
  EXPECT_EQ(Bar(-1, 4), "[----]");
  EXPECT_EQ(Bar(std::nan(""), 4), "[----]");
}

}  // namespace
}  // namespace pagoda::cli
