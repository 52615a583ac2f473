// Goal: every byte of every plane belongs to exactly one tile part, aligned, and sizes are those
// that are published. Method: the offsets of all tiles of all shapes, sorted, must tile each
// segment.
#include "kernels/page_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels {
namespace {

constexpr PlaneId kPlanes[] = {PlaneId::kRaw16,       PlaneId::kKHi,          PlaneId::kVHi,
                               PlaneId::kKLo,         PlaneId::kVLo,          PlaneId::kSinkRows,
                               PlaneId::kQuestDigest, PlaneId::kCentreDigest, PlaneId::kMeanDigest};

PageHeader HeaderOf(const PageShape& shape, int64_t base_position) {
  PageHeader header;
  header.layer_count = static_cast<uint16_t>(shape.layer_count);
  header.record.head_count = static_cast<uint16_t>(shape.head_count);
  header.head_dim = static_cast<uint16_t>(shape.head_dim);
  header.page_tokens = static_cast<uint32_t>(shape.page_tokens);
  header.base_position = static_cast<uint64_t>(base_position);
  return header;
}

TEST(PageLayoutTest, PublishedSizesOfTheSmolLm2Shape) {
  const PageShape shape{30, 3, 64, 64};
  PageHeader raw = HeaderOf(shape, 64);
  AppendPlanes(Precision::kRaw16, shape, raw);
  EXPECT_EQ(raw.stored_bytes() - raw.header_bytes(), 1'474'560);
  PageHeader q4 = HeaderOf(shape, 64);
  AppendPlanes(Precision::kQ4, shape, q4);
  EXPECT_EQ(q4.header_bytes(), 4096);
  EXPECT_EQ(q4.stored_bytes(), 409'600);
  PageHeader q8 = HeaderOf(shape, 64);
  AppendPlanes(Precision::kQ8, shape, q8);
  EXPECT_EQ(q8.stored_bytes() - q4.stored_bytes(), 393'216);
}

// K lo of a run of layers is a plane of its own; what it costs beyond its bytes is padding.
TEST(PageLayoutTest, ALayerProfileOfTheSmolLm2Shape) {
  const PageShape shape{30, 3, 64, 64};
  constexpr int32_t kLayers[] = {3, 8, 9, 18, 20, 23, 24};
  PageHeader page = HeaderOf(shape, 64);
  AppendPlanes(Precision::kQ4, shape, page, kLayers);
  EXPECT_EQ(page.planes.size(), 7u);
  EXPECT_EQ(PrecisionOf(page.planes), Precision::kQ4);
  EXPECT_EQ(page.header_bytes(), 4096);
  EXPECT_EQ(LayerBytes(PlaneId::kKLo, shape), 6528);
  EXPECT_EQ(page.stored_bytes(), 409'600 + 3 * 8192 + 2 * 16384);
  const auto decoded = DecodePageHeader(AsBytes(EncodePageHeader(page)));
  PAGODA_ASSERT_OK(decoded);
  EXPECT_EQ(decoded->planes, page.planes);
}

TEST(PageLayoutTest, LayersOfAProfileAreAscendingRunsThatFit) {
  EXPECT_TRUE(RunsOf({}).empty());
  EXPECT_EQ(RunsOf({0, 1, 2, 5, 7, 8}), (std::vector<LayerRun>{{0, 3}, {5, 1}, {7, 2}}));
  PAGODA_EXPECT_OK(ValidateKLoLayers({}, 1));
  PAGODA_EXPECT_OK(ValidateKLoLayers({0, 29}, 30));
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(ValidateKLoLayers({0, 30}, 30), StatusIs(kInvalid, "layer 30, expected"));
  EXPECT_THAT(ValidateKLoLayers({-1}, 30), StatusIs(kInvalid, "layer -1, expected"));
  EXPECT_THAT(ValidateKLoLayers({4, 4}, 30), StatusIs(kInvalid, "layer 4 after 4"));
  std::vector<int32_t> every_second;
  for (int32_t layer = 0; layer < 2 * kKLoRunsMax; layer += 2) every_second.push_back(layer);
  PAGODA_EXPECT_OK(ValidateKLoLayers(every_second, 512));
  PageHeader page = HeaderOf({512, 1, 64, 64}, 0);
  AppendPlanes(Precision::kQ4, {512, 1, 64, 64}, page, every_second);
  PAGODA_EXPECT_OK(DecodePageHeader(AsBytes(EncodePageHeader(page))));
  every_second.push_back(2 * kKLoRunsMax);
  EXPECT_THAT(ValidateKLoLayers(every_second, 512), StatusIs(kInvalid, "57 runs"));
}

TEST(PageLayoutTest, PlaneTablesNameTheirPrecision) {
  const PageShape shape{4, 2, 128, 64};
  for (const Precision precision : {Precision::kRaw16, Precision::kQ8, Precision::kQ4}) {
    for (const int64_t base : {0, 64}) {
      PageHeader header = HeaderOf(shape, base);
      header.record.head_begin = 6;
      AppendPlanes(precision, shape, header);
      EXPECT_EQ(PrecisionOf(header.planes), precision);
      const bool sinks = header.planes.back().kind == PlaneKind::kRawRows;
      EXPECT_EQ(sinks, base == 0 && precision != Precision::kRaw16);
      for (const PlaneEntry& entry : header.planes) {
        EXPECT_TRUE(PlaneIdOf(entry).has_value());
        EXPECT_EQ(entry.head_begin, 6);
        EXPECT_EQ(entry.head_count, 2);
      }
      EXPECT_EQ(ShapeOf(header), shape);
      const auto decoded = DecodePageHeader(AsBytes(EncodePageHeader(header)));
      PAGODA_ASSERT_OK(decoded);
      EXPECT_EQ(*decoded, header);
    }
  }
}

struct Part {
  int64_t begin;
  int64_t end;
};

// The parts of all tiles of one segment cover [0, length) exactly once.
void ExpectTiled(PlaneId plane, const PageShape& shape, const SegmentEntry& segment) {
  const TileBytes bytes = TileBytesOf(plane, shape);
  std::vector<Part> parts;
  for (int32_t layer = 0; layer < segment.layer_count; ++layer) {
    for (int32_t head = 0; head < shape.head_count; ++head) {
      const TileBytes at = TileOffsets(plane, shape, segment.layer_count, layer, head);
      parts.push_back({at.first, at.first + bytes.first});
      if (!IsDigest(plane)) parts.push_back({at.second, at.second + bytes.second});
    }
  }
  std::sort(parts.begin(), parts.end(), [](Part a, Part b) { return a.begin < b.begin; });
  int64_t end = 0;
  for (const Part& part : parts) {
    ASSERT_EQ(part.begin, end);
    ASSERT_EQ(part.begin % 64, 0);
    ASSERT_GT(part.end, part.begin);
    end = part.end;
  }
  ASSERT_EQ(end, segment.length);
}

TEST(PageLayoutTest, TilesCoverEverySegmentOnceAndAligned) {
  for (int32_t head_dim = 16; head_dim <= 256; head_dim += 8) {
    for (const int32_t page_tokens : {32, 64, 128, 256}) {
      const PageShape shape{11, 3, head_dim, page_tokens};
      PAGODA_ASSERT_OK(ValidatePageShape(shape));
      for (const PlaneId plane : kPlanes) {
        PageHeader header = HeaderOf(shape, 0);
        AppendPlane(plane, shape, header);
        EXPECT_EQ(PlaneIdOf(header.planes[0]), plane);
        int32_t layer = 0;
        size_t smallest = 512;
        size_t greatest = 0;
        for (const SegmentEntry& segment : header.segments) {
          ASSERT_EQ(segment.layer_begin, layer);
          layer += segment.layer_count;
          smallest = std::min<size_t>(smallest, segment.layer_count);
          greatest = std::max<size_t>(greatest, segment.layer_count);
          ASSERT_TRUE(segment.length <= kSegmentBytesTarget || segment.layer_count == 1);
          ExpectTiled(plane, shape, segment);
        }
        ASSERT_EQ(layer, shape.layer_count);
        ASSERT_LE(greatest - smallest, 1u);  // spread evenly
      }
    }
  }
}

TEST(PageLayoutTest, GroupsAreBlocksCutToSixtyFour) {
  const auto begins = [](int32_t head_dim) {
    const ChannelGroups groups = GroupsOf(head_dim);
    return std::vector<int>(groups.begin.begin(), groups.begin.begin() + groups.count + 1);
  };
  EXPECT_EQ(begins(64), (std::vector<int>{0, 64}));
  EXPECT_EQ(begins(80), (std::vector<int>{0, 64, 80}));
  EXPECT_EQ(begins(96), (std::vector<int>{0, 64, 96}));
  EXPECT_EQ(begins(128), (std::vector<int>{0, 64, 128}));
  EXPECT_EQ(begins(248), (std::vector<int>{0, 64, 128, 192, 224, 240, 248}));
  EXPECT_EQ(begins(256), (std::vector<int>{0, 64, 128, 192, 256}));
  for (int32_t head_dim = 16; head_dim <= 256; head_dim += 8) {
    EXPECT_EQ(begins(head_dim).back(), head_dim);
  }
}

TEST(PageLayoutTest, ShapesOutsideTheLimitsAreNamed) {
  const PageShape good{512, 256, 256, 256};
  PAGODA_EXPECT_OK(ValidatePageShape(good));
  PAGODA_EXPECT_OK(ValidatePageShape({1, 1, 16, 32}));
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(ValidatePageShape({0, 1, 64, 64}), StatusIs(kInvalid, "layer_count 0"));
  EXPECT_THAT(ValidatePageShape({513, 1, 64, 64}), StatusIs(kInvalid, "layer_count 513"));
  EXPECT_THAT(ValidatePageShape({1, 0, 64, 64}), StatusIs(kInvalid, "head_count 0"));
  EXPECT_THAT(ValidatePageShape({1, 257, 64, 64}), StatusIs(kInvalid, "head_count 257"));
  EXPECT_THAT(ValidatePageShape({1, 1, 8, 64}), StatusIs(kInvalid, "head_dim 8"));
  EXPECT_THAT(ValidatePageShape({1, 1, 60, 64}), StatusIs(kInvalid, "not a multiple of 8"));
  EXPECT_THAT(ValidatePageShape({1, 1, 264, 64}), StatusIs(kInvalid, "head_dim 264"));
  for (const int32_t tokens : {-64, 0, 16, 48, 512}) {
    EXPECT_THAT(ValidatePageShape({1, 1, 64, tokens}), StatusIs(kInvalid, "page_tokens"));
  }
}

TEST(PageLayoutTest, TheLargestPageFitsItsHeader) {
  const PageShape shape{512, 1, 256, 256};
  PageHeader header = HeaderOf(shape, 0);
  AppendPlanes(Precision::kQ8, shape, header);
  PAGODA_EXPECT_OK(DecodePageHeader(AsBytes(EncodePageHeader(header))));
}

}  // namespace
}  // namespace pagoda::kernels
