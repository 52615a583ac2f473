#include "cache-server/testing/test_pages.h"

#include <random>

#include "kernels/float16.h"
#include "kernels/page_layout.h"
#include "storage/base/check.h"
#include "storage/base/crc32c.h"

namespace pagoda {
namespace {

std::string RandomBf16(size_t bytes, uint32_t seed) {
  std::minstd_rand random(seed);
  std::string out(bytes, '\0');
  for (size_t i = 0; i + 1 < bytes; i += 2) {
    const float value = static_cast<float>(static_cast<int32_t>(random() % 4001) - 2000) / 500.0f;
    const uint16_t bits = kernels::Bf16FromFloat(value);
    out[i] = static_cast<char>(bits & 0xff);
    out[i + 1] = static_cast<char>(bits >> 8);
  }
  return out;
}

}  // namespace

ModelSpec TestModel(const std::string& name) {
  ModelSpec spec;
  spec.model = name;
  spec.weights_revision = "r1";
  spec.groups = {{GroupKind::kFull, 4, 2, 64, 0}};
  spec.rope.theta = 10000;
  spec.rope.rotary_dims = 64;
  return spec;
}

std::vector<TestPage> MakeChain(const ModelSpec& spec, const v1::ScopeInfo& scope,
                                const TestChainOptions& options) {
  const LayerGroup& group = spec.groups[0];
  const kernels::PageShape shape = {
      static_cast<int32_t>(group.layer_count), static_cast<int32_t>(group.kv_head_count),
      static_cast<int32_t>(group.head_dim), static_cast<int32_t>(options.page_tokens)};
  PageHeader layout;
  layout.record.head_count = static_cast<uint16_t>(group.kv_head_count);
  layout.page_tokens = options.page_tokens;
  layout.layer_count = static_cast<uint16_t>(group.layer_count);
  layout.head_dim = static_cast<uint16_t>(group.head_dim);
  kernels::AppendPlanes(Precision::kRaw16, shape, layout);

  PageKey parent = *PageKey::FromBytes(scope.root());
  std::minstd_rand random(options.seed);
  std::vector<TestPage> chain;
  for (size_t i = 0; i < options.page_count; ++i) {
    TestPage page;
    std::vector<uint32_t> tokens;
    for (uint32_t t = 0; t < options.page_tokens; ++t) tokens.push_back(random() % 50000);
    page.parent = parent;
    page.key = KeyOf(parent, tokens);
    page.start.set_scope_id(scope.scope_id());
    page.start.set_identity(std::string(IdentityOf(spec).view()));
    page.start.set_key(std::string(page.key.view()));
    page.start.set_parent(std::string(parent.view()));
    page.start.set_parent_is_root(i == 0);
    if (options.with_token_ids) {
      page.start.mutable_token_ids()->Assign(tokens.begin(), tokens.end());
    }
    page.start.set_page_tokens(options.page_tokens);
    page.start.set_base_position(i * options.page_tokens);
    page.start.set_precision(v1::PRECISION_RAW16);
    page.start.set_fidelity(v1::PRECISION_RAW16);
    page.start.set_backend_tag(7);
    for (const SegmentEntry& segment : layout.segments) {
      const auto seed = static_cast<uint32_t>(options.seed * 1000003 + i * 1009 +
                                              page.segments.size() * 31 + options.content_seed);
      page.segments.push_back(RandomBf16(segment.length, seed));
      page.start.add_segment_crc32c(Crc32c(AsBytes(page.segments.back())));
    }
    parent = page.key;
    chain.push_back(std::move(page));
  }
  return chain;
}

std::vector<std::string> KeysOf(const std::vector<TestPage>& chain) {
  std::vector<std::string> keys;
  for (const TestPage& page : chain) keys.emplace_back(page.key.view());
  return keys;
}

}  // namespace pagoda
