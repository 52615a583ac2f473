// A small model and pages of it with made-up but well-behaved K and V, for tests over the wire.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "pagoda/v1/cache.pb.h"
#include "storage/base/model_spec.h"
#include "storage/base/page_key.h"

namespace pagoda {

// 4 layers, 2 kv heads, head_dim 64: a raw16 page of 64 tokens has 131072 bytes in one segment a
// layer run.
ModelSpec TestModel(const std::string& name = "test-model");

struct TestPage {
  PageKey key;
  PageKey parent;
  v1::PushPage start;                 // everything but the session
  std::vector<std::string> segments;  // payloads
};

struct TestChainOptions {
  uint32_t page_tokens = 64;
  size_t page_count = 4;
  uint32_t seed = 1;          // of the tokens: another seed is another document
  uint32_t content_seed = 1;  // of the bytes: another is another worker's rounding
  bool with_token_ids = true;
};

// Pages of one document under this root.
std::vector<TestPage> MakeChain(const ModelSpec& spec, const v1::ScopeInfo& scope,
                                const TestChainOptions& options = {});

std::vector<std::string> KeysOf(const std::vector<TestPage>& chain);

}  // namespace pagoda
