// Goal: no damaged header is ever accepted. Method: flip every bit, cut at every length, and break
// each rule of the tables with a valid checksum.
#include "storage/base/page_header.h"

#include <gtest/gtest.h>

#include <functional>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

PageHeader Good() {
  PageHeader h;
  h.identity.bytes[0] = 1;
  h.record = {KeyOf(PageKey{}, {1, 2}), 0, 0, 3};
  h.parent.bytes[5] = 9;
  h.parent_is_root = true;
  h.scope = ScopeIdOf({ScopeKind::kGroup, "g"});
  h.scope_kind = ScopeKind::kGroup;
  h.fidelity = Precision::kQ4;
  h.page_tokens = 2;
  h.base_position = 128;
  h.layer_count = 4;
  h.head_dim = 64;
  h.rotation = Rotation::kHadamardV1;
  h.rope_theta = 100000;
  h.recipe = CodeRecipe::kEmbedded8;
  h.backend_tag = 77;
  h.created_unix_seconds = 5;
  h.planes = {{PlaneKind::kCodes, Tensor::kK, 4, 4, PlaneStorage::kInline, 0, 4, 0, 3, 0, 0, 0, 2},
              {PlaneKind::kCodes, Tensor::kV, 4, 4, PlaneStorage::kInline, 0, 4, 0, 3, 0, 0, 2, 1}};
  h.segments = {{0, 100, 1, 0, 2, {}}, {0, 4096, 2, 2, 2, {}}, {0, 4097, 3, 0, 4, {}}};
  h.token_ids = {1, 2};
  AssignOffsets(h);
  return h;
}

TEST(PageHeaderTest, RoundTrip) {
  const PageHeader h = Good();
  const std::string bytes = EncodePageHeader(h);
  EXPECT_EQ(static_cast<int64_t>(bytes.size()), h.header_bytes());
  EXPECT_EQ(bytes.size(), 4096u);
  const auto decoded = DecodePageHeader(AsBytes(bytes + "trailing planes"));
  PAGODA_ASSERT_OK(decoded);
  EXPECT_EQ(*decoded, h);
  EXPECT_EQ(h.stored_bytes(), 4096 + 4096 + 4096 + 8192);
}

TEST(PageHeaderTest, EveryFlippedBitAndEveryTruncationIsRejected) {
  const std::string good = EncodePageHeader(Good());
  for (size_t bit = 0; bit < good.size() * 8; ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    ASSERT_FALSE(DecodePageHeader(AsBytes(bad)).ok()) << "bit " << bit;
  }
  for (size_t size = 0; size < good.size(); ++size) {
    ASSERT_THAT(DecodePageHeader(AsBytes(good.substr(0, size))),
                StatusIs(absl::StatusCode::kDataLoss))
        << "size " << size;
  }
}

TEST(PageHeaderTest, BrokenRulesWithAValidChecksumAreRejected) {
  const auto kLoss = absl::StatusCode::kDataLoss;
  const auto kUnknown = absl::StatusCode::kFailedPrecondition;
  const std::vector<std::pair<std::function<void(PageHeader&)>, absl::StatusCode>> cases = {
      {[](PageHeader& h) { h.planes[0].kind = static_cast<PlaneKind>(12); }, kUnknown},
      {[](PageHeader& h) { h.planes[0].kind = static_cast<PlaneKind>(0); }, kUnknown},
      {[](PageHeader& h) { h.planes[0].tensor = static_cast<Tensor>(3); }, kUnknown},
      {[](PageHeader& h) { h.fidelity = static_cast<Precision>(5); }, kUnknown},
      {[](PageHeader& h) { h.recipe = static_cast<CodeRecipe>(2); }, kUnknown},
      {[](PageHeader& h) { h.rotation = static_cast<Rotation>(2); }, kUnknown},
      {[](PageHeader& h) { h.scope_kind = static_cast<ScopeKind>(0); }, kLoss},
      {[](PageHeader& h) { h.planes[0].layer_count = 5; }, kLoss},
      {[](PageHeader& h) { h.planes[0].layer_count = 0; }, kLoss},
      {[](PageHeader& h) { h.planes[0].segment_count = 1; }, kLoss},
      {[](PageHeader& h) { h.planes[1].segment_count = 2; }, kLoss},
      {[](PageHeader& h) { h.planes[1].first_segment = 1; }, kLoss},
      {[](PageHeader& h) { h.planes[1].bit_begin = 13; }, kLoss},
      {[](PageHeader& h) { h.planes.pop_back(); }, kLoss},
      {[](PageHeader& h) { h.segments[1].layer_begin = 1; }, kLoss},
      {[](PageHeader& h) { h.segments[1].layer_count = 1; }, kLoss},
      {[](PageHeader& h) { h.segments[1].offset += 4096; }, kLoss},
      {[](PageHeader& h) { h.segments[2].length = 0; }, kLoss},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    PageHeader h = Good();
    cases[i].first(h);
    EXPECT_THAT(DecodePageHeader(AsBytes(EncodePageHeader(h))), StatusIs(cases[i].second))
        << "case " << i;
  }
}

TEST(PageHeaderTest, AnotherVersionIsNamed) {
  std::string bytes = EncodePageHeader(Good());
  bytes[8] = 2;
  EXPECT_THAT(DecodePageHeader(AsBytes(bytes)),
              StatusIs(absl::StatusCode::kFailedPrecondition, "version 2, this build reads 1"));
}

TEST(PageHeaderTest, PrecisionIsTheLowestOfItsParts) {
  PlaneEntry k_hi = Good().planes[0];
  PlaneEntry v_hi = Good().planes[1];
  PlaneEntry k_lo = k_hi;
  PlaneEntry v_lo = v_hi;
  k_lo.bit_begin = v_lo.bit_begin = 0;
  PlaneEntry raw;
  EXPECT_EQ(PrecisionOf({}), Precision::kNone);
  EXPECT_EQ(PrecisionOf({k_hi}), Precision::kNone);
  EXPECT_EQ(PrecisionOf({k_hi, v_hi}), Precision::kQ4);
  EXPECT_EQ(PrecisionOf({k_hi, v_hi, k_lo}), Precision::kQ4);
  EXPECT_EQ(PrecisionOf({k_hi, v_hi, k_lo, v_lo}), Precision::kQ8);
  EXPECT_EQ(PrecisionOf({k_lo, v_lo}), Precision::kNone);
  EXPECT_EQ(PrecisionOf({raw}), Precision::kRaw16);
}

TEST(PageHeaderTest, ContentHashDependsOnLengthsAndChecksums) {
  std::vector<SegmentEntry> segments = Good().segments;
  const ContentHash hash = ContentHashOf(segments);
  segments[0].crc32c ^= 1;
  EXPECT_NE(ContentHashOf(segments), hash);
  segments[0].crc32c ^= 1;
  segments[0].length += 1;
  EXPECT_NE(ContentHashOf(segments), hash);
}

}  // namespace
}  // namespace pagoda
