// Goal: no damaged record enters the directory. Method: flip every bit, cut at every length, store
// under another key, break each range with a valid checksum.
#include "storage/directory_record.h"

#include <gtest/gtest.h>

#include <functional>

#include "storage/base/testing/status_matchers.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

constexpr auto kLoss = absl::StatusCode::kDataLoss;

DirectoryRecord Good() {
  DirectoryRecord r = DirectoryRecordOf(HeaderOf(TestRoot(5).Child(9)));
  r.record.group = 2;
  r.scope_kind = ScopeKind::kGroup;
  r.recipe = CodeRecipe::kEmbedded8;
  r.precision = Precision::kQ8;
  r.fidelity = Precision::kQ4;
  r.backend_tag = 77;
  r.content_hash = {1, 2, 3, 4, 5, 6, 7, 8};
  return r;
}

TEST(DirectoryRecordTest, RoundTrip) {
  const DirectoryRecord record = Good();
  const std::string bytes = EncodeDirectoryRecord(record);
  EXPECT_EQ(bytes.size(), DirectoryRecord::kEncodedBytes);
  const auto decoded = DecodeDirectoryRecord(record.record, AsBytes(bytes));
  PAGODA_ASSERT_OK(decoded);
  EXPECT_EQ(*decoded, record);
}

TEST(DirectoryRecordTest, EveryFlippedBitAndEveryOtherLengthIsRefused) {
  const DirectoryRecord record = Good();
  const std::string good = EncodeDirectoryRecord(record);
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_THAT(DecodeDirectoryRecord(record.record, AsBytes(bad)), StatusIs(kLoss)) << bit;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    ASSERT_THAT(DecodeDirectoryRecord(record.record, AsBytes(good.substr(0, size))),
                StatusIs(kLoss))
        << size;
  }
  EXPECT_THAT(DecodeDirectoryRecord(record.record, AsBytes(good + '\0')), StatusIs(kLoss));
}

TEST(DirectoryRecordTest, AnotherKeyIsRefused) {
  const DirectoryRecord record = Good();
  const std::string bytes = EncodeDirectoryRecord(record);
  RecordKey other = record.record;
  other.head_begin = 1;
  EXPECT_THAT(DecodeDirectoryRecord(other, AsBytes(bytes)), StatusIs(kLoss));
}

TEST(DirectoryRecordTest, AnotherVersionIsNamed) {
  const DirectoryRecord record = Good();
  std::string longer = EncodeDirectoryRecord(record) + "more fields";
  longer[0] = 1;
  EXPECT_THAT(DecodeDirectoryRecord(record.record, AsBytes(longer)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "version 1, this build reads 2"));
}

TEST(DirectoryRecordTest, FieldsOutOfRangeAreRefused) {
  const std::vector<std::function<void(DirectoryRecord&)>> changes = {
      [](DirectoryRecord& r) { r.scope_kind = static_cast<ScopeKind>(0); },
      [](DirectoryRecord& r) { r.scope_kind = static_cast<ScopeKind>(4); },
      [](DirectoryRecord& r) { r.bytes = 0; },
      [](DirectoryRecord& r) { r.bytes = -1; },
      [](DirectoryRecord& r) { r.bytes = (int64_t{1} << 38) + 1; },  // sums would overflow
      [](DirectoryRecord& r) { r.fidelity = Precision::kNone; },
      [](DirectoryRecord& r) { r.precision = static_cast<Precision>(7); },
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    DirectoryRecord record = Good();
    changes[i](record);
    EXPECT_THAT(DecodeDirectoryRecord(record.record, AsBytes(EncodeDirectoryRecord(record))),
                StatusIs(kLoss))
        << i;
  }
}

}  // namespace
}  // namespace pagoda
