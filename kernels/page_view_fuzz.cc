// Fuzz target: arbitrary bytes as a page from the wire. Whatever the header says, a view of it
// refuses or points inside the given bytes; AddressSanitizer sees the rest, as every part of every
// tile is read.
#include <algorithm>
#include <vector>

#include "kernels/aligned_buffer.h"
#include "kernels/page_view.h"
#include "storage/base/check.h"

namespace pagoda::kernels {
namespace {

uint64_t SumOf(const void* part, int64_t size) {
  uint64_t sum = 0;
  const auto* bytes = static_cast<const uint8_t*>(part);
  for (int64_t i = 0; part != nullptr && i < size; ++i) sum += bytes[i];
  return sum;
}

uint64_t ReadTile(const PageTile& tile, const PageShape& shape) {
  const auto bytes = [&shape](PlaneId plane) { return TileBytesOf(plane, shape); };
  return SumOf(tile.raw_k, bytes(PlaneId::kRaw16).first) +
         SumOf(tile.raw_v, bytes(PlaneId::kRaw16).second) +
         SumOf(tile.k_hi_params, bytes(PlaneId::kKHi).first) +
         SumOf(tile.k_hi, bytes(PlaneId::kKHi).second) +
         SumOf(tile.v_hi_params, bytes(PlaneId::kVHi).first) +
         SumOf(tile.v_hi, bytes(PlaneId::kVHi).second) +
         SumOf(tile.k_lo_params, bytes(PlaneId::kKLo).first) +
         SumOf(tile.k_lo, bytes(PlaneId::kKLo).second) +
         SumOf(tile.v_lo_params, bytes(PlaneId::kVLo).first) +
         SumOf(tile.v_lo, bytes(PlaneId::kVLo).second) +
         SumOf(tile.sink_k, bytes(PlaneId::kSinkRows).first) +
         SumOf(tile.sink_v, bytes(PlaneId::kSinkRows).second);
}

void ReadPage(ByteSpan page) {
  const auto header = DecodePageHeader(page);
  if (!header.ok()) return;
  // Each segment in memory of its own length, so that one byte too many is seen.
  std::vector<AlignedBuffer> memory;
  std::vector<ByteSpan> spans;
  for (const SegmentEntry& segment : header->segments) {
    const bool here =
        segment.offset <= page.size() && segment.length <= page.size() - segment.offset;
    memory.emplace_back(here ? segment.length : 0);
    if (here) {
      const ByteSpan source = page.subspan(segment.offset, segment.length);
      std::copy(source.begin(), source.end(), memory.back().data());
    }
    spans.push_back(memory.back().span());
  }
  const PageShape shape = ShapeOf(*header);
  for (const Precision at_most : {Precision::kRaw16, Precision::kQ8, Precision::kQ4}) {
    const auto view = PageView::Make(shape, *header, spans, at_most);
    if (!view.ok()) continue;
    uint64_t sum = 0;
    for (int32_t layer = 0; layer < shape.layer_count; ++layer) {
      if (view->precision(layer) == Precision::kNone) continue;
      for (int32_t head = 0; head < shape.head_count; ++head) {
        sum += ReadTile(view->tile(layer, head), shape);
      }
    }
    PAGODA_CHECK(sum != ~uint64_t{0});  // keeps the reads
  }
}

}  // namespace
}  // namespace pagoda::kernels

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using pagoda::ByteSpan;
  const ByteSpan input(reinterpret_cast<const std::byte*>(data), size);
  pagoda::kernels::ReadPage(input);
  return 0;
}
