// Where the parts of a tile are, for head_dim D: page_layout.h in device code.
#pragma once

#include "kernels/cuda/codes.cuh"
#include "kernels/cuda/lanes.cuh"
#include "kernels/page_view.h"

namespace pagoda::kernels::cuda {

// A raw tile has no codes: what is worked out from its null pointers nobody reads. A branch around
// it costs some kernels registers.
#ifdef __clang__
#define PAGODA_NULL_OFFSETS __attribute__((no_sanitize("pointer-overflow")))
#else
#define PAGODA_NULL_OFFSETS
#endif

// Codes and scales of one tensor of one tile.
struct TileCodes {
  const uint32_t* hi;
  const uint32_t* lo;      // null: hi alone
  const uint16_t* scales;  // [group][page_tokens]: a4, or 16 * a8 with lo
  const uint16_t* mean;    // of K

  __device__ float Scale(int index) const {
    const float scale = Fp16ToFloat(scales[index]);
    return lo == nullptr ? scale : 0.0625f * scale;
  }
};

// Where tokens and channels are in a tile of head_dim D: page_layout.h.
template <int D>
struct TileShape {
  static constexpr int kOctets = D / kOctet;
  static constexpr int kRuns = (D + 31) / 32;  // of 32 channels of V
  static constexpr int kMeanWords = (D + 31) / 32 * 32;

  // u32 words before a block of 32 tokens.
  __host__ __device__ static constexpr int64_t KBlock(int block) {
    return int64_t{block} * kOctets * kTileTokens;
  }
  __host__ __device__ static constexpr int64_t VBlock(int block) {
    return int64_t{block} * kRuns * 4 * 32;
  }
};

__host__ __device__ constexpr int Least(int a, int b) { return a < b ? a : b; }

// The tile of kv head `head`, given that of head 0. Parts are looked up when they are asked for: a
// whole PageTile would fill a thread's registers.
template <int D>
struct TileOfHead {
  const PageTile& first;
  int head;
  int page_tokens;

  __device__ bool IsRaw() const { return first.precision == Precision::kRaw16; }

  // Exact rows from token 0: all, or the sinks.
  __device__ const uint16_t* KeyRows() const {
    return IsRaw() ? Raw(first.raw_k) : Sink(first.sink_k);
  }
  __device__ const uint16_t* ValueRows() const {
    return IsRaw() ? Raw(first.raw_v) : Sink(first.sink_v);
  }

  __device__ PAGODA_NULL_OFFSETS TileCodes KeyCodes() const {
    const int64_t words = head * TileShape<D>::KBlock(page_tokens / kTileTokens);
    const uint16_t* mean = first.k_hi_params + Scales() + int64_t{head} * TileShape<D>::kMeanWords;
    if (first.k_lo == nullptr) {
      return {first.k_hi + words, nullptr, mean + TileShape<D>::kMeanWords, mean};
    }
    return {first.k_hi + words, first.k_lo + words, first.k_lo_params + Scales(), mean};
  }
  __device__ PAGODA_NULL_OFFSETS TileCodes ValueCodes() const {
    const int64_t words = head * TileShape<D>::VBlock(page_tokens / kTileTokens);
    if (first.v_lo == nullptr) {
      return {first.v_hi + words, nullptr, first.v_hi_params + Scales(), nullptr};
    }
    return {first.v_hi + words, first.v_lo + words, first.v_lo_params + Scales(), nullptr};
  }

 private:
  __device__ int64_t Scales() const { return int64_t{head} * kGroupCount<D> * page_tokens; }
  __device__ const uint16_t* Raw(const uint16_t* rows) const {
    return rows + int64_t{head} * page_tokens * D;
  }
  __device__ const uint16_t* Sink(const uint16_t* rows) const {
    return rows == nullptr ? nullptr : rows + int64_t{head} * kSinkTokens * D;
  }
};

}  // namespace pagoda::kernels::cuda
