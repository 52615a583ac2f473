#include "client/worker/page_buffer.h"

#include <utility>

#include "storage/base/check.h"

namespace pagoda {

PageBuffer::PageBuffer(PageHeader header) : header_(std::move(header)) {
  buffers_.reserve(header_.segments.size());
  for (const SegmentEntry& segment : header_.segments) {
    buffers_.emplace_back(segment.stored_bytes());
  }
  MakeSpans();
}

PageBuffer::PageBuffer(PageHeader header, std::vector<kernels::AlignedBuffer> buffers)
    : header_(std::move(header)), buffers_(std::move(buffers)) {
  PAGODA_CHECK(buffers_.size() == header_.segments.size());
  for (size_t i = 0; i < buffers_.size(); ++i) {
    PAGODA_CHECK(buffers_[i].size() == header_.segments[i].stored_bytes());
  }
  MakeSpans();
}

void PageBuffer::MakeSpans() {
  segments_.clear();
  mutable_segments_.clear();
  for (size_t i = 0; i < buffers_.size(); ++i) {
    segments_.push_back(buffers_[i].span().subspan(0, header_.segments[i].length));
    mutable_segments_.push_back(buffers_[i].mutable_span());
  }
}

void PageBuffer::DropLo(const kernels::PageShape& shape) {
  if (PrecisionOf(header_.planes) != Precision::kQ8) return;
  PageHeader lower = header_;
  lower.planes.clear();
  lower.segments.clear();
  kernels::AppendPlanes(Precision::kQ4, shape, lower);
  std::vector<kernels::AlignedBuffer> kept;
  for (const PlaneEntry& plane : lower.planes) {
    for (const PlaneEntry& old : header_.planes) {
      if (kernels::PlaneIdOf(old) != kernels::PlaneIdOf(plane)) continue;
      PAGODA_CHECK(old.segment_count == plane.segment_count);
      for (uint32_t i = 0; i < plane.segment_count; ++i) {
        const SegmentEntry& from = header_.segments[old.first_segment + i];
        SegmentEntry& to = lower.segments[plane.first_segment + i];
        PAGODA_CHECK(from.length == to.length);
        to.crc32c = from.crc32c;
        kept.push_back(std::move(buffers_[old.first_segment + i]));
      }
    }
  }
  PAGODA_CHECK(kept.size() == lower.segments.size());
  header_ = std::move(lower);
  buffers_ = std::move(kept);
  MakeSpans();
}

PageHeader MakePageHeader(const kernels::PageShape& shape, double rope_theta, int64_t page_index,
                          Precision precision) {
  PageHeader header;
  header.record.head_count = static_cast<uint16_t>(shape.head_count);
  header.page_tokens = static_cast<uint32_t>(shape.page_tokens);
  header.base_position = static_cast<uint64_t>(page_index) * header.page_tokens;
  header.layer_count = static_cast<uint16_t>(shape.layer_count);
  header.head_dim = static_cast<uint16_t>(shape.head_dim);
  header.rope = RopeState::kPostRope;
  header.rope_theta = rope_theta;
  if (precision != Precision::kRaw16) {
    header.rotation = Rotation::kHadamardV1;
    header.recipe = CodeRecipe::kEmbedded8;
  }
  kernels::AppendPlanes(precision, shape, header);
  return header;
}

}  // namespace pagoda
