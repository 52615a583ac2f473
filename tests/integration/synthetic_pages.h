// Pages without a model: random bf16 bytes of any shape, the same for the same seed, pushed and
// checked through the client as a worker would.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "client/client.h"
#include "kernels/page_layout.h"

namespace pagoda {

// A document: token ids of `page_count` pages, and what their K and V are.
class SyntheticDocument {
 public:
  SyntheticDocument(const kernels::PageShape& shape, int page_count, uint32_t seed,
                    std::string model_name = "synthetic");

  ModelSpec model() const;
  const kernels::PageShape& shape() const { return shape_; }
  std::vector<PageKey> KeysFrom(const PageKey& root) const;
  // Everything to push page `index` of the chain `keys`.
  client::PushItem Item(const client::ScopeInfo& scope, absl::Span<const PageKey> keys,
                        int index) const;
  // True when the fetched page holds exactly what Item() pushed, or exactly what encoding that
  // gives at the page's precision.
  bool Matches(const client::FetchedPage& page, int index) const;

 private:
  bool MatchesEncoded(const client::FetchedPage& page, int index) const;
  std::vector<std::vector<uint32_t>> Segments(int index) const;

  kernels::PageShape shape_;
  uint32_t seed_;
  std::string model_name_;
  PageHeader layout_;  // of a raw16 page
  std::vector<uint32_t> token_ids_;
};

}  // namespace pagoda
