#include "client/worker/page_buffer.h"

#include <utility>

#include "kernels/codec.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

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

absl::StatusOr<PageBuffer> PageBuffer::CutTo(Precision precision,
                                             kernels::KLoLayers k_lo_layers) const {
  PAGODA_ASSIGN_OR_RETURN(PageHeader lower,
                          kernels::PlanCutHeader(header_, precision, k_lo_layers));
  PageBuffer cut(std::move(lower));
  PAGODA_RETURN_IF_ERROR(kernels::CutPage(header_, segments_, cut.header_, cut.mutable_segments_));
  return cut;
}

PageHeader MakePageHeader(const kernels::PageShape& shape, double rope_theta, int64_t page_index,
                          Precision precision, kernels::KLoLayers k_lo_layers) {
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
  kernels::AppendPlanes(precision, shape, header, k_lo_layers);
  return header;
}

}  // namespace pagoda
