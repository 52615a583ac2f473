#include "attention_binding.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "attention_calls.h"
#include "errors.h"
#include "kernels/isa.h"
#include "kernels/merge_states.h"
#include "page.h"

namespace pagoda::python {
namespace nb = nanobind;
namespace {

using Floats3 = nb::ndarray<const float, nb::ndim<3>, nb::c_contig, nb::device::cpu>;
using Floats2 = nb::ndarray<const float, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
using NewArray = nb::ndarray<nb::numpy, float>;

NewArray MakeFloats(std::vector<size_t> shape) {
  size_t count = 1;
  for (size_t axis : shape) count *= axis;
  auto* floats = new float[count];
  nb::capsule owner(floats, [](void* p) noexcept { delete[] static_cast<float*>(p); });
  return NewArray(floats, shape.size(), shape.data(), owner);
}

// Of the pages' tiles those that a query up to `last_position` sees, of each kv head.
std::vector<std::vector<kernels::PageTile>> TilesOf(const std::vector<const Page*>& pages,
                                                    int32_t layer, int64_t last_position) {
  const kernels::PageShape& shape = pages.front()->shape();
  std::vector<std::vector<kernels::PageTile>> tiles(static_cast<size_t>(shape.head_count));
  int64_t position_before = -1;
  for (const Page* page : pages) {
    if (!(page->shape() == shape)) {
      Raise(absl::InvalidArgumentError("attention: pages of different shapes"));
    }
    if (page->base_position() <= position_before) {
      Raise(absl::InvalidArgumentError(
          absl::StrFormat("attention: a page at position %d after one at %d; sort them",
                          page->base_position(), position_before)));
    }
    position_before = page->base_position();
    const int64_t seen = last_position + 1 - page->base_position();
    if (seen <= 0) break;
    for (int32_t head = 0; head < shape.head_count; ++head) {
      kernels::PageTile tile = page->view().tile(layer, head);
      // Rows that are not written yet are not read either.
      if (tile.precision == Precision::kRaw16) {
        tile.token_count = static_cast<int32_t>(std::min<int64_t>(seen, shape.page_tokens));
      }
      tiles[static_cast<size_t>(head)].push_back(tile);
    }
  }
  return tiles;
}

nb::object AttentionOf(Floats3 q, nb::sequence sequence, int32_t layer,
                       std::optional<int64_t> first_position, std::optional<float> softmax_scale,
                       bool lse, bool float_codes) {
  const nb::tuple held(sequence);  // holds them, whatever becomes of a list
  if (held.size() == 0) Raise(absl::InvalidArgumentError("attention: no pages"));
  std::vector<const Page*> pages;
  for (nb::handle page : held) pages.push_back(&nb::cast<const Page&>(page));
  const kernels::PageShape& shape = pages.front()->shape();
  RaiseIfError(pages.front()->CheckLayer(layer));
  const auto queries = static_cast<int64_t>(q.shape(0));
  const auto heads = static_cast<int64_t>(q.shape(1));
  if (heads == 0 || heads % shape.head_count != 0 ||
      static_cast<int64_t>(q.shape(2)) != shape.head_dim) {
    Raise(absl::InvalidArgumentError(absl::StrFormat(
        "attention: q [%d][%d][%d], expected [queries][a multiple of %d kv heads][%d]", queries,
        heads, q.shape(2), shape.head_count, shape.head_dim)));
  }
  AttentionCall call;
  call.q = q.data();
  call.query_count = queries;
  call.head_count = shape.head_count;
  call.group_count = static_cast<int32_t>(heads / shape.head_count);
  call.head_dim = shape.head_dim;
  call.page_tokens = shape.page_tokens;
  // By default the queries are the last of the pages' tokens.
  call.first_position =
      first_position.value_or(pages.back()->base_position() + shape.page_tokens - queries);
  call.softmax_scale = softmax_scale.value_or(1.0f / std::sqrt(static_cast<float>(shape.head_dim)));
  call.float_codes = float_codes;
  const auto tiles = TilesOf(pages, layer, call.first_position + queries - 1);
  call.tiles = tiles;
  NewArray out = MakeFloats({q.shape(0), q.shape(1), q.shape(2)});
  call.out = out.data();
  std::optional<NewArray> lse2;
  if (lse) {
    lse2 = MakeFloats({q.shape(0), q.shape(1)});
    call.lse2 = lse2->data();
  }
  absl::Status status;
  {
    nb::gil_scoped_release release;
    status = Attend(call);
  }
  RaiseIfError(status);
  if (!lse) return nb::cast(out);
  return nb::make_tuple(out, *lse2);
}

nb::tuple MergeStates(Floats3 o, Floats2 lse2, Floats3 other_o, Floats2 other_lse2) {
  const auto same = [&](const auto& a, const auto& b, size_t axes) {
    for (size_t i = 0; i < axes; ++i) {
      if (a.shape(i) != b.shape(i)) return false;
    }
    return true;
  };
  if (!same(o, other_o, 3) || !same(lse2, other_lse2, 2) || !same(o, lse2, 2)) {
    Raise(absl::InvalidArgumentError(absl::StrFormat(
        "merge_states: o [%d][%d][%d], lse2 [%d][%d] with o [%d][%d][%d], "
        "lse2 [%d][%d]; all must have the same rows",
        o.shape(0), o.shape(1), o.shape(2), lse2.shape(0), lse2.shape(1), other_o.shape(0),
        other_o.shape(1), other_o.shape(2), other_lse2.shape(0), other_lse2.shape(1))));
  }
  NewArray merged_o = MakeFloats({o.shape(0), o.shape(1), o.shape(2)});
  NewArray merged_lse2 = MakeFloats({lse2.shape(0), lse2.shape(1)});
  {
    nb::gil_scoped_release release;
    std::copy_n(o.data(), o.size(), merged_o.data());
    std::copy_n(lse2.data(), lse2.size(), merged_lse2.data());
    // Sources are only read.
    const kernels::AttentionState source = {const_cast<float*>(other_o.data()),
                                            const_cast<float*>(other_lse2.data())};
    kernels::MergeStatesCpu({merged_o.data(), merged_lse2.data()}, source,
                            static_cast<int64_t>(lse2.size()), static_cast<int32_t>(o.shape(2)));
  }
  return nb::make_tuple(merged_o, merged_lse2);
}

}  // namespace

void BindAttention(nb::module_& module) {
  module.def("attention", AttentionOf, nb::arg("q"), nb::arg("pages"), nb::arg("layer"),
             nb::kw_only(), nb::arg("first_position") = nb::none(),
             nb::arg("softmax_scale") = nb::none(), nb::arg("lse") = false,
             nb::arg("float_codes") = false,
             "Causal attention of one layer over pages of mixed precisions, read as they are.\n\n"
             "Query i is at first_position + i (by default the queries are the pages' last tokens) "
             "and sees tokens up to there; pages ascend, gaps are fine. softmax_scale is 1 / "
             "sqrt(head_dim) by default. With lse also log2 of the sum of 2^x, x = q . k * scale * "
             "log2(e): what merge_states() takes. A query that sees nothing: 0 and -inf. One query "
             "reads codes by integers where the processor can, unless float_codes.");
  module.def("merge_states", MergeStates, nb::arg("o"), nb::arg("lse2"), nb::arg("other_o"),
             nb::arg("other_lse2"),
             "Attention over the tokens of both, from attention over disjoint sets of them.");
  module.def(
      "set_threads", [](int count) { RaiseIfError(SetAttentionThreads(count)); }, nb::arg("count"),
      "Threads of attention() in this process, the caller's own counted; 1 at first.");
  module.def("threads", AttentionThreads);
  module.def("available_isas", kernels::AvailableIsas);
  module.def(
      "use_isa", [](const std::string& name) { RaiseIfError(kernels::UseIsa(name)); },
      nb::arg("name"));
}

}  // namespace pagoda::python
