#include "client/cli/bench_pages.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/base/crc32c.h"

namespace pagoda::cli {
namespace {

constexpr int64_t kPayloadBytesMax = int64_t{64} << 20;
constexpr uint32_t kVocabulary = 50000;

// SplitMix64: fast, and every seed gives another sequence.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

 private:
  uint64_t state_;
};

PageHeader RawHeader(const kernels::PageShape& shape) {
  PageHeader header;
  kernels::AppendPlanes(Precision::kRaw16, shape, header);
  return header;
}

// bf16 in (-2, 2): sign, exponents 120 to 127, any mantissa.
void FillRandom(MutableByteSpan bytes, Random& random) {
  for (size_t at = 0; at + 2 <= bytes.size(); at += 2) {
    const uint64_t bits = random.Next();
    const auto value = static_cast<uint16_t>((bits & 0x807F) | ((120 + ((bits >> 8) & 7)) << 7));
    std::memcpy(bytes.data() + at, &value, sizeof(value));
  }
}

}  // namespace

ModelSpec BenchModel(const kernels::PageShape& shape, const std::string& revision) {
  ModelSpec spec;
  spec.model =
      absl::StrFormat("bench-%dx%dx%d", shape.layer_count, shape.head_count, shape.head_dim);
  spec.weights_revision = revision;
  LayerGroup group;
  group.layer_count = static_cast<uint32_t>(shape.layer_count);
  group.kv_head_count = static_cast<uint32_t>(shape.head_count);
  group.head_dim = static_cast<uint32_t>(shape.head_dim);
  spec.groups = {group};
  spec.rope.theta = 10000;
  spec.rope.rotary_dims = group.head_dim;
  return spec;
}

int64_t RawPayloadBytes(const kernels::PageShape& shape) {
  int64_t bytes = 0;
  for (const SegmentEntry& segment : RawHeader(shape).segments) bytes += segment.length;
  return bytes;
}

BenchPages::BenchPages(const kernels::PageShape& shape, int64_t page_count)
    : shape_(shape), page_count_(page_count) {
  const PageHeader header = RawHeader(shape);
  const int64_t distinct =
      std::clamp(kPayloadBytesMax / RawPayloadBytes(shape), int64_t{1}, page_count);
  Random random(1);
  for (int64_t i = 0; i < distinct; ++i) {
    auto payload = std::make_shared<Payload>();
    for (const SegmentEntry& segment : header.segments) {
      kernels::AlignedBuffer buffer(segment.length);
      FillRandom(buffer.mutable_span(), random);
      payload->crc32c.push_back(Crc32c(buffer.span()));
      payload->segments.push_back(std::move(buffer));
    }
    payloads_.push_back(std::move(payload));
  }
}

BenchPages::Chain BenchPages::MakeChain(const PageKey& root, uint64_t seed) const {
  Chain chain;
  Random random(seed);
  PageKey parent = root;
  for (int64_t page = 0; page < page_count_; ++page) {
    std::vector<uint32_t> ids(static_cast<size_t>(shape_.page_tokens));
    for (uint32_t& id : ids) id = static_cast<uint32_t>(random.Next() % kVocabulary);
    parent = KeyOf(parent, ids);
    chain.keys.push_back(parent);
    chain.token_ids.push_back(std::move(ids));
  }
  return chain;
}

client::PushItem BenchPages::Item(const Chain& chain, const client::ScopeInfo& scope,
                                  int64_t index) const {
  const std::shared_ptr<const Payload>& payload =
      payloads_[static_cast<size_t>(index) % payloads_.size()];
  const auto at = static_cast<size_t>(index);
  client::PushItem item;
  item.scope = scope.id;
  item.key = chain.keys[at];
  item.parent = at == 0 ? scope.root : chain.keys[at - 1];
  item.parent_is_root = at == 0;
  item.token_ids = chain.token_ids[at];
  item.base_position = static_cast<uint64_t>(index * shape_.page_tokens);
  for (const kernels::AlignedBuffer& segment : payload->segments) {
    item.segments.push_back(segment.span());
  }
  item.segment_crc32c = payload->crc32c;
  item.owner = payload;
  return item;
}

bool BenchPages::IsItem(const client::FetchedPage& page, int64_t index) const {
  const Payload& payload = *payloads_[static_cast<size_t>(index) % payloads_.size()];
  if (page.header.segments.size() != payload.crc32c.size()) return false;
  for (size_t i = 0; i < payload.crc32c.size(); ++i) {
    if (page.header.segments[i].crc32c != payload.crc32c[i]) return false;
  }
  return true;
}

}  // namespace pagoda::cli
