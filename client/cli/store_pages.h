// Pages for `pagoda bench storage`, which drives the store without a daemon: any number of raw16
// pages of one shape, each with a key of its own, all with the same bytes.
//
// Threads    const methods from any thread.   Errors  those of the store
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/page_layout.h"
#include "storage/tiered_store.h"

namespace pagoda::cli {

class StorePages {
 public:
  // Pages 0, `chain_length`, ... are roots; each of the others follows the one before it.
  StorePages(const kernels::PageShape& shape, uint64_t chain_length);

  // Complete, checksums included. Cost: one SHA-256 and a copy of the tables.
  PageHeader Header(uint64_t number) const;
  RecordKey Key(uint64_t number) const;
  const ScopeId& scope() const { return like_.scope; }
  const std::vector<std::string>& segments() const { return segments_; }
  int64_t stored_bytes() const { return like_.stored_bytes(); }

  // Stages, fills and commits page `number`.
  absl::Status Push(TieredStore& store, uint64_t number) const;

 private:
  PageHeader like_;
  const uint64_t chain_length_;
  std::vector<std::string> segments_;
};

// 16 layers, 4 heads of 128, 64 tokens: 2 MiB in 8 segments.
inline constexpr kernels::PageShape kLargePage{16, 4, 128, 64};
// 2 KiB in one segment: for measures in which bytes do not matter.
inline constexpr kernels::PageShape kTinyPage{1, 1, 16, 32};

}  // namespace pagoda::cli
