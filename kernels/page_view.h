// Reading a page in memory: from the header and the bytes of its segments to the pointers that
// attention and decoding take. A view checks everything once; a tile is then a few additions.
//
// Pages of q3 and q2 keep the upper bits of hi alone. A view of one holds them widened to hi's
// form, in memory of its own, so that its tiles read like those of q4.
//
// Threads    immutable after Make(). Copies share what was widened.
// Ownership  the caller keeps the segments' memory alive and unchanged while tiles are read. Make()
//            itself reads that of q3 and q2 alone: there it must be the host's.
// Errors     INVALID_ARGUMENT     shape invalid; span count differs from the segment table; a span
//                                 shorter than its segment, or not 64-byte aligned; at_most is not
//                                 raw16, q8 or q4; k_lo_layers are not the shape's
//            FAILED_PRECONDITION  the header states another shape, frame or recipe
//            DATA_LOSS            a segment's length does not fit its layers, or a layer of a plane
//                                 is there twice
// Cost       of q3 and q2: widening, about 0.05 ns an element, and widened_bytes() of memory
// Trust      a header that passed DecodePageHeader() may come from anyone: nothing outside the
//            given spans is ever read through a tile.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/aligned_buffer.h"
#include "kernels/page_layout.h"
#include "storage/base/bytes.h"
#include "storage/base/page_header.h"

namespace pagoda::kernels {

// One layer and one kv head of a page: what attention reads. Params and rows are 2-byte words;
// codes, and all parts that come from a PageView, are 64-byte aligned.
struct PageTile {
  Precision precision = Precision::kNone;  // kRaw16, kQ8 or kQ4; widened codes are kQ4
  int32_t token_count = 0;    // valid tokens from the first; may be < page_tokens for raw16 only
  int64_t base_position = 0;  // of the first token
  // kRaw16: [page_tokens][head_dim] bf16, 4-byte aligned; rows from token_count on are never read.
  const uint16_t* raw_k = nullptr;
  const uint16_t* raw_v = nullptr;
  // kQ4 and kQ8; see page_layout.h. kQ8 sets all; kQ4 may set the lo part of K alone or of V alone,
  // which is then read too.
  const uint16_t* k_hi_params = nullptr;
  const uint16_t* v_hi_params = nullptr;
  const uint16_t* k_lo_params = nullptr;
  const uint16_t* v_lo_params = nullptr;
  const uint32_t* k_hi = nullptr;
  const uint32_t* v_hi = nullptr;
  const uint32_t* k_lo = nullptr;
  const uint32_t* v_lo = nullptr;
  // Exact rows [sink_count][head_dim] bf16 that replace the first tokens of an encoded tile;
  // 4-byte aligned.
  const uint16_t* sink_k = nullptr;
  const uint16_t* sink_v = nullptr;
  int32_t sink_count = 0;
};

class PageView {
 public:
  // `segments` has one span per header.segments entry, in that order; an absent segment (another
  // layer range, a dropped plane) is an empty span with null data. `at_most` chooses where a page
  // offers a choice: q4 ignores lo, but for K in `k_lo_layers`, where it asks for it; a page that
  // is raw16 alone stays raw16. A layer whose planes are incomplete is simply not readable.
  static absl::StatusOr<PageView> Make(const PageShape& shape, const PageHeader& header,
                                       absl::Span<const ByteSpan> segments, Precision at_most,
                                       KLoLayers k_lo_layers = {});

  // Whether Make() would take them, without widening anything.
  static absl::Status Check(const PageShape& shape, const PageHeader& header,
                            absl::Span<const ByteSpan> segments);

  const PageShape& shape() const { return shape_; }
  int64_t widened_bytes() const { return widened_ == nullptr ? 0 : widened_->size(); }
  // Precision at which this layer can be read; kNone when a part of it is missing.
  Precision precision(int32_t layer) const { return layers_[layer].precision; }
  // The lowest over all layers: kNone unless every layer is readable.
  Precision precision() const;

  // REQUIRES: layer and head in range, precision(layer) != kNone.
  PageTile tile(int32_t layer, int32_t head) const;

  // A digest of the keys of this layer and head (page_score.h); null when the page has none.
  // REQUIRES: layer and head in range, IsDigest(digest).
  const uint16_t* digest(PlaneId digest, int32_t layer, int32_t head) const;

 private:
  // Parts of head 0; those of other heads follow at the tile's size. Null when absent.
  struct Part {
    const std::byte* first = nullptr;
    const std::byte* second = nullptr;
  };
  struct Layer {
    Precision precision = Precision::kNone;
    std::array<Part, kPlaneIdCount> parts;     // indexed by PlaneId
    std::array<bool, kPlaneIdCount> listed{};  // by the header, whether or not bytes are here
  };

  explicit PageView(const PageShape& shape) : shape_(shape) {}
  static absl::StatusOr<PageView> FromTables(const PageShape& shape, const PageHeader& header,
                                             absl::Span<const ByteSpan> segments);
  absl::Status AddPlane(PlaneId plane, const PageHeader& header, const PlaneEntry& entry,
                        absl::Span<const ByteSpan> segments);
  void SettlePrecisions(Precision at_most, KLoLayers k_lo_layers);
  // Puts hi parts where a layer has top codes alone.
  void Widen();

  PageShape shape_;
  int64_t base_position_ = 0;
  bool sinks_listed_ = false;  // then every encoded layer needs them
  std::array<TileBytes, kPlaneIdCount> tile_bytes_;
  std::vector<Layer> layers_;
  std::shared_ptr<const AlignedBuffer> widened_;
};

}  // namespace pagoda::kernels
