// Goal: shapes and amounts are what their words say, and pages have the bytes that the daemon
// accounts. Method: known models by hand, the parts of a page added up, each mistake once.
#include "client/cli/model_shape.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

using ::testing::HasSubstr;

TEST(ModelShapeTest, NamesAndNumbers) {
  const auto llama = ParseModelShape("llama-3-8b", 64);
  PAGODA_ASSERT_OK(llama);
  EXPECT_TRUE(*llama == (kernels::PageShape{32, 8, 128, 64}));
  EXPECT_EQ(RawTokenBytes(*llama), 128 << 10);
  EXPECT_TRUE(*ParseModelShape("80:8:128", 256) == *ParseModelShape("llama-3-70b", 256));
}

TEST(ModelShapeTest, WrongShapesAreNamed) {
  EXPECT_THAT(std::string(ParseModelShape("gpt-5", 64).status().message()),
              HasSubstr("known are llama-3-8b, llama-3-70b"));
  for (const char* const spec : {"", "32:8", "32:8:128:1", "a:b:c", "0:8:128", "32:8:20"}) {
    EXPECT_FALSE(ParseModelShape(spec, 64).ok()) << spec;
  }
}

TEST(ModelShapeTest, StoredPagesCountHeaderScalesAndPadding) {
  const auto shape = ParseModelShape("llama-3-8b", 64);
  PAGODA_ASSERT_OK(shape);
  const int64_t raw = 64 * RawTokenBytes(*shape);
  const int64_t raw16 = StoredPageBytes(*shape, Precision::kRaw16);
  const int64_t q8 = StoredPageBytes(*shape, Precision::kQ8);
  const int64_t q4 = StoredPageBytes(*shape, Precision::kQ4);
  EXPECT_EQ(raw16 % 4096, 0);
  EXPECT_GT(raw16, raw);  // the header
  EXPECT_LE(raw16, raw + 8192);
  EXPECT_GT(q8, raw / 2);  // scales
  EXPECT_LT(q8, raw * 6 / 10);
  EXPECT_GT(q4, raw / 4);
  EXPECT_LT(q4, q8 * 6 / 10);
  // Small tiles are padded to 4 KiB segments.
  const auto tiny = ParseModelShape("1:1:16", 32);
  PAGODA_ASSERT_OK(tiny);
  EXPECT_EQ(StoredPageBytes(*tiny, Precision::kRaw16), 2 * 4096);
}

// What the precision ladder promises: shares of the same tokens in raw16, everything counted.
TEST(ModelShapeTest, SharesOfRaw16) {
  for (const char* const name : {"smollm2-135m", "llama-3-8b", "llama-3-70b", "qwen2.5-7b"}) {
    SCOPED_TRACE(name);
    const auto shape = ParseModelShape(name, 64);
    PAGODA_ASSERT_OK(shape);
    const auto raw = static_cast<double>(64 * RawTokenBytes(*shape));
    const double q4 = static_cast<double>(StoredPageBytes(*shape, Precision::kQ4)) / raw;
    const double q8 = static_cast<double>(StoredPageBytes(*shape, Precision::kQ8)) / raw;
    EXPECT_LE(q4, 0.28);
    EXPECT_LE(q8, 0.55);
    EXPECT_LE(static_cast<double>(StoredPageBytes(*shape, Precision::kQ3)) / raw, 0.22);
    EXPECT_LE(static_cast<double>(StoredPageBytes(*shape, Precision::kQ2)) / raw, 0.16);
    // 8192 tokens whose last 128 are raw16, and the page that the window cuts.
    const double exact = 3 * static_cast<double>(StoredPageBytes(*shape, Precision::kRaw16)) / raw;
    EXPECT_LE((125 * q4 + exact) / 128, 0.30);
    EXPECT_LE((125 * q8 + exact) / 128, 0.56);
  }
}

TEST(ModelShapeTest, Amounts) {
  EXPECT_EQ(*ParseAmount("1000"), 1000);
  EXPECT_EQ(*ParseAmount("3M"), 3'000'000);
  EXPECT_EQ(*ParseAmount("1.5k"), 1500);
  EXPECT_EQ(*ParseAmount("2KB"), 2000);
  EXPECT_EQ(*ParseAmount("64GiB"), int64_t{64} << 30);
  EXPECT_EQ(*ParseAmount("0.5Ti"), int64_t{1} << 39);
  for (const char* const text :
       {"", "B", "M", "-1", "0", "0.1", "1.5", "3X", "3iB", "nanG", "1e30T", "3 M x"}) {
    EXPECT_FALSE(ParseAmount(text).ok()) << text;
  }
}

}  // namespace
}  // namespace pagoda::cli
