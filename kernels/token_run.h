// Tokens of a tile that are read by the same code: all raw16 rows, or all codes. A tile with sink
// rows is two runs: its exact rows, then its codes from the first token after them.
#pragma once

#include <cstdint>

#include "kernels/page_view.h"

namespace pagoda::kernels {

struct TokenRun {
  const PageTile* tile = nullptr;
  const uint16_t* raw_k = nullptr;  // rows of the tile's token 0; null for codes
  const uint16_t* raw_v = nullptr;
  int32_t begin = 0;  // tokens of the tile
  int32_t end = 0;
};

constexpr int32_t kRunsMax = 2;

// Runs of the tile's tokens up to `position`; returns how many.
inline int32_t RunsOf(const PageTile& tile, int64_t position, TokenRun (&runs)[kRunsMax]) {
  const int64_t seen = position - tile.base_position + 1;
  if (seen <= 0) return 0;
  const auto end = static_cast<int32_t>(seen < tile.token_count ? seen : tile.token_count);
  int32_t count = 0;
  if (tile.precision == Precision::kRaw16) {
    if (end > 0) runs[count++] = {&tile, tile.raw_k, tile.raw_v, 0, end};
    return count;
  }
  const int32_t exact = end < tile.sink_count ? end : tile.sink_count;
  if (exact > 0) runs[count++] = {&tile, tile.sink_k, tile.sink_v, 0, exact};
  if (end > exact) runs[count++] = {&tile, nullptr, nullptr, exact, end};
  return count;
}

}  // namespace pagoda::kernels
