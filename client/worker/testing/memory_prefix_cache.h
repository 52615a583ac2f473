// A PrefixCache in this process: keeps raw16 pages by the tokens that lead to them, and hands them
// out in the precision that a test asks for. Faults can be switched on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "client/worker/prefix_cache.h"

namespace pagoda {

class MemoryPrefixCache : public PrefixCache {
 public:
  // Behaviour, to be changed between requests.
  Precision serve_precision = Precision::kRaw16;  // of pages that Load() hands out
  int64_t raw_from_page = 1 << 20;                // but those from here on in raw16
  int64_t pages_max = 1 << 20;                    // Load() fails beyond

  int lost_layer = -1;  // LoadByLayer() loses its pages there; beyond the model: at the end

  // What happened.
  int64_t lost_count = 0;      // times that it did
  int64_t stored_count = 0;    // StorePage() calls
  int64_t conflict_count = 0;  // of them with other bytes for the same tokens and fidelity
  int64_t finish_count = 0;
  int64_t advanced_tokens = 0;

  PrefixHit Load(absl::Span<const uint32_t> prompt_ids, KvSequence& sequence) override;
  PrefixHit LoadByLayer(absl::Span<const uint32_t> prompt_ids, KvSequence& sequence) override;
  void StorePage(const KvSequence& sequence, int64_t page_index,
                 absl::Span<const uint32_t> page_ids) override;
  void Advance(int64_t token_count) override { advanced_tokens = token_count; }
  void Finish() override;

 private:
  struct Entry {
    Precision fidelity = Precision::kRaw16;
    std::vector<std::string> segments;  // raw16
  };

  Precision PrecisionOfPage(int64_t page_index) const {
    return page_index < raw_from_page ? serve_precision : Precision::kRaw16;
  }

  absl::flat_hash_map<std::string, Entry> pages_;  // by the bytes of all ids up to the page's end
  std::string request_ids_;                        // bytes of the ids of the pages so far
  std::vector<std::string> request_pages_;         // keys of the pages so far
};

}  // namespace pagoda
