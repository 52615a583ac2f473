#include "functions.h"

#include <nanobind/ndarray.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "buffer.h"
#include "convert.h"
#include "gil.h"
#include "kernels/page_layout.h"
#include "storage/base/crc32c.h"
#include "storage/base/page_key.h"

namespace pagoda::python {
namespace nb = nanobind;
using nb::literals::operator""_a;
namespace {

constexpr int64_t kCopyThreadsMax = 64;
constexpr uint64_t kCopyThreadBytesMin = 1 << 20;  // below that a thread costs more than it saves

nb::list ListOf(const std::vector<PageKey>& keys) {
  nb::list list;
  for (const PageKey& key : keys) list.append(PyBytes(key.view()));
  return list;
}

nb::list ChainOf(const nb::bytes& root, nb::handle token_ids, uint32_t page_tokens) {
  if (page_tokens == 0) {
    Raise(absl::InvalidArgumentError("page_tokens is 0; accepted: what the daemon says, often 64"));
  }
  const auto parent = IdOf<PageKey>(root, "root");
  const std::vector<uint32_t> tokens = TokensOf(token_ids);
  return ListOf(WithoutGil([&] { return KeyChain(parent, tokens, page_tokens); }));
}

nb::list ExternalKeys(const nb::bytes& root, nb::handle hashes) {
  const auto top = IdOf<PageKey>(root, "root");
  nb::list keys;
  for (const nb::object& hash : ElementsOf(hashes, "hashes")) {
    if (!nb::isinstance<nb::bytes>(hash)) throw nb::type_error("hashes: bytes are expected");
    keys.append(PyBytes(ExternalKeyOf(top, TextOf(nb::borrow<nb::bytes>(hash))).view()));
  }
  return keys;
}

uint32_t ChecksumOf(nb::handle data, uint32_t crc) {
  const Buffer buffer(data, "data");
  return WithoutGil([&] { return Crc32c(buffer.bytes(), crc); });
}

struct Copy {
  std::byte* target;
  const std::byte* source;
  uint64_t bytes;
};

// Bytes [begin, end) of all the copies, one after the other.
void CopyRange(const std::vector<Copy>& copies, uint64_t begin, uint64_t end) {
  uint64_t at = 0;
  for (const Copy& copy : copies) {
    const uint64_t from = std::max(begin, at) - at;
    const uint64_t to = std::min(end, at + copy.bytes) - at;
    if (at < end && from < copy.bytes && from < to) {
      std::memcpy(copy.target + from, copy.source + from, to - from);
    }
    at += copy.bytes;
    if (at >= end) return;
  }
}

using CopyRows = nb::ndarray<const uint64_t, nb::shape<-1, 3>, nb::c_contig, nb::device::cpu>;

uint64_t CopySpans(const CopyRows& spans, int64_t threads) {
  if (threads < 1 || threads > kCopyThreadsMax) {
    Raise(absl::InvalidArgumentError(
        absl::StrCat("copy_spans: threads is ", threads, "; accepted: 1 to ", kCopyThreadsMax)));
  }
  const uint64_t* const words = spans.data();
  const size_t count = spans.shape(0);
  return WithoutGil([&] {
    std::vector<Copy> copies(count);
    uint64_t bytes = 0;
    for (size_t i = 0; i < count; ++i) {
      const uint64_t* const row = words + 3 * i;
      copies[i] = {reinterpret_cast<std::byte*>(row[0]), reinterpret_cast<const std::byte*>(row[1]),
                   row[2]};
      bytes += row[2];
    }
    const uint64_t worth = std::max<uint64_t>(bytes / kCopyThreadBytesMin, 1);
    const uint64_t parts = std::min<uint64_t>(static_cast<uint64_t>(threads), worth);
    const auto edge = [&](uint64_t part) { return bytes / parts * part; };
    std::vector<std::thread> others;
    for (uint64_t part = 1; part < parts; ++part) {
      const uint64_t end = part + 1 == parts ? bytes : edge(part + 1);
      const auto copy = [&copies, begin = edge(part), end] { CopyRange(copies, begin, end); };
      try {
        others.emplace_back(copy);
      } catch (const std::system_error&) {  // no more threads to be had
        copy();
      }
    }
    CopyRange(copies, 0, parts == 1 ? bytes : edge(1));
    for (std::thread& other : others) other.join();
    return bytes;
  });
}

std::vector<std::pair<int32_t, int32_t>> OpaqueSegments(int64_t layer_count, int64_t layer_bytes) {
  RaiseIfError(kernels::ValidateOpaquePage(layer_count, layer_bytes));
  std::vector<std::pair<int32_t, int32_t>> layers;
  for (const kernels::LayerRun run : kernels::OpaqueSegmentLayers(
           static_cast<uint16_t>(layer_count), static_cast<uint32_t>(layer_bytes))) {
    layers.emplace_back(run.begin, run.count);
  }
  return layers;
}

}  // namespace

void RegisterFunctions(nb::module_& module) {
  module.def("key_chain", &ChainOf, "root"_a, "token_ids"_a, "page_tokens"_a,
             "Keys of all full pages of these tokens, in order.");
  module.def("external_keys", &ExternalKeys, "root"_a, "hashes"_a,
             "Keys of an engine's own block hashes, which stay opaque.");
  module.def("crc32c", &ChecksumOf, "data"_a, "crc"_a = 0,
             "CRC32C of a contiguous buffer, continuing from `crc`.");
  module.def(
      "copy_spans", &CopySpans, "spans"_a, "threads"_a = 1,
      "Copies rows (destination, source, length) of addresses, without the GIL; returns the\n"
      "bytes. The caller answers for the addresses.");
  module.def("opaque_segment_layers", &OpaqueSegments, "layer_count"_a, "layer_bytes"_a,
             "How an opaque page's layers fall into segments: (begin, count) each.");
}

}  // namespace pagoda::python
