// The bytes of one page in a worker's own memory: a header whose tables say what is there, and one
// buffer per segment.
//
// Threads    none of its own.        Ownership  owns the segments; spans live until CutTo() or the
//                                               buffer's end, and survive moves.
// Cost       stored_bytes() of memory, zeroed once
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "kernels/aligned_buffer.h"
#include "kernels/page_layout.h"
#include "storage/base/bytes.h"
#include "storage/base/page_header.h"
#include "storage/base/precision.h"

namespace pagoda {

class PageBuffer {
 public:
  // Memory for the segments of `header`. REQUIRES: tables complete, offsets assigned.
  explicit PageBuffer(PageHeader header);
  // Takes over bytes that are there: one buffer of stored_bytes() for each segment of `header`.
  PageBuffer(PageHeader header, std::vector<kernels::AlignedBuffer> buffers);
  PageBuffer(PageBuffer&&) = default;
  PageBuffer& operator=(PageBuffer&&) = default;

  const PageHeader& header() const { return header_; }
  PageHeader& mutable_header() { return header_; }
  // In the order of header().segments; mutable ones are stored_bytes() long, padding included.
  absl::Span<const ByteSpan> segments() const { return segments_; }
  absl::Span<const MutableByteSpan> mutable_segments() { return mutable_segments_; }
  // Header and segments, padding counted.
  int64_t stored_bytes() const { return header_.stored_bytes(); }

  // The poorer page that an encoded one contains, at q4 with K lo of those layers. Errors as in
  // kernels::CutPage().
  absl::StatusOr<PageBuffer> CutTo(Precision precision, kernels::KLoLayers k_lo_layers) const;

 private:
  void MakeSpans();

  PageHeader header_;
  std::vector<kernels::AlignedBuffer> buffers_;
  std::vector<ByteSpan> segments_;
  std::vector<MutableByteSpan> mutable_segments_;
};

// The header of a page without identity and keys: shape, position, frame, the planes of
// `precision` as in kernels::AppendPlanes(). Who pushes the page fills in what it is called.
// REQUIRES: a valid shape and layers.
PageHeader MakePageHeader(const kernels::PageShape& shape, double rope_theta, int64_t page_index,
                          Precision precision, kernels::KLoLayers k_lo_layers);

}  // namespace pagoda
