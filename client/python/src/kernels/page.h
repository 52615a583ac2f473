// A page in memory for Python: the tables that its shape and precision imply, its bytes, and the
// view that kernels read it through. It has no identity and no key: those are of the client.
//
// Bytes      of its own, zeroed; or held by Python objects, and then never written
// Threads    made and destroyed with the GIL; const methods from any thread. Who writes rows sees
//            to it that nobody reads them meanwhile.
// Errors     INVALID_ARGUMENT     names the field, its value and what is accepted
//            FAILED_PRECONDITION  the page has not that precision, or cannot be written
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "buffer.h"
#include "client/worker/page_buffer.h"
#include "kernels/page_layout.h"
#include "kernels/page_view.h"
#include "storage/base/bytes.h"
#include "storage/base/precision.h"

namespace pagoda::python {

class Page {
 public:
  struct Form {
    kernels::PageShape shape;
    Precision precision = Precision::kRaw16;
    int64_t base_position = 0;
    std::vector<int32_t> k_lo_layers = {};  // at q4: layers whose K keeps its lo plane
  };

  static absl::StatusOr<Page> Zeroed(const Form& form);
  // `held` are the payloads of the segments, in order. Those at a multiple of 64 bytes are read
  // where they are, others are copied.
  static absl::StatusOr<Page> Over(const Form& form, std::vector<Buffer> held);
  // The payloads of all segments, one after another; copied.
  static absl::StatusOr<Page> CopyOf(const Form& form, ByteSpan payload);

  // The codes of a raw16 page; or the poorer page that an encoded one contains.
  absl::StatusOr<Page> Encode(Precision precision, const std::vector<int32_t>& k_lo_layers) const;
  absl::StatusOr<Page> Cut(Precision precision, const std::vector<int32_t>& k_lo_layers) const;
  // The same bytes, read at that precision at most.
  absl::StatusOr<Page> ReadAt(Precision at_most, const std::vector<int32_t>& k_lo_layers) const;
  // Encodes one layer of `raw` into this page, whose others stay as they are.
  absl::Status EncodeLayer(const Page& raw, int32_t layer);

  // Rows of a raw16 page of this memory's own: [heads][tokens][head_dim], head `head`'s from
  // `token`.
  struct RawRows {
    uint16_t* k;
    uint16_t* v;
  };
  absl::StatusOr<RawRows> MutableRows(int32_t layer, int32_t head);

  const kernels::PageShape& shape() const { return view_.shape(); }
  Precision precision() const { return view_.precision(); }
  int64_t base_position() const { return static_cast<int64_t>(header().base_position); }
  const kernels::PageView& view() const { return view_; }
  const PageHeader& header() const { return bytes_->header(); }
  absl::Span<const ByteSpan> segments() const { return bytes_->segments(); }
  int64_t payload_bytes() const;

  // INVALID_ARGUMENT: there is no such layer.
  absl::Status CheckLayer(int32_t layer) const;

 private:
  class Bytes {
   public:
    explicit Bytes(PageBuffer own) : own_(std::move(own)) {}
    Bytes(PageHeader header, std::vector<Buffer> held);
    const PageHeader& header() const { return own_ ? own_->header() : header_; }
    absl::Span<const ByteSpan> segments() const { return own_ ? own_->segments() : spans_; }
    PageBuffer* own() { return own_ ? &*own_ : nullptr; }

   private:
    std::optional<PageBuffer> own_;
    PageHeader header_;
    std::vector<Buffer> held_;
    std::vector<ByteSpan> spans_;
  };

  Page(std::shared_ptr<Bytes> bytes, kernels::PageView view)
      : bytes_(std::move(bytes)), view_(std::move(view)) {}
  static absl::StatusOr<Page> Make(std::shared_ptr<Bytes> bytes, const kernels::PageShape& shape,
                                   Precision at_most, const std::vector<int32_t>& k_lo_layers);

  std::shared_ptr<Bytes> bytes_;
  kernels::PageView view_;
};

}  // namespace pagoda::python
