// What the specifications of attention share: tiles as rows of K and V in double, and one softmax
// over them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/attention.h"

namespace pagoda::kernels {

struct DecodedTile {
  int64_t base_position;
  int32_t token_count;
  std::vector<double> k;  // [token_count][head_dim]
  std::vector<double> v;
};

// Appends the tiles' rows.
absl::Status DecodeTilesRef(absl::Span<const PageTile> pages, int32_t head_dim, int32_t page_tokens,
                            std::vector<DecodedTile>& tiles);

// All rows of the call over `tiles`; p.pages is not read. REQUIRES: p is otherwise valid.
void AttendRowsRef(const AttentionParams& p, const std::vector<DecodedTile>& tiles);

}  // namespace pagoda::kernels
