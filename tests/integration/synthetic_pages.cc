#include "tests/integration/synthetic_pages.h"

#include <cstring>
#include <utility>

#include "kernels/codec.h"
#include "storage/base/crc32c.h"

namespace pagoda {
namespace {

uint64_t SplitMix(uint64_t& state) {
  uint64_t z = state += 0x9e3779b97f4a7c15;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

}  // namespace

SyntheticDocument::SyntheticDocument(const kernels::PageShape& shape, int page_count, uint32_t seed,
                                     std::string model_name)
    : shape_(shape), seed_(seed), model_name_(std::move(model_name)) {
  kernels::AppendPlanes(Precision::kRaw16, shape_, layout_);
  uint64_t state = seed;
  for (int i = 0; i < page_count * shape.page_tokens; ++i) {
    token_ids_.push_back(static_cast<uint32_t>(SplitMix(state) % 50000));
  }
}

ModelSpec SyntheticDocument::model() const {
  ModelSpec spec;
  spec.model = model_name_;
  spec.groups = {{GroupKind::kFull, static_cast<uint32_t>(shape_.layer_count),
                  static_cast<uint32_t>(shape_.head_count), static_cast<uint32_t>(shape_.head_dim),
                  0}};
  spec.rope = {RopeStyle::kHalfSplit, 10000, static_cast<uint32_t>(shape_.head_dim), ""};
  return spec;
}

std::vector<PageKey> SyntheticDocument::KeysFrom(const PageKey& root) const {
  return KeyChain(root, token_ids_, static_cast<uint32_t>(shape_.page_tokens));
}

std::vector<std::vector<uint32_t>> SyntheticDocument::Segments(int index) const {
  uint64_t state = (uint64_t{seed_} << 32) + static_cast<uint64_t>(index);
  std::vector<std::vector<uint32_t>> segments;
  for (const SegmentEntry& entry : layout_.segments) {
    std::vector<uint32_t>& words = segments.emplace_back(entry.length / 4);
    for (uint32_t& word : words) {
      // Two bf16 numbers with exponents near one: finite, of both signs.
      const auto random = static_cast<uint32_t>(SplitMix(state));
      word = (random & 0x80ff80ff) | 0x3f003f00;
    }
  }
  return segments;
}

client::PushItem SyntheticDocument::Item(const client::ScopeInfo& scope,
                                         absl::Span<const PageKey> keys, int index) const {
  client::PushItem item;
  item.scope = scope.id;
  item.key = keys[index];
  item.parent_is_root = index == 0;
  item.parent = index == 0 ? scope.root : keys[index - 1];
  const auto tokens = static_cast<size_t>(shape_.page_tokens);
  item.token_ids.assign(token_ids_.begin() + index * tokens,
                        token_ids_.begin() + (index + 1) * tokens);
  item.base_position = static_cast<uint64_t>(index) * tokens;
  auto owner = std::make_shared<std::vector<std::vector<uint32_t>>>(Segments(index));
  for (const std::vector<uint32_t>& words : *owner) {
    item.segments.emplace_back(reinterpret_cast<const std::byte*>(words.data()), words.size() * 4);
    item.segment_crc32c.push_back(Crc32c(item.segments.back()));
  }
  item.owner = std::move(owner);
  return item;
}

bool SyntheticDocument::MatchesEncoded(const client::FetchedPage& page, int index) const {
  PageHeader raw = page.header;
  raw.planes.clear();
  raw.segments.clear();
  raw.rotation = Rotation::kNone;
  raw.recipe = CodeRecipe::kNone;
  kernels::AppendPlanes(Precision::kRaw16, shape_, raw);
  std::vector<kernels::AlignedBuffer> sources;
  std::vector<ByteSpan> source_spans;
  for (const std::vector<uint32_t>& words : Segments(index)) {
    sources.emplace_back(static_cast<int64_t>(words.size() * 4));
    std::memcpy(sources.back().data(), words.data(), words.size() * 4);
    source_spans.push_back(sources.back().span());
  }
  absl::StatusOr<PageHeader> expected =
      kernels::PlanEncodedHeader(raw, PrecisionOf(page.header.planes));
  if (!expected.ok() || expected->planes != page.header.planes) return false;
  std::vector<kernels::AlignedBuffer> targets;
  std::vector<MutableByteSpan> target_spans;
  for (const SegmentEntry& segment : expected->segments) {
    targets.emplace_back(segment.stored_bytes());
    target_spans.push_back(targets.back().mutable_span());
  }
  if (!kernels::EncodePage(raw, source_spans, *expected, target_spans).ok()) return false;
  if (page.segments.size() != targets.size()) return false;
  for (size_t i = 0; i < targets.size(); ++i) {
    const size_t length = expected->segments[i].length;
    if (page.header.segments[i].length != length) return false;
    if (std::memcmp(page.segments[i].data(), targets[i].data(), length) != 0) return false;
  }
  return true;
}

bool SyntheticDocument::Matches(const client::FetchedPage& page, int index) const {
  if (PrecisionOf(page.header.planes) != Precision::kRaw16) return MatchesEncoded(page, index);
  const std::vector<std::vector<uint32_t>> segments = Segments(index);
  if (page.segments.size() != segments.size()) return false;
  for (size_t i = 0; i < segments.size(); ++i) {
    if (page.header.segments[i].length != segments[i].size() * 4) return false;
    if (std::memcmp(page.segments[i].data(), segments[i].data(), segments[i].size() * 4) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace pagoda
