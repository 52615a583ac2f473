// Goal: sizes in flags and config files mean what people think. Method: a table of accepted and
// refused texts; every formatted size parses back to itself.
#include "storage/base/byte_size.h"

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

TEST(ByteSizeTest, Accepts) {
  const std::pair<const char*, int64_t> table[] = {
      {"0", 0},
      {"1", 1},
      {"17B", 17},
      {"4096", 4096},
      {"1KiB", 1024},
      {"1K", 1024},
      {"512MiB", int64_t{512} << 20},
      {"512 MiB", int64_t{512} << 20},
      {" 4gib ", int64_t{4} << 30},
      {"1.5GiB", int64_t{3} << 29},
      {"2T", int64_t{2} << 40},
      {"8388607TiB", int64_t{8388607} << 40},
      {"9223372036854775807", INT64_MAX},
  };
  for (const auto& [text, bytes] : table) {
    const absl::StatusOr<int64_t> parsed = ParseByteSize(text);
    PAGODA_ASSERT_OK(parsed) << text;
    EXPECT_EQ(*parsed, bytes) << text;
  }
}

TEST(ByteSizeTest, Refuses) {
  for (const char* text : {"", " ", "GiB", "-1", "1GB2", "1e3", "0x10", "inf", "nan", "1.0000001K",
                           "1..5G", "9223372036854775808", "8388608TiB", "1 2", "1PiB"}) {
    EXPECT_THAT(ParseByteSize(text), StatusIs(absl::StatusCode::kInvalidArgument, "is not a size"))
        << text;
  }
}

TEST(ByteSizeTest, FormattedSizesParseBack) {
  for (int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{1000}, int64_t{1024}, int64_t{1536},
                        int64_t{1} << 30, (int64_t{1} << 30) + 1, int64_t{20} << 30, INT64_MAX}) {
    const absl::StatusOr<int64_t> parsed = ParseByteSize(FormatByteSize(bytes));
    PAGODA_ASSERT_OK(parsed) << bytes;
    EXPECT_EQ(*parsed, bytes);
  }
  EXPECT_EQ(FormatByteSize(int64_t{1} << 30), "1GiB");
  EXPECT_EQ(FormatByteSize(1536), "1536");
}

}  // namespace
}  // namespace pagoda
