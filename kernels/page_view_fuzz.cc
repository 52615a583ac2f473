// Fuzz target: arbitrary bytes as a page from the wire. Whatever the header says, a view of it
// refuses or points inside the given bytes, and so does cutting poorer pages out of it;
// AddressSanitizer sees the rest, as every part of every tile is read.
// Method: the input as it is; then as edits of a sound header, with the checksum put right: the
// first bytes choose shape and precision, each three after them one byte to change.
#include <sanitizer/asan_interface.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/aligned_buffer.h"
#include "kernels/codec.h"
#include "kernels/page_view.h"
#include "storage/base/check.h"
#include "storage/base/testing/mended_header.h"

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

// Every poorer page that this one says it contains, as workers cut what they were served.
void Cut(const PageHeader& header, const std::vector<ByteSpan>& spans) {
  for (const Precision target : kStoredPrecisions) {
    absl::StatusOr<PageHeader> cut = PlanCutHeader(header, target);
    if (!cut.ok()) continue;
    std::vector<AlignedBuffer> memory;
    std::vector<MutableByteSpan> targets;
    for (const SegmentEntry& segment : cut->segments) {
      memory.emplace_back(segment.stored_bytes());
      targets.push_back(memory.back().mutable_span());
    }
    CutPage(header, spans, *cut, targets).IgnoreError();
  }
}

void ReadPage(ByteSpan page) {
  const auto header = DecodePageHeader(page);
  if (!header.ok()) return;
  // Each segment in memory of its own length, so that one byte too many is seen; what the input
  // lacks is zero.
  constexpr uint32_t kSegmentBytesMax = 1 << 20;
  std::vector<AlignedBuffer> memory;
  std::vector<ByteSpan> spans;
  for (const SegmentEntry& segment : header->segments) {
    AlignedBuffer bytes(segment.length <= kSegmentBytesMax ? segment.length : 0);
    std::fill_n(bytes.data(), bytes.size(), std::byte{0});
    if (segment.offset < page.size()) {
      const ByteSpan source = page.subspan(segment.offset);
      std::copy_n(source.begin(), std::min<int64_t>(bytes.size(), source.size()), bytes.data());
    }
    ASAN_POISON_MEMORY_REGION(bytes.data() + bytes.size(),
                              AlignUp(bytes.size(), AlignedBuffer::kAlignBytes) - bytes.size());
    spans.push_back(bytes.span());
    memory.push_back(std::move(bytes));
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
  Cut(*header, spans);
  // A reader with a layer profile: where it can read a layer, K lo is there if it asks for it.
  const int32_t k_lo_layer = shape.layer_count / 2;
  const auto view =
      PageView::Make(shape, *header, spans, Precision::kQ4, absl::MakeConstSpan(&k_lo_layer, 1));
  if (!view.ok() || view->precision(k_lo_layer) != Precision::kQ4) return;
  PAGODA_CHECK(view->tile(k_lo_layer, 0).k_lo != nullptr);
  PAGODA_CHECK(ReadTile(view->tile(k_lo_layer, 0), shape) != ~uint64_t{0});
}

std::string EditedHeader(const uint8_t* data, size_t size) {
  PageHeader header;
  const PageShape shape{1 + data[0] % 4, 1 + data[1] % 3, 16 + data[2] % 8 * 8, 32 << data[3] % 2};
  header.record.head_count = static_cast<uint16_t>(shape.head_count);
  header.layer_count = static_cast<uint16_t>(shape.layer_count);
  header.head_dim = static_cast<uint16_t>(shape.head_dim);
  header.page_tokens = static_cast<uint32_t>(shape.page_tokens);
  constexpr Precision kPrecisions[] = {Precision::kRaw16, Precision::kQ8, Precision::kQ4,
                                       Precision::kQ3, Precision::kQ2};
  const Precision precision = kPrecisions[data[4] % 5];
  if (precision != Precision::kRaw16) {
    header.rotation = Rotation::kHadamardV1;
    header.recipe = CodeRecipe::kEmbedded8;
  }
  std::vector<int32_t> k_lo_layers;
  for (int32_t layer = 0; layer < shape.layer_count; ++layer) {
    if ((data[4] / 5 >> layer & 1) != 0) k_lo_layers.push_back(layer);
  }
  AppendPlanes(precision, shape, header, k_lo_layers);
  std::string bytes = EncodePageHeader(header);
  for (size_t i = 5; i + 3 <= size; i += 3) {
    const size_t offset = (data[i] | data[i + 1] << 8) % bytes.size();
    bytes[offset] = static_cast<char>(data[i + 2]);
  }
  return MendedHeader(std::move(bytes));
}

}  // namespace
}  // namespace pagoda::kernels

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using pagoda::ByteSpan;
  const ByteSpan input(reinterpret_cast<const std::byte*>(data), size);
  pagoda::kernels::ReadPage(input);
  if (size < 5) return 0;
  pagoda::kernels::ReadPage(pagoda::AsBytes(pagoda::kernels::EditedHeader(data, size)));
  return 0;
}
