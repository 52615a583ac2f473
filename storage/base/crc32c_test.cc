// Goal: one checksum on every machine. Method: published vectors, instruction against table at
// every length around the stream size, continuation and combination at every cut.
#include "storage/base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>
#include <vector>

namespace pagoda {
namespace {

std::string RandomText(size_t size) {
  std::mt19937 rng(7);
  std::string text(size, '\0');
  for (char& c : text) c = static_cast<char>(rng());
  return text;
}

TEST(Crc32cTest, PublishedVectors) {
  EXPECT_EQ(Crc32c(AsBytes("123456789")), 0xe3069283u);
  EXPECT_EQ(Crc32c(AsBytes(std::string(32, '\0'))), 0x8a9136aau);
  EXPECT_EQ(Crc32c(AsBytes(std::string(32, '\xff'))), 0x62a8ab43u);
  EXPECT_EQ(Crc32c({}), 0u);
}

TEST(Crc32cTest, EveryWayEqualsTheTable) {
  const std::string text = RandomText(40000);
  std::vector<size_t> sizes = {1535, 1536, 1537, 6144, 12287, 12288, 12289, 13824, 39999, 40000};
  for (size_t size = 0; size < 1100; ++size) sizes.push_back(size);
  for (const Crc32cWay& way : Crc32cWays()) {
    for (const size_t size : sizes) {
      const ByteSpan bytes = AsBytes(text).subspan(0, size);
      ASSERT_EQ(way.function(bytes, 0), Crc32cPortable(bytes)) << way.name << " " << size;
      ASSERT_EQ(way.function(bytes, 0x12345678), Crc32cPortable(bytes, 0x12345678))
          << way.name << " " << size;
    }
  }
}

TEST(Crc32cTest, ContinuesAndCombinesAtEveryCut) {
  const std::string text = RandomText(300);
  const uint32_t whole = Crc32c(AsBytes(text));
  for (size_t cut = 0; cut <= text.size(); ++cut) {
    const ByteSpan a = AsBytes(text).subspan(0, cut);
    const ByteSpan b = AsBytes(text).subspan(cut);
    EXPECT_EQ(Crc32c(b, Crc32c(a)), whole) << cut;
    EXPECT_EQ(Crc32cCombine(Crc32c(a), Crc32c(b), b.size()), whole) << cut;
  }
}

}  // namespace
}  // namespace pagoda
