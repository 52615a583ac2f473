// Goal: an answer's segments come layers outermost, its header lists exactly them, and lease ids
// carry what they must. Method: headers of our own planes, cut by layers and planes.
#include "cache-server/fetch_plan.h"

#include "cache-server/lease_token.h"
#include "kernels/page_layout.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

PageHeader HeaderAt(Precision precision, int32_t layers) {
  const kernels::PageShape shape = {layers, 8, 128, 64};  // one layer of raw16 is 256 KiB
  PageHeader header;
  header.record.head_count = 8;
  header.page_tokens = 64;
  header.layer_count = static_cast<uint16_t>(layers);
  header.head_dim = 128;
  if (precision != Precision::kRaw16) {
    header.rotation = Rotation::kHadamardV1;
    header.recipe = CodeRecipe::kEmbedded8;
  }
  kernels::AppendPlanes(precision, shape, header);
  return header;
}

TEST(FetchPlanTest, SelectionsListExactlyTheSegmentsThatMeetTheLayers) {
  const PageHeader q8 = HeaderAt(Precision::kQ8, 12);
  for (uint32_t begin = 0; begin < 12; ++begin) {
    for (uint32_t end = begin + 1; end <= 12; ++end) {
      for (const Precision most : {Precision::kQ8, Precision::kQ4}) {
        const Selection selection = Select(q8, begin, end, PlanesAt(q8, most));
        size_t expected = 0;
        for (const PlaneEntry& plane : PlanesAt(q8, most)) {
          for (uint32_t i = 0; i < plane.segment_count; ++i) {
            const SegmentEntry& segment = q8.segments[plane.first_segment + i];
            const uint32_t segment_end = segment.layer_begin + uint32_t{segment.layer_count};
            expected += segment.layer_begin < end && segment_end > begin;
          }
        }
        ASSERT_EQ(selection.segments.size(), expected);
        ASSERT_EQ(selection.header.segments.size(), expected);
        // It is a header like any other: it encodes and decodes.
        const auto decoded = DecodePageHeader(AsBytes(EncodePageHeader(selection.header)));
        PAGODA_ASSERT_OK(decoded) << begin << " " << end;
        EXPECT_EQ(*decoded, selection.header);
        for (size_t i = 0; i < expected; ++i) {
          const SegmentEntry& source = q8.segments[selection.segments[i]];
          EXPECT_EQ(selection.header.segments[i].length, source.length);
          EXPECT_EQ(selection.header.segments[i].layer_begin, source.layer_begin);
        }
      }
    }
  }
  EXPECT_EQ(PrecisionOf(PlanesAt(q8, Precision::kQ4)), Precision::kQ4);
  EXPECT_EQ(PrecisionOf(PlanesAt(q8, Precision::kOpaque)), Precision::kQ8);
}

TEST(FetchPlanTest, LayersAreOutermost) {
  std::vector<ServedPage> pages(3);
  pages[0].header = HeaderAt(Precision::kRaw16, 6);
  pages[1].header = HeaderAt(Precision::kQ8, 6);
  pages[2].header = HeaderAt(Precision::kQ4, 6);
  const std::vector<SegmentOrder> order = OrderOf(pages, {});
  size_t total = 0;
  for (const ServedPage& page : pages) total += page.header.segments.size();
  ASSERT_EQ(order.size(), total);
  uint32_t layer = 0;
  uint32_t page = 0;
  for (const SegmentOrder& at : order) {
    const uint32_t now = pages[at.page].header.segments[at.segment].layer_begin;
    EXPECT_GE(now, layer);
    if (now == layer) {
      EXPECT_GE(at.page, page);
    }
    layer = now;
    page = at.page;
  }
}

TEST(FetchPlanTest, HighFirstIsTwoRowsOfLayers) {
  std::vector<ServedPage> pages(3);
  pages[0].header = HeaderAt(Precision::kRaw16, 6);
  pages[1].header = HeaderAt(Precision::kQ8, 6);
  pages[2].header = HeaderAt(Precision::kQ4, 6);
  FetchSelection selection;
  selection.high_first = true;
  const std::vector<SegmentOrder> order = OrderOf(pages, selection);
  ASSERT_EQ(order.size(), OrderOf(pages, {}).size());
  uint32_t layer = 0;
  bool late = false;
  for (const SegmentOrder& at : order) {
    const PageHeader& header = pages[at.page].header;
    bool lo = false;
    for (const PlaneEntry& plane : header.planes) {
      lo = lo || (IsLo(plane) && at.segment - plane.first_segment < plane.segment_count);
    }
    EXPECT_TRUE(lo || !late);
    EXPECT_TRUE(!lo || at.page == 1);
    if (lo && !late) layer = 0;
    late = lo;
    EXPECT_GE(header.segments[at.segment].layer_begin, layer);
    layer = header.segments[at.segment].layer_begin;
  }
  EXPECT_TRUE(late);
}

TEST(LeaseTokenTest, SixteenBytesThereAndBack) {
  const LeaseToken token{0x0102030405060708, 0xa0b0c0d0, 7};
  const std::string bytes = token.Encode();
  EXPECT_EQ(bytes.size(), 16u);
  const auto decoded = LeaseToken::Decode(bytes);
  ASSERT_TRUE(decoded.has_value());
  EXPECT_EQ(decoded->lease, token.lease);
  EXPECT_EQ(decoded->instance, token.instance);
  EXPECT_EQ(decoded->scope_index, token.scope_index);
  EXPECT_FALSE(LeaseToken::Decode("").has_value());
  EXPECT_FALSE(LeaseToken::Decode(bytes.substr(1)).has_value());
  EXPECT_FALSE(LeaseToken::Decode(bytes + "x").has_value());
}

}  // namespace
}  // namespace pagoda
