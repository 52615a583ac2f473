// Digests of keys and their scores on a GPU: the twins of page_score.h, where kinds, rows and what
// a quest score bounds are stated. The same holds here.
//
// Memory     all pointers, also those inside tiles, are the device's; digests 4-byte aligned, parts
//            of tiles 16 (PageView gives 64)
// Threads    calls enqueue work on the stream and return
// Errors     INVALID_ARGUMENT  not a digest, shape outside the limits, null pointer
//            INTERNAL          the launch failed
// Limits     head_dim 64, 80, 96, 128 or 256; page_tokens as in page_layout.h; 1 to 32768 tiles of
//            1 to 256 kv heads; group_count 1 to 64
// Error      words of quest digests as BuildDigestCpu, others and scores as its header states.
// Cost       each key is decoded once; each digest is read once per kv head
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/cuda/stream.h"
#include "kernels/page_score.h"

namespace pagoda::kernels::cuda {

struct BuildDigestParams {
  PlaneId digest = PlaneId::kQuestDigest;
  const PageTile* tiles = nullptr;   // [tile_count], kv head 0; others follow as in a page
  uint16_t* const* words = nullptr;  // [tile_count], of kv head 0, written; others follow likewise
  int32_t tile_count = 0;
  int32_t kv_head_count = 0;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
};

absl::Status BuildDigestsCuda(const BuildDigestParams& params, Stream stream);

struct DeviceScoreParams {
  PlaneId digest = PlaneId::kQuestDigest;
  const float* q = nullptr;           // [kv_head][group][head_dim], after RoPE, not rotated
  const DigestTile* tiles = nullptr;  // [tile_count], kv head 0; others follow as in a page
  float* scores =
      nullptr;  // [kv_head][group][tile][page_tokens / 16], written; -inf without tokens
  int32_t tile_count = 0;
  int32_t kv_head_count = 0;
  int32_t group_count = 0;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
};

absl::Status ScorePagesCuda(const DeviceScoreParams& params, Stream stream);

}  // namespace pagoda::kernels::cuda
