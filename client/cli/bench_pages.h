// Pages for `pagoda bench`: keys of made-up tokens, raw16 bytes of a made-up model. The bytes are
// random, so that nothing on the way can profit from zeros.
//
// Threads    const methods from any thread
// Ownership  pushed items keep the payload alive
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "client/client.h"
#include "kernels/page_layout.h"
#include "storage/base/model_spec.h"

namespace pagoda::cli {

// A model of that shape; `revision` makes its identity, and so its pages, one's own.
ModelSpec BenchModel(const kernels::PageShape& shape, const std::string& revision);

// Bytes of all segments of one raw16 page.
int64_t RawPayloadBytes(const kernels::PageShape& shape);

class BenchPages {
 public:
  // A chain of `page_count` pages. Chains of other seeds have other keys. Payloads repeat after
  // about 64 MiB, more than caches hold.
  BenchPages(const kernels::PageShape& shape, int64_t page_count);

  struct Chain {
    std::vector<std::vector<uint32_t>> token_ids;  // per page
    std::vector<PageKey> keys;
  };
  Chain MakeChain(const PageKey& root, uint64_t seed) const;
  // Page `index` of `chain`, ready to be pushed.
  client::PushItem Item(const Chain& chain, const client::ScopeInfo& scope, int64_t index) const;
  // Whether a raw16 page that the client has verified is the one that Item(..., index) pushed.
  bool IsItem(const client::FetchedPage& page, int64_t index) const;

  int64_t page_count() const { return page_count_; }
  int64_t payload_bytes() const { return page_count_ * RawPayloadBytes(shape_); }

 private:
  struct Payload {
    std::vector<kernels::AlignedBuffer> segments;
    std::vector<uint32_t> crc32c;
  };

  const kernels::PageShape shape_;
  const int64_t page_count_;
  std::vector<std::shared_ptr<const Payload>> payloads_;
};

}  // namespace pagoda::cli
