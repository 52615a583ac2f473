#include "pages.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "convert.h"
#include "gil.h"
#include "storage/base/clock.h"

namespace pagoda::python {
namespace nb = nanobind;
using nb::literals::operator""_a;
namespace {

using ByteArray = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>, nb::c_contig>;
using ConstByteArray = nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>, nb::c_contig>;
using SpanArray = nb::ndarray<nb::numpy, uint64_t, nb::ndim<2>, nb::c_contig>;

void RegisterHeader(nb::module_& module) {
  nb::class_<PageHeader>(module, "PageHeader", "What a page holds, for whom, computed how.")
      .def_prop_ro("key", [](const PageHeader& self) { return PyBytes(self.record.key.view()); })
      .def_prop_ro("parent", [](const PageHeader& self) { return PyBytes(self.parent.view()); })
      .def_prop_ro("head_begin", [](const PageHeader& self) { return self.record.head_begin; })
      .def_prop_ro("head_count", [](const PageHeader& self) { return self.record.head_count; })
      .def_ro("base_position", &PageHeader::base_position)
      .def_ro("page_tokens", &PageHeader::page_tokens)
      .def_ro("layer_count", &PageHeader::layer_count)
      .def_prop_ro("precision",
                   [](const PageHeader& self) {
                     return PyStr(PrecisionName(pagoda::PrecisionOf(self.planes)));
                   })
      .def_prop_ro("fidelity",
                   [](const PageHeader& self) { return PyStr(PrecisionName(self.fidelity)); })
      .def_prop_ro("segment_lengths",
                   [](const PageHeader& self) {
                     std::vector<uint32_t> lengths;
                     for (const SegmentEntry& segment : self.segments) {
                       lengths.push_back(segment.length);
                     }
                     return lengths;
                   })
      .def_prop_ro("segment_layers", [](const PageHeader& self) {
        std::vector<std::pair<uint32_t, uint32_t>> layers;
        for (const SegmentEntry& segment : self.segments) {
          layers.emplace_back(segment.layer_begin, segment.layer_count);
        }
        return layers;
      });
}

void RegisterHit(nb::module_& module) {
  using client::FoundPage;
  nb::class_<FoundPage>(module, "FoundPage", "A page that a lookup found.")
      .def_ro("loading", &FoundPage::loading)
      .def_prop_ro("tier",
                   [](const FoundPage& self) { return PyStr(client::PageTierName(self.tier)); })
      .def_prop_ro("precision",
                   [](const FoundPage& self) { return PyStr(PrecisionName(self.precision)); })
      .def_prop_ro("fidelity",
                   [](const FoundPage& self) { return PyStr(PrecisionName(self.fidelity)); })
      .def_ro("bytes", &FoundPage::bytes);

  nb::class_<Hit>(module, "Hit",
                  "What a lookup found: a prefix of the keys; with `parts`, page\n"
                  "k * len(parts) + p is key k's record of part p. False if empty.")
      .def_prop_ro("pages",
                   [](Hit& self) {
                     if (!self.pages.is_valid()) self.pages = nb::cast(self.result.pages);
                     return self.pages;
                   })
      .def_prop_ro("lease", [](const Hit& self) { return PyBytes(self.result.lease.view()); })
      .def_prop_ro(
          "lease_seconds",
          [](const Hit& self) {
            return absl::ToDoubleSeconds(std::max(
                self.result.lease_until - SystemClock().Monotonic(), absl::ZeroDuration()));
          })
      .def_prop_ro("chain_index", [](const Hit& self) { return self.result.chain_index; })
      .def_prop_ro("loading",
                   [](const Hit& self) {
                     return std::any_of(self.result.pages.begin(), self.result.pages.end(),
                                        [](const FoundPage& page) { return page.loading; });
                   })
      .def("__len__", [](const Hit& self) { return self.result.pages.size(); })
      .def("__bool__", [](const Hit& self) { return !self.result.pages.empty(); });
}

// The payload of a segment: its padding is no part of it.
ByteSpan PayloadOf(const client::FetchedPage& page, size_t segment) {
  return page.segments[segment].span().subspan(0, page.header.segments[segment].length);
}

nb::object ViewOf(ByteSpan bytes, nb::handle owner) {
  auto* const data = const_cast<uint8_t*>(reinterpret_cast<const uint8_t*>(bytes.data()));
  return nb::cast(ByteArray(data, {bytes.size()}, owner), nb::rv_policy::reference);
}

nb::object ReadOnlyViewOf(ByteSpan bytes, nb::handle owner) {
  const auto* const data = reinterpret_cast<const uint8_t*>(bytes.data());
  return nb::cast(ConstByteArray(data, {bytes.size()}, owner), nb::rv_policy::reference);
}

nb::object JoinedPayload(nb::handle_t<Page> self) {
  const client::FetchedPage& page = nb::cast<const Page&>(self).page;
  if (page.segments.size() == 1) return ViewOf(PayloadOf(page, 0), self);
  size_t size = 0;
  for (const SegmentEntry& segment : page.header.segments) size += segment.length;
  auto* const joined =
      new kernels::AlignedBuffer(kernels::AlignedBuffer::Uninitialized(static_cast<int64_t>(size)));
  const nb::capsule owner(
      joined, [](void* buffer) noexcept { delete static_cast<kernels::AlignedBuffer*>(buffer); });
  WithoutGil([&] {
    std::byte* at = joined->data();
    for (size_t i = 0; i < page.segments.size(); ++i) {
      const ByteSpan payload = PayloadOf(page, i);
      std::memcpy(at, payload.data(), payload.size());
      at += payload.size();
    }
  });
  return ViewOf(joined->span(), owner);
}

void RegisterFetched(nb::module_& module) {
  nb::class_<Page>(module, "FetchedPage", "A page that came: whole, and verified.")
      .def_prop_ro(
          "header", [](const Page& self) -> const PageHeader& { return self.page.header; },
          nb::rv_policy::reference_internal)
      .def_prop_ro("tier",
                   [](const Page& self) { return PyStr(client::PageTierName(self.page.tier)); })
      .def_prop_ro("segments",
                   [](nb::handle_t<Page> self) {
                     const client::FetchedPage& page = nb::cast<const Page&>(self).page;
                     nb::list segments;
                     for (size_t i = 0; i < page.segments.size(); ++i) {
                       segments.append(ViewOf(PayloadOf(page, i), self));
                     }
                     return segments;
                   })
      .def("data", &JoinedPayload,
           "The payloads of all segments, joined: a copy if there are more than one.");

  nb::class_<Fetched>(module, "FetchResult",
                      "`pages` are complete and verified, a prefix of what was asked; `error` says "
                      "why it is shorter.")
      .def_ro("pages", &Fetched::pages)
      .def_ro("error", &Fetched::error)
      .def_ro("bytes", &Fetched::bytes);
}

client::MappedPage MappedPageOf(const Mapped& mapped, int64_t index) {
  const auto count = static_cast<int64_t>(mapped.pages().size());
  if (index < 0 || index >= count) {
    throw nb::index_error(absl::StrFormat("page %d of %d", index, count).c_str());
  }
  return ValueOrRaise(mapped.pages().Page(static_cast<size_t>(index)));
}

// Rows (page, layer_begin, layer_count, address, length).
nb::object SpansOf(const Mapped& mapped) {
  constexpr size_t kColumns = 5;
  auto* const rows = new std::vector<uint64_t>;
  const nb::capsule owner(
      rows, [](void* words) noexcept { delete static_cast<std::vector<uint64_t>*>(words); });
  RaiseIfError(WithoutGil([&]() -> absl::Status {
    for (size_t i = 0; i < mapped.pages().size(); ++i) {
      const absl::StatusOr<client::MappedPage> page = mapped.pages().Page(i);
      if (!page.ok()) return page.status();
      for (size_t s = 0; s < page->segments.size(); ++s) {
        const SegmentEntry& entry = page->header.segments[s];
        rows->insert(rows->end(), {i, entry.layer_begin, entry.layer_count,
                                   reinterpret_cast<uint64_t>(page->segments[s].data()),
                                   page->segments[s].size()});
      }
    }
    return absl::OkStatus();
  }));
  return nb::cast(SpanArray(rows->data(), {rows->size() / kColumns, kColumns}, owner),
                  nb::rv_policy::reference);
}

void RegisterMapped(nb::module_& module) {
  nb::class_<Mapped>(module, "MappedPages",
                     "Pages in the daemon's own memory, read-only. What was read counts only if\n"
                     "still_valid() says so after the last read.")
      .def("__len__", [](const Mapped& self) { return self.pages().size(); })
      .def(
          "header",
          [](const Mapped& self, int64_t index) {
            return std::move(MappedPageOf(self, index).header);
          },
          "index"_a)
      .def(
          "segments",
          [](nb::handle_t<Mapped> self, int64_t index) {
            nb::list segments;
            for (const ByteSpan segment :
                 MappedPageOf(nb::cast<const Mapped&>(self), index).segments) {
              segments.append(ReadOnlyViewOf(segment, self));
            }
            return segments;
          },
          "index"_a, "The payloads of a page: read-only views, nothing is copied.")
      .def("spans", &SpansOf,
           "All pages: rows (page, layer_begin, layer_count, address, length), for copy_spans().")
      .def("still_valid", [](const Mapped& self) { return self.pages().StillValid(); })
      .def_prop_ro("error", [](const Mapped& self) { return ErrorOf(self.pages().status()); });
}

}  // namespace

Fetched FetchedOf(client::FetchResult result) {
  Fetched fetched;
  for (client::FetchedPage& page : result.pages) {
    fetched.pages.append(nb::cast(Page(std::move(page))));
  }
  fetched.error = ErrorOf(result.status);
  fetched.bytes = result.bytes;
  return fetched;
}

Mapped::~Mapped() {
  if (pages_ == nullptr) return;
  WithoutGil([this] {
    pages_ = nullptr;
    client_ = nullptr;
  });
}

void RegisterPages(nb::module_& module) {
  RegisterHeader(module);
  RegisterHit(module);
  RegisterFetched(module);
  RegisterMapped(module);
}

}  // namespace pagoda::python
