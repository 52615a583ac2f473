// Goal: one checksum on every machine. Method: published vectors, instruction against table at
// every length around the stream size, continuation and combination at every cut.
#include "storage/base/crc32c.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

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

TEST(Crc32cTest, InstructionEqualsTable) {
  const std::string text = RandomText(10000);
  for (size_t size : {0u, 1u, 7u, 8u, 9u, 3071u, 3072u, 3073u, 6144u, 9999u, 10000u}) {
    const ByteSpan bytes = AsBytes(text).subspan(0, size);
    EXPECT_EQ(Crc32c(bytes), Crc32cPortable(bytes)) << size;
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
