// Queries turned back by a shift of positions, on a GPU: what position_shift.h does before it reads
// a run of tiles. A sequence whose pages have several shifts is one DecodeAttentionCuda() for each,
// on the tiles of that shift and q turned for them, and one MergeStatesCuda() over all their parts.
//
// Memory     q and turned are the device's, 4-byte aligned; turned may be q
// Threads    the call enqueues work on the stream and returns
// Errors     INVALID_ARGUMENT  a count, rope or shift outside its limits, null pointer
//            INTERNAL          the launch failed
// Limits     head_dim 16 to 256; row_count 1 to 2^22; rope and shift as in position_shift.h
// Error      2^-22 of a pair's norm per element
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/position_shift.h"

namespace pagoda::kernels::cuda {

struct TurnQueriesParams {
  const float* q = nullptr;  // [row][head_dim], after RoPE
  float* turned = nullptr;   // same form, written: R(-shift) q
  int64_t row_count = 0;
  int32_t head_dim = 0;
  int64_t shift = 0;
  Rope rope;
};

absl::Status TurnQueriesCuda(const TurnQueriesParams& params, Stream stream);

}  // namespace pagoda::kernels::cuda
