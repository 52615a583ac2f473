#include "page_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstring>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "errors.h"
#include "kernels/codec.h"
#include "kv_rows.h"
#include "page.h"

namespace pagoda::python {
namespace nb = nanobind;
namespace {

using kernels::PageShape;
using Layers = std::vector<int32_t>;

Precision PrecisionOfWord(const std::string& word) { return ValueOrRaise(ParsePrecision(word)); }

Page::Form FormOf(const PageShape& shape, const std::string& precision, int64_t base_position,
                  Layers k_lo_layers) {
  return {shape, PrecisionOfWord(precision), base_position, std::move(k_lo_layers)};
}

void InitPage(Page* self, const PageShape& shape, const std::string& precision,
              std::optional<nb::sequence> segments, int64_t base_position, Layers k_lo_layers) {
  const Page::Form form = FormOf(shape, precision, base_position, std::move(k_lo_layers));
  if (!segments.has_value()) {
    new (self) Page(ValueOrRaise(Page::Zeroed(form)));
    return;
  }
  std::vector<Buffer> held;
  for (nb::handle segment : *segments) held.emplace_back(segment, "segment");
  new (self) Page(ValueOrRaise(Page::Over(form, std::move(held))));
}

// What takes a while.
template <typename Work>
Page WithoutGil(Work work) {
  absl::StatusOr<Page> page = [&] {
    nb::gil_scoped_release release;
    return work();
  }();
  return ValueOrRaise(std::move(page));
}

Page PageFromBytes(const PageShape& shape, const std::string& precision, nb::handle data,
                   int64_t base_position, Layers k_lo_layers) {
  const Page::Form form = FormOf(shape, precision, base_position, std::move(k_lo_layers));
  const Buffer buffer(data, "data");
  return WithoutGil([&] { return Page::CopyOf(form, buffer.bytes()); });
}

nb::object SegmentViews(nb::handle_t<Page> self) {
  const Page& page = nb::cast<const Page&>(self);
  nb::list views;
  for (const ByteSpan& segment : page.segments()) {
    const size_t size = segment.size();
    views.append(nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(segment.data(), {size}, self));
  }
  return views;
}

using ByteArray = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;
using FloatArray = nb::ndarray<nb::numpy, float, nb::ndim<3>>;

ByteArray DataOf(const Page& page) {
  const auto size = static_cast<size_t>(page.payload_bytes());
  auto* bytes = new uint8_t[size];
  nb::capsule owner(bytes, [](void* p) noexcept { delete[] static_cast<uint8_t*>(p); });
  size_t at = 0;
  for (const ByteSpan& segment : page.segments()) {
    std::memcpy(bytes + at, segment.data(), segment.size());
    at += segment.size();
  }
  return ByteArray(bytes, {size}, owner);
}

void WriteRows(Page& page, int32_t layer, int64_t token, nb::handle k, nb::handle v) {
  const PageShape& shape = page.shape();
  RaiseIfError(page.CheckLayer(layer));
  const KvRows k_rows(k, "k", shape.head_count, shape.head_dim);
  const KvRows v_rows(v, "v", shape.head_count, shape.head_dim);
  const int64_t count = k_rows.token_count();
  if (v_rows.token_count() != count || token < 0 || count > shape.page_tokens - token) {
    Raise(absl::InvalidArgumentError(absl::StrFormat(
        "write: %d tokens of k and %d of v at token %d, expected as many of both in a page of %d",
        count, v_rows.token_count(), token, shape.page_tokens)));
  }
  for (int32_t head = 0; head < shape.head_count; ++head) {
    const Page::RawRows rows = ValueOrRaise(page.MutableRows(layer, head));
    k_rows.CopyTo(rows.k + token * shape.head_dim, head, 0, count);
    v_rows.CopyTo(rows.v + token * shape.head_dim, head, 0, count);
  }
}

FloatArray NewFloats(size_t a, size_t b, size_t c) {
  auto* floats = new float[a * b * c];
  nb::capsule owner(floats, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return FloatArray(floats, {a, b, c}, owner);
}

std::pair<FloatArray, FloatArray> Decode(nb::sequence sequence, int32_t layer) {
  const nb::tuple pages(sequence);  // holds them, whatever becomes of a list
  if (pages.size() == 0) Raise(absl::InvalidArgumentError("decode: no pages"));
  std::vector<const Page*> sources;
  for (nb::handle page : pages) sources.push_back(&nb::cast<const Page&>(page));
  const PageShape& shape = sources.front()->shape();
  for (const Page* page : sources) {
    if (!(page->shape() == shape)) {
      Raise(absl::InvalidArgumentError("decode: pages of different shapes"));
    }
  }
  RaiseIfError(sources.front()->CheckLayer(layer));
  const auto heads = static_cast<size_t>(shape.head_count);
  const size_t tokens = sources.size() * static_cast<size_t>(shape.page_tokens);
  FloatArray k = NewFloats(heads, tokens, static_cast<size_t>(shape.head_dim));
  FloatArray v = NewFloats(heads, tokens, static_cast<size_t>(shape.head_dim));
  absl::Status status;
  {
    nb::gil_scoped_release release;
    const int64_t tile_floats = int64_t{shape.page_tokens} * shape.head_dim;
    for (int32_t head = 0; head < shape.head_count; ++head) {
      for (size_t i = 0; i < sources.size() && status.ok(); ++i) {
        const auto at = (static_cast<int64_t>(head) * static_cast<int64_t>(sources.size()) +
                         static_cast<int64_t>(i)) *
                        tile_floats;
        status = kernels::DecodeTileCpu(sources[i]->view().tile(layer, head), shape, k.data() + at,
                                        v.data() + at);
      }
    }
  }
  RaiseIfError(status);
  return {std::move(k), std::move(v)};
}

}  // namespace

void BindPages(nb::module_& module) {
  nb::class_<PageShape>(module, "PageShape", "Layers, kv heads and channels of a page's tokens.")
      .def(
          "__init__",
          [](PageShape* self, int32_t layers, int32_t heads, int32_t head_dim, int32_t tokens) {
            const PageShape shape = {layers, heads, head_dim, tokens};
            RaiseIfError(kernels::ValidatePageShape(shape));
            new (self) PageShape(shape);
          },
          nb::arg("layer_count"), nb::arg("head_count"), nb::arg("head_dim"),
          nb::arg("page_tokens") = 64)
      .def_ro("layer_count", &PageShape::layer_count)
      .def_ro("head_count", &PageShape::head_count)
      .def_ro("head_dim", &PageShape::head_dim)
      .def_ro("page_tokens", &PageShape::page_tokens)
      .def("__eq__", [](const PageShape& a, const PageShape& b) { return a == b; })
      .def("__repr__", [](const PageShape& shape) {
        return absl::StrFormat(
            "PageShape(layer_count=%d, head_count=%d, head_dim=%d, page_tokens=%d)",
            shape.layer_count, shape.head_count, shape.head_dim, shape.page_tokens);
      });

  nb::class_<Page>(
      module, "Page",
      "K and V of page_tokens tokens, all layers. Without segments raw16, q8 or q4 in\n"
      "zeroed memory of its own; with them (the payloads, in order) over their memory,\n"
      "or over a copy where that is not aligned to 64 bytes.")
      .def("__init__", InitPage, nb::arg("shape"), nb::arg("precision") = "raw16",
           nb::arg("segments") = nb::none(), nb::kw_only(), nb::arg("base_position") = 0,
           nb::arg("k_lo_layers") = Layers())
      .def_static("from_bytes", PageFromBytes, nb::arg("shape"), nb::arg("precision"),
                  nb::arg("data"), nb::kw_only(), nb::arg("base_position") = 0,
                  nb::arg("k_lo_layers") = Layers())
      .def_prop_ro("shape", &Page::shape)
      .def_prop_ro("precision",
                   [](const Page& page) {
                     return std::string(PrecisionName(PrecisionOf(page.header().planes)));
                   })
      .def_prop_ro("reads_as",
                   [](const Page& page) { return std::string(PrecisionName(page.precision())); })
      .def_prop_ro("base_position", &Page::base_position)
      .def_prop_ro("segments", SegmentViews)
      .def_prop_ro("segment_layers",
                   [](const Page& page) {
                     std::vector<std::pair<int, int>> layers;
                     for (const SegmentEntry& segment : page.header().segments) {
                       layers.emplace_back(segment.layer_begin, segment.layer_count);
                     }
                     return layers;
                   })
      .def_prop_ro("nbytes", &Page::payload_bytes)
      .def_prop_ro("stored_bytes", [](const Page& page) { return page.header().stored_bytes(); })
      .def("data", DataOf, "The payloads of all segments, joined: a copy.")
      .def("write", WriteRows, nb::arg("layer"), nb::arg("token"), nb::arg("k"), nb::arg("v"),
           "Rows of a raw16 page from that token on, [kv heads, tokens, head_dim] each.")
      .def(
          "read_at",
          [](const Page& page, const std::string& precision, const Layers& k_lo_layers) {
            return ValueOrRaise(page.ReadAt(PrecisionOfWord(precision), k_lo_layers));
          },
          nb::arg("precision"), nb::arg("k_lo_layers") = Layers());

  module.def(
      "encode",
      [](const Page& page, const std::string& precision, const Layers& k_lo_layers) {
        const Precision target = PrecisionOfWord(precision);
        return WithoutGil([&] { return page.Encode(target, k_lo_layers); });
      },
      nb::arg("page"), nb::arg("precision") = "q8", nb::arg("k_lo_layers") = Layers(),
      "The codes of a raw16 page. INVALID_ARGUMENT: NaN, infinity or magnitudes above 2^17; it "
      "stays raw16 then.");
  module.def(
      "cut",
      [](const Page& page, const std::string& precision, const Layers& k_lo_layers) {
        const Precision target = PrecisionOfWord(precision);
        return WithoutGil([&] { return page.Cut(target, k_lo_layers); });
      },
      nb::arg("page"), nb::arg("precision"), nb::arg("k_lo_layers") = Layers(),
      "The poorer page that an encoded one contains: what encoding to that precision gives.");
  module.def(
      "encode_layer",
      [](const Page& raw, Page& target, int32_t layer) {
        absl::Status status;
        {
          nb::gil_scoped_release release;
          status = target.EncodeLayer(raw, layer);
        }
        RaiseIfError(status);
      },
      nb::arg("raw"), nb::arg("target"), nb::arg("layer"),
      "Encodes one layer of a raw16 page into Page(shape, \"q8\" or \"q4\") at its position.");
  module.def("decode", Decode, nb::arg("pages"), nb::arg("layer"),
             "K and V of a layer, [kv heads, tokens of all pages, head_dim] float32 each.");
}

}  // namespace pagoda::python
