// Pages for tests and benches: raw16 pages of seeded random K and V that look like a model's (a
// mean per channel of K, a few louder channels), and their encoded forms.
#pragma once

#include <random>
#include <string>
#include <utility>
#include <vector>

#include "kernels/aligned_buffer.h"
#include "kernels/codec.h"
#include "kernels/float16.h"
#include "kernels/page_view.h"
#include "storage/base/check.h"

namespace pagoda::kernels {

struct TestPage {
  PageShape shape;
  PageHeader header;
  std::vector<AlignedBuffer> segments;

  std::vector<ByteSpan> spans() const {
    std::vector<ByteSpan> spans;
    for (const AlignedBuffer& segment : segments) spans.push_back(segment.span());
    return spans;
  }
  std::vector<MutableByteSpan> mutable_spans() {
    std::vector<MutableByteSpan> spans;
    for (AlignedBuffer& segment : segments) spans.push_back(segment.mutable_span());
    return spans;
  }
  PageView view(Precision at_most = Precision::kRaw16, KLoLayers k_lo_layers = {}) const {
    auto view = PageView::Make(shape, header, spans(), at_most, k_lo_layers);
    PAGODA_CHECK(view.ok());
    return *std::move(view);
  }
};

// Zeroed memory for every segment of the header.
inline std::vector<AlignedBuffer> AllocateSegments(const PageHeader& header) {
  std::vector<AlignedBuffer> segments;
  for (const SegmentEntry& segment : header.segments) {
    segments.emplace_back(segment.stored_bytes());
  }
  return segments;
}

inline TestPage EmptyRawPage(const PageShape& shape, int64_t base_position) {
  TestPage page;
  page.shape = shape;
  page.header.layer_count = static_cast<uint16_t>(shape.layer_count);
  page.header.record.head_count = static_cast<uint16_t>(shape.head_count);
  page.header.head_dim = static_cast<uint16_t>(shape.head_dim);
  page.header.page_tokens = static_cast<uint32_t>(shape.page_tokens);
  page.header.base_position = static_cast<uint64_t>(base_position);
  AppendPlanes(Precision::kRaw16, shape, page.header);
  page.segments = AllocateSegments(page.header);
  return page;
}

// K and V of one tile, [page_tokens][head_dim] each, of a raw16 page.
inline std::pair<uint16_t*, uint16_t*> RawRows(TestPage& page, int32_t layer, int32_t head) {
  const PageTile tile = page.view().tile(layer, head);
  return {const_cast<uint16_t*>(tile.raw_k), const_cast<uint16_t*>(tile.raw_v)};
}

inline TestPage RandomRawPage(const PageShape& shape, int64_t base_position, uint32_t seed) {
  TestPage page = EmptyRawPage(shape, base_position);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (int32_t layer = 0; layer < shape.layer_count; ++layer) {
    for (int32_t head = 0; head < shape.head_count; ++head) {
      const auto [k, v] = RawRows(page, layer, head);
      for (int32_t c = 0; c < shape.head_dim; ++c) {
        const float mean = 1.5f * normal(random);
        const float spread = c % 17 == 3 ? 4.0f : 1.0f;
        for (int32_t t = 0; t < shape.page_tokens; ++t) {
          k[t * shape.head_dim + c] = Bf16FromFloat(mean + spread * normal(random));
          v[t * shape.head_dim + c] = Bf16FromFloat(normal(random));
        }
      }
    }
  }
  FillChecksums(page.spans(), page.header);
  return page;
}

inline TestPage EncodedPage(const TestPage& raw, Precision precision, KLoLayers k_lo_layers = {}) {
  TestPage page;
  page.shape = raw.shape;
  auto header = PlanEncodedHeader(raw.header, precision, k_lo_layers);
  PAGODA_CHECK(header.ok());
  page.header = *std::move(header);
  page.segments = AllocateSegments(page.header);
  const absl::Status status =
      EncodePage(raw.header, raw.spans(), page.header, page.mutable_spans());
  PAGODA_CHECK(status.ok());
  return page;
}

// The same by the specification.
inline TestPage EncodedByRef(const TestPage& raw, Precision precision, KLoLayers k_lo_layers = {}) {
  TestPage page;
  page.shape = raw.shape;
  page.header = PlanEncodedHeader(raw.header, precision, k_lo_layers).value();
  page.segments = AllocateSegments(page.header);
  PAGODA_CHECK(EncodePageRef(raw.header, raw.spans(), page.header, page.mutable_spans()).ok());
  return page;
}

// All segments with their padding.
inline std::string BytesOf(const TestPage& page) {
  std::string bytes;
  for (const AlignedBuffer& segment : page.segments) bytes += std::string(AsText(segment.span()));
  return bytes;
}

// The poorer page that an encoded one contains.
inline TestPage CutOf(const TestPage& encoded, Precision precision, KLoLayers k_lo_layers = {}) {
  TestPage page;
  page.shape = encoded.shape;
  auto header = PlanCutHeader(encoded.header, precision, k_lo_layers);
  PAGODA_CHECK(header.ok());
  page.header = *std::move(header);
  page.segments = AllocateSegments(page.header);
  const absl::Status status =
      CutPage(encoded.header, encoded.spans(), page.header, page.mutable_spans());
  PAGODA_CHECK(status.ok());
  return page;
}

}  // namespace pagoda::kernels
