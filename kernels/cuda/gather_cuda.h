// Copies many scattered pieces in one launch: segments of pages into one buffer for a transfer, or
// out of one. Copies that small are dear one by one, and a copy engine is slow inside one GPU.
//
// Memory     the device's, or host memory mapped into it; pieces may not overlap
// Threads    enqueues on the stream and returns
// Errors     INVALID_ARGUMENT  counts outside the limits, null pointer; INTERNAL  the launch failed
// Limits     1 to 65535 pieces; addresses and sizes in multiples of 16 bytes, as all segments are
// Cost       reads and writes each byte once
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/stream.h"

namespace pagoda::kernels::cuda {

struct CopyPiece {
  const void* source;
  void* target;
  int64_t bytes;
};

struct GatherParams {
  const CopyPiece* pieces = nullptr;  // [piece_count], in the device's memory
  int32_t piece_count = 0;
  int64_t bytes_max = 0;  // of the longest piece
};

absl::Status GatherCuda(const GatherParams& params, Stream stream);

}  // namespace pagoda::kernels::cuda
