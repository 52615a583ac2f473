// Goal: a view yields the right pointers for what is there, refuses what does not fit, and never
// points outside its spans. Method: complete, partial and damaged pages; pointers checked against
// the spans.
#include "kernels/page_view.h"

#include <gtest/gtest.h>

#include <functional>

#include "kernels/testing/random_page.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels {
namespace {

constexpr PageShape kShape{7, 2, 128, 128};

// The bytes [begin, begin + size) lie inside one of the spans.
bool Inside(const std::vector<ByteSpan>& spans, const void* begin, int64_t size) {
  const auto* first = static_cast<const std::byte*>(begin);
  for (const ByteSpan span : spans) {
    if (first >= span.data() && first + size <= span.data() + span.size()) return true;
  }
  return false;
}

TEST(PageViewTest, EveryTilePointsIntoItsSegments) {
  const TestPage raw = RandomRawPage(kShape, 0, 1);
  for (const Precision precision : {Precision::kRaw16, Precision::kQ8, Precision::kQ4}) {
    const TestPage encoded =
        precision == Precision::kRaw16 ? TestPage{} : EncodedPage(raw, precision);
    const TestPage& page = precision == Precision::kRaw16 ? raw : encoded;
    const PageView view = page.view();
    EXPECT_EQ(view.precision(), precision);
    const auto spans = page.spans();
    std::vector<const void*> seen;
    for (int32_t layer = 0; layer < kShape.layer_count; ++layer) {
      for (int32_t head = 0; head < kShape.head_count; ++head) {
        const PageTile tile = view.tile(layer, head);
        EXPECT_EQ(tile.precision, precision);
        EXPECT_EQ(tile.token_count, kShape.page_tokens);
        EXPECT_EQ(tile.base_position, 0);
        const std::pair<PlaneId, std::pair<const void*, const void*>> parts[] = {
            {PlaneId::kRaw16, {tile.raw_k, tile.raw_v}},
            {PlaneId::kKHi, {tile.k_hi_params, tile.k_hi}},
            {PlaneId::kVHi, {tile.v_hi_params, tile.v_hi}},
            {PlaneId::kKLo, {tile.k_lo_params, tile.k_lo}},
            {PlaneId::kVLo, {tile.v_lo_params, tile.v_lo}},
            {PlaneId::kSinkRows, {tile.sink_k, tile.sink_v}}};
        for (const auto& [plane, pointers] : parts) {
          const bool expected = plane == PlaneId::kRaw16 ? precision == Precision::kRaw16
                                : plane == PlaneId::kKLo || plane == PlaneId::kVLo
                                    ? precision == Precision::kQ8
                                    : precision != Precision::kRaw16;
          ASSERT_EQ(pointers.first != nullptr, expected);
          if (!expected) continue;
          const TileBytes bytes = TileBytesOf(plane, kShape);
          EXPECT_TRUE(Inside(spans, pointers.first, bytes.first));
          EXPECT_TRUE(Inside(spans, pointers.second, bytes.second));
          seen.push_back(pointers.first);
          seen.push_back(pointers.second);
        }
      }
    }
    std::sort(seen.begin(), seen.end());
    EXPECT_EQ(std::adjacent_find(seen.begin(), seen.end()), seen.end());
  }
}

TEST(PageViewTest, TopCodesAreWidenedInMemoryOfTheView) {
  const TestPage raw = RandomRawPage(kShape, 0, 9);
  for (const Precision precision : {Precision::kQ3, Precision::kQ2}) {
    const TestPage page = EncodedPage(raw, precision);
    PageView view = page.view();
    const PageTile before = view.tile(6, 1);
    const PageView copy = view;
    view = page.view();  // what a copy reads outlives the view it came from
    EXPECT_EQ(copy.precision(), precision);
    EXPECT_EQ(copy.widened_bytes(), kShape.layer_count * (LayerBytes(PlaneId::kKHi, kShape) +
                                                          LayerBytes(PlaneId::kVHi, kShape)));
    EXPECT_EQ(EncodedPage(raw, Precision::kQ4).view().widened_bytes(), 0);
    const PageTile tile = copy.tile(6, 1);
    EXPECT_EQ(tile.k_hi, before.k_hi);
    EXPECT_EQ(tile.precision, Precision::kQ4);
    EXPECT_EQ(tile.sink_count, kSinkTokens);
    EXPECT_TRUE(Inside(page.spans(), tile.sink_k, 1));
    EXPECT_FALSE(Inside(page.spans(), tile.k_hi, 1));
    EXPECT_EQ(tile.k_lo, nullptr);
    PAGODA_EXPECT_OK(ValidateTile(tile, kShape.page_tokens));
    // A layer whose V is not here is not readable; all others are.
    auto spans = page.spans();
    for (size_t i = 0; i < spans.size(); ++i) {
      const PlaneEntry& v = page.header.planes[1];
      if (i == v.first_segment) spans[i] = {};
    }
    const auto partial = PageView::Make(kShape, page.header, spans, Precision::kQ8);
    PAGODA_ASSERT_OK(partial.status());
    EXPECT_EQ(partial->precision(0), Precision::kNone);
    EXPECT_EQ(partial->precision(), Precision::kNone);
  }
}

// K and V may come at different rates: the poorer one is what the layer has.
TEST(PageViewTest, MixedRatesReadAsThePoorer) {
  const PageShape shape{1, 1, 64, 32};
  const TestPage raw = RandomRawPage(shape, 4096, 10);
  const TestPage q4 = EncodedPage(raw, Precision::kQ4);
  const TestPage q2 = EncodedPage(raw, Precision::kQ2);
  TestPage mixed;
  mixed.shape = shape;
  mixed.header = q4.header;
  mixed.header.planes = {q4.header.planes[0], q2.header.planes[1]};
  mixed.header.segments = {q4.header.segments[0], q2.header.segments[1]};
  const std::vector<ByteSpan> spans = {q4.spans()[0], q2.spans()[1]};
  const auto view = PageView::Make(shape, mixed.header, spans, Precision::kQ8);
  PAGODA_ASSERT_OK(view.status());
  EXPECT_EQ(view->precision(), Precision::kQ2);
  EXPECT_EQ(PrecisionOf(mixed.header.planes), Precision::kQ2);
  const PageTile tile = view->tile(0, 0);
  EXPECT_EQ(tile.k_hi, q4.view().tile(0, 0).k_hi);
  EXPECT_EQ(view->widened_bytes(), LayerBytes(PlaneId::kVHi, shape));
}

TEST(PageViewTest, AtMostChoosesWhereThereIsAChoice) {
  const TestPage raw = RandomRawPage(kShape, 64, 2);
  const TestPage q8 = EncodedPage(raw, Precision::kQ8);
  EXPECT_EQ(q8.view(Precision::kQ4).precision(), Precision::kQ4);
  EXPECT_EQ(q8.view(Precision::kQ4).tile(0, 0).k_lo, nullptr);
  EXPECT_EQ(q8.view(Precision::kQ8).precision(), Precision::kQ8);
  EXPECT_EQ(q8.view(Precision::kRaw16).precision(), Precision::kQ8);
  EXPECT_EQ(raw.view(Precision::kQ4).precision(), Precision::kRaw16);
  EXPECT_EQ(q8.view().tile(0, 0).sink_count, 0);  // not at position 0
}

TEST(PageViewTest, AbsentSegmentsMakeTheirLayersLessReadable) {
  const TestPage raw = RandomRawPage(kShape, 0, 3);
  const TestPage q8 = EncodedPage(raw, Precision::kQ8);
  for (size_t absent = 0; absent < q8.segments.size(); ++absent) {
    auto spans = q8.spans();
    spans[absent] = ByteSpan();
    const auto view = PageView::Make(kShape, q8.header, spans, Precision::kQ8);
    PAGODA_ASSERT_OK(view);
    const SegmentEntry& gone = q8.header.segments[absent];
    PlaneId plane = PlaneId::kRaw16;
    for (const PlaneEntry& entry : q8.header.planes) {
      if (absent >= entry.first_segment && absent < entry.first_segment + entry.segment_count) {
        plane = *PlaneIdOf(entry);
      }
    }
    const bool lo = plane == PlaneId::kKLo || plane == PlaneId::kVLo;
    for (int32_t layer = 0; layer < kShape.layer_count; ++layer) {
      const bool hit = layer >= gone.layer_begin && layer < gone.layer_begin + gone.layer_count;
      const Precision expected = !hit ? Precision::kQ8 : lo ? Precision::kQ4 : Precision::kNone;
      EXPECT_EQ(view->precision(layer), expected) << absent << " " << layer;
      if (hit && plane == PlaneId::kVLo) {
        EXPECT_NE(view->tile(layer, 0).k_lo, nullptr);  // K alone still has its lo
      }
    }
    EXPECT_EQ(view->precision(), lo ? Precision::kQ4 : Precision::kNone);
  }
}

TEST(PageViewTest, AProfileReadsKLoInItsLayersAlone) {
  const TestPage raw = RandomRawPage(kShape, 0, 6);
  constexpr int32_t kAsked[] = {1, 2, 5};
  constexpr int32_t kMore[] = {0, 1, 2, 4, 5};
  for (const TestPage& page :
       {EncodedPage(raw, Precision::kQ8), EncodedPage(raw, Precision::kQ4, kAsked),
        EncodedPage(raw, Precision::kQ4, kMore)}) {
    const PageView view = page.view(Precision::kQ4, kAsked);
    EXPECT_EQ(view.precision(), Precision::kQ4);
    for (int32_t layer = 0; layer < kShape.layer_count; ++layer) {
      const PageTile tile = view.tile(layer, 1);
      const bool asked = layer == 1 || layer == 2 || layer == 5;
      EXPECT_EQ(tile.precision, Precision::kQ4);
      EXPECT_EQ(tile.k_lo != nullptr, asked) << layer;
      EXPECT_EQ(tile.k_lo_params != nullptr, asked) << layer;
      EXPECT_EQ(tile.v_lo, nullptr);
    }
    EXPECT_EQ(page.view(Precision::kQ4).tile(1, 0).k_lo, nullptr);
  }
  // A page that lacks a plane the profile asks for is not readable there.
  const TestPage less = EncodedPage(raw, Precision::kQ4, absl::MakeConstSpan(kAsked, 2));
  EXPECT_EQ(less.view(Precision::kQ4, kAsked).precision(4), Precision::kQ4);
  EXPECT_EQ(less.view(Precision::kQ4, kAsked).precision(5), Precision::kNone);
  EXPECT_EQ(less.view(Precision::kQ4).precision(), Precision::kQ4);
  // At all its bits such a page reads K lo wherever it has it.
  EXPECT_NE(less.view(Precision::kQ8).tile(2, 0).k_lo, nullptr);
  EXPECT_EQ(less.view(Precision::kQ8).tile(5, 0).k_lo, nullptr);

  PageHeader twice = less.header;
  for (const PlaneEntry& plane : less.header.planes) {
    if (plane.bit_begin == 0 && plane.kind == PlaneKind::kCodes) twice.planes.push_back(plane);
  }
  EXPECT_THAT(PageView::Make(kShape, twice, less.spans(), Precision::kQ4),
              StatusIs(absl::StatusCode::kDataLoss, "there twice"));
  constexpr int32_t kBeyond[] = {7};
  EXPECT_THAT(PageView::Make(kShape, less.header, less.spans(), Precision::kQ4, kBeyond),
              StatusIs(absl::StatusCode::kInvalidArgument, "layer 7"));
}

TEST(PageViewTest, WhatDoesNotFitIsRefused) {
  const TestPage good = EncodedPage(RandomRawPage(kShape, 64, 4), Precision::kQ8);
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  const auto kLoss = absl::StatusCode::kDataLoss;
  const auto kOther = absl::StatusCode::kFailedPrecondition;
  using Spans = std::vector<ByteSpan>;
  const std::vector<std::pair<std::function<void(PageHeader&, Spans&)>, absl::StatusCode>> cases = {
      {[](PageHeader& h, Spans&) { h.layer_count = 8; }, kOther},
      {[](PageHeader& h, Spans&) { h.head_dim = 64; }, kOther},
      {[](PageHeader& h, Spans&) { h.record.head_count = 1; }, kOther},
      {[](PageHeader& h, Spans&) { h.page_tokens = 64; }, kOther},
      {[](PageHeader& h, Spans&) { h.page_tokens = 1u << 31; }, kOther},
      {[](PageHeader& h, Spans&) { h.rotation = Rotation::kNone; }, kOther},
      {[](PageHeader& h, Spans&) { h.recipe = CodeRecipe::kNone; }, kOther},
      {[](PageHeader& h, Spans&) { h.planes[1].head_count = 1; }, kOther},
      {[](PageHeader& h, Spans&) { h.planes[1].head_begin = 1; }, kOther},
      {[](PageHeader& h, Spans&) { h.base_position = ~uint64_t{0}; }, kLoss},
      {[](PageHeader& h, Spans&) { h.planes[1] = h.planes[0]; }, kLoss},
      {[](PageHeader& h, Spans&) { h.segments[0].length -= 64; }, kLoss},
      {[](PageHeader& h, Spans&) { h.segments[0].length += 64; }, kLoss},
      {[](PageHeader& h, Spans&) { h.segments[0].layer_count = 0; }, kLoss},
      {[](PageHeader& h, Spans&) { h.segments[0].layer_begin = 7; }, kLoss},
      {[](PageHeader& h, Spans&) { h.planes[3].segment_count = 999; }, kLoss},
      {[](PageHeader& h, Spans&) { h.planes[3].first_segment = 999; }, kLoss},
      {[](PageHeader&, Spans& s) { s.pop_back(); }, kInvalid},
      {[](PageHeader&, Spans& s) { s[0] = s[0].subspan(0, 64); }, kInvalid},
      {[](PageHeader& h, Spans& s) { s[0] = s[0].subspan(0, h.segments[0].length - 1); }, kInvalid},
      {[](PageHeader& h, Spans& s) { s[0] = s[0].subspan(2, h.segments[0].length); }, kInvalid},
  };
  for (size_t i = 0; i < cases.size(); ++i) {
    PageHeader header = good.header;
    auto spans = good.spans();
    cases[i].first(header, spans);
    EXPECT_THAT(PageView::Make(kShape, header, spans, Precision::kQ8), StatusIs(cases[i].second))
        << "case " << i;
  }
  EXPECT_THAT(PageView::Make({7, 2, 129, 128}, good.header, good.spans(), Precision::kQ8),
              StatusIs(kInvalid));
  EXPECT_THAT(PageView::Make(kShape, good.header, good.spans(), Precision::kQ2),
              StatusIs(kInvalid));
  // Exactly the payload, without padding, is enough.
  auto spans = good.spans();
  for (size_t i = 0; i < spans.size(); ++i) {
    spans[i] = spans[i].subspan(0, good.header.segments[i].length);
  }
  PAGODA_EXPECT_OK(PageView::Make(kShape, good.header, spans, Precision::kQ8));
}

TEST(PageViewTest, UnknownPlanesAndDeltasAreLeftAlone) {
  TestPage page = EncodedPage(RandomRawPage(kShape, 64, 5), Precision::kQ8);
  page.header.planes[0].storage = PlaneStorage::kDelta;  // K hi is not readable in place
  EXPECT_EQ(page.view().precision(), Precision::kNone);
  page.header.planes[0].storage = PlaneStorage::kAlias;  // the caller resolved the bytes
  EXPECT_EQ(page.view().precision(), Precision::kQ8);
  page.header.planes[2].kind = PlaneKind::kDigestSketch;
  EXPECT_EQ(page.view().precision(), Precision::kQ4);
}

TEST(PageViewTest, ADigestOfAnotherKindIsLeftOut) {
  TestPage page = EncodedPage(RandomRawPage(kShape, 64, 5), Precision::kQ8);
  AppendPlane(PlaneId::kQuestDigest, kShape, page.header);
  AssignOffsets(page.header);
  for (size_t i = page.segments.size(); i < page.header.segments.size(); ++i) {
    page.segments.emplace_back(page.header.segments[i].stored_bytes());
  }
  EXPECT_NE(page.view().digest(PlaneId::kQuestDigest, 6, 1), nullptr);
  page.header.segments.back().length -= 64;  // fewer boxes
  EXPECT_EQ(page.view().precision(), Precision::kQ8);
  EXPECT_EQ(page.view().digest(PlaneId::kQuestDigest, 0, 0), nullptr);
}

}  // namespace
}  // namespace pagoda::kernels
