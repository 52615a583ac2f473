#include "page.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/codec.h"
#include "storage/base/status_macros.h"

namespace pagoda::python {
namespace {

constexpr int64_t kPositionMax = int64_t{1} << 40;
constexpr uintptr_t kTileAlignBytes = 64;

absl::StatusOr<PageHeader> HeaderOf(const Page::Form& form) {
  PAGODA_RETURN_IF_ERROR(kernels::ValidatePageShape(form.shape));
  const int64_t page_tokens = form.shape.page_tokens;
  if (form.base_position < 0 || form.base_position > kPositionMax ||
      form.base_position % page_tokens != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("page: base_position %d, expected a multiple of %d (page_tokens) up to %d",
                        form.base_position, page_tokens, kPositionMax));
  }
  PAGODA_RETURN_IF_ERROR(kernels::ValidateKLoLayers(form.k_lo_layers, form.shape.layer_count));
  return MakePageHeader(form.shape, /*rope_theta=*/0, form.base_position / page_tokens,
                        form.precision, form.k_lo_layers);
}

absl::Status SizeError(size_t index, size_t size, int64_t expected) {
  return absl::InvalidArgumentError(
      absl::StrFormat("page: segment %d has %d bytes, expected %d of its shape and precision",
                      index, size, expected));
}

bool IsAligned(ByteSpan bytes) {
  return reinterpret_cast<uintptr_t>(bytes.data()) % kTileAlignBytes == 0;
}

}  // namespace

Page::Bytes::Bytes(PageHeader header, std::vector<Buffer> held)
    : header_(std::move(header)), held_(std::move(held)) {
  for (const Buffer& buffer : held_) spans_.push_back(buffer.bytes());
}

absl::StatusOr<Page> Page::Make(std::shared_ptr<Bytes> bytes, const kernels::PageShape& shape,
                                Precision at_most, const std::vector<int32_t>& k_lo_layers) {
  PAGODA_ASSIGN_OR_RETURN(
      kernels::PageView view,
      kernels::PageView::Make(shape, bytes->header(), bytes->segments(), at_most, k_lo_layers));
  return Page(std::move(bytes), std::move(view));
}

absl::StatusOr<Page> Page::Zeroed(const Form& form) {
  PAGODA_ASSIGN_OR_RETURN(PageHeader header, HeaderOf(form));
  // q3 and q2 are widened when their view is made: before there is anything to widen.
  if (form.precision < Precision::kQ4) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "page: precision %s without bytes; give segments, or cut it from a richer page",
        PrecisionName(form.precision)));
  }
  return Make(std::make_shared<Bytes>(PageBuffer(std::move(header))), form.shape,
              std::min(form.precision, Precision::kRaw16), form.k_lo_layers);
}

absl::StatusOr<Page> Page::Over(const Form& form, std::vector<Buffer> held) {
  PAGODA_ASSIGN_OR_RETURN(PageHeader header, HeaderOf(form));
  if (held.size() != header.segments.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("page: %d segments, expected %d of its shape and precision", held.size(),
                        header.segments.size()));
  }
  bool aligned = true;
  for (size_t i = 0; i < held.size(); ++i) {
    const ByteSpan bytes = held[i].bytes();
    if (static_cast<int64_t>(bytes.size()) != header.segments[i].length) {
      return SizeError(i, bytes.size(), header.segments[i].length);
    }
    aligned = aligned && IsAligned(bytes);
  }
  const Precision at_most = std::max(form.precision, Precision::kQ4);
  if (aligned) {
    return Make(std::make_shared<Bytes>(std::move(header), std::move(held)), form.shape, at_most,
                form.k_lo_layers);
  }
  PageBuffer own(std::move(header));
  for (size_t i = 0; i < held.size(); ++i) {
    std::memcpy(own.mutable_segments()[i].data(), held[i].bytes().data(), held[i].bytes().size());
  }
  return Make(std::make_shared<Bytes>(std::move(own)), form.shape, at_most, form.k_lo_layers);
}

absl::StatusOr<Page> Page::CopyOf(const Form& form, ByteSpan payload) {
  PAGODA_ASSIGN_OR_RETURN(PageHeader header, HeaderOf(form));
  int64_t expected = 0;
  for (const SegmentEntry& segment : header.segments) expected += segment.length;
  if (static_cast<int64_t>(payload.size()) != expected) {
    return absl::InvalidArgumentError(
        absl::StrFormat("page: %d bytes, expected %d of its shape and precision (%s)",
                        payload.size(), expected, PrecisionName(form.precision)));
  }
  PageBuffer own(std::move(header));
  for (size_t i = 0; i < own.header().segments.size(); ++i) {
    const size_t length = own.header().segments[i].length;
    std::memcpy(own.mutable_segments()[i].data(), payload.data(), length);
    payload.remove_prefix(length);
  }
  return Make(std::make_shared<Bytes>(std::move(own)), form.shape,
              std::max(form.precision, Precision::kQ4), form.k_lo_layers);
}

absl::StatusOr<Page> Page::Encode(Precision precision,
                                  const std::vector<int32_t>& k_lo_layers) const {
  PAGODA_ASSIGN_OR_RETURN(PageHeader header,
                          kernels::PlanEncodedHeader(this->header(), precision, k_lo_layers));
  PageBuffer target(std::move(header));
  PAGODA_RETURN_IF_ERROR(kernels::EncodePage(this->header(), segments(), target.mutable_header(),
                                             target.mutable_segments()));
  return Make(std::make_shared<Bytes>(std::move(target)), shape(),
              std::max(precision, Precision::kQ4), k_lo_layers);
}

absl::StatusOr<Page> Page::Cut(Precision precision, const std::vector<int32_t>& k_lo_layers) const {
  PAGODA_ASSIGN_OR_RETURN(PageHeader header,
                          kernels::PlanCutHeader(this->header(), precision, k_lo_layers));
  PageBuffer target(std::move(header));
  PAGODA_RETURN_IF_ERROR(kernels::CutPage(this->header(), segments(), target.mutable_header(),
                                          target.mutable_segments()));
  return Make(std::make_shared<Bytes>(std::move(target)), shape(),
              std::max(precision, Precision::kQ4), k_lo_layers);
}

absl::StatusOr<Page> Page::ReadAt(Precision at_most,
                                  const std::vector<int32_t>& k_lo_layers) const {
  PAGODA_ASSIGN_OR_RETURN(Page page, Make(bytes_, shape(), at_most, k_lo_layers));
  if (page.precision() != at_most) {
    return absl::FailedPreconditionError(
        absl::StrFormat("page: of precision %s, cannot be read at %s",
                        PrecisionName(page.precision()), PrecisionName(at_most)));
  }
  return page;
}

absl::Status Page::CheckLayer(int32_t layer) const {
  if (layer >= 0 && layer < shape().layer_count) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("layer %d, expected 0 to %d of the page", layer, shape().layer_count - 1));
}

absl::StatusOr<Page::RawRows> Page::MutableRows(int32_t layer, int32_t head) {
  if (bytes_->own() == nullptr || precision() != Precision::kRaw16) {
    return absl::FailedPreconditionError(
        absl::StrFormat("page: rows of a page of precision %s %s cannot be written; write to "
                        "Page(shape), which has raw16 memory of its own",
                        PrecisionName(precision()),
                        bytes_->own() == nullptr ? "over others' memory" : "in its own memory"));
  }
  const kernels::PageTile tile = view_.tile(layer, head);
  // The view reads our own memory, which is mutable.
  return RawRows{const_cast<uint16_t*>(tile.raw_k), const_cast<uint16_t*>(tile.raw_v)};
}

absl::Status Page::EncodeLayer(const Page& raw, int32_t layer) {
  PAGODA_RETURN_IF_ERROR(CheckLayer(layer));
  if (!(raw.shape() == shape())) {
    return absl::InvalidArgumentError("encode: the two pages have different shapes");
  }
  if (raw.precision() != Precision::kRaw16 || bytes_->own() == nullptr ||
      (precision() != Precision::kQ8 && precision() != Precision::kQ4)) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "encode: from %s to %s; a layer goes from raw16 to Page(shape, \"q8\" or \"q4\")",
        PrecisionName(raw.precision()), PrecisionName(precision())));
  }
  for (int32_t head = 0; head < shape().head_count; ++head) {
    const kernels::PageTile from = raw.view_.tile(layer, head);
    const kernels::PageTile to = view_.tile(layer, head);
    const kernels::EncodeTileParams params = {
        .raw_k = from.raw_k,
        .raw_v = from.raw_v,
        .head_dim = shape().head_dim,
        .page_tokens = shape().page_tokens,
        .k_hi_params = const_cast<uint16_t*>(to.k_hi_params),
        .v_hi_params = const_cast<uint16_t*>(to.v_hi_params),
        .k_lo_params = const_cast<uint16_t*>(to.k_lo_params),
        .v_lo_params = const_cast<uint16_t*>(to.v_lo_params),
        .k_hi = const_cast<uint32_t*>(to.k_hi),
        .v_hi = const_cast<uint32_t*>(to.v_hi),
        .k_lo = const_cast<uint32_t*>(to.k_lo),
        .v_lo = const_cast<uint32_t*>(to.v_lo),
    };
    PAGODA_RETURN_IF_ERROR(kernels::EncodeTileCpu(params));
    const auto sink_bytes = static_cast<size_t>(to.sink_count * shape().head_dim) * 2;
    if (sink_bytes == 0) continue;
    std::memcpy(const_cast<uint16_t*>(to.sink_k), from.raw_k, sink_bytes);
    std::memcpy(const_cast<uint16_t*>(to.sink_v), from.raw_v, sink_bytes);
  }
  return absl::OkStatus();
}

int64_t Page::payload_bytes() const {
  int64_t bytes = 0;
  for (const SegmentEntry& segment : header().segments) bytes += segment.length;
  return bytes;
}

}  // namespace pagoda::python
