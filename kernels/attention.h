// Causal attention of one layer and one kv head over a list of page tiles of mixed precision, read
// as they are stored. Nothing is written to pages; which pages to read is the caller's choice.
//
//   out[i][h] = sum_t p_t v_t / sum_t p_t,   p_t = 2^(q . k_t * softmax_scale * log2(e) - max)
//   over the tokens t of all tiles with base_position + t <= first_position + i
//
// Shapes     see the fields. group_count query heads share the kv head (GQA).
// Units      positions and tokens
// Threads    one AttentionScratch per thread; calls share nothing else.
// Ownership  the caller keeps q, out, lse2 and the tiles' memory until the call returns. q and out
// may
//            not overlap.
// Errors     INVALID_ARGUMENT  a count, stride or tile outside the limits below; nothing is written
// Limits     head_dim and page_tokens as in page_layout.h; group_count 1 to 64; query_count 1 to
//            65536
// Empty      a row that sees no token yields out 0 and lse2 -inf: the empty state of
// merge_states.h. Rows       with query_count > 1 the result of a row depends, bit for bit, on its
// own q, its
//            position and the tiles it sees, never on the other rows of the call. query_count == 1
//            (decode) takes another path, whose sums are ordered differently; there a head's result
//            does not depend on the other heads of the group.
// Error      |Cpu - Ref| per element, N tokens seen, V = max |v|:
//              2 * V * (E + 2^-20 + (N + 64) * 2^-24);  lse2: E + 2^-20 * (1 + |lse2|) + N * 2^-24
//              E = 2^-24 * softmax_scale * log2(e) * (2 * head_dim + 320) *
//                  max_t(||q|| * (||k_t|| + ||mu||))
//            E is the error of a logit: a sum of head_dim products; codes enter it uncentred, up to
//            128 times the least level, which the 320 covers. 2^-20 is that of exp2.
//            Decode by integers rounds q and the weights to b = 15 bits (AVX512-VNNI) or 7 (AVX2,
//            q4 only) and a sign of the largest in a group (weights: in a tile): E grows by
//            2^-(b + 1) * sqrt(head_dim) * softmax_scale * log2(e) * max_t(||q|| * (||k_t|| +
//            ||mu||)), out by 2^-b * page_tokens * V (what rounding leaves is
//            carried to the next token of the lane, so that small weights are not lost). These are
//            worst cases; the tests hold them, and a hundredth, which nothing has exceeded.
// Source     Dao, FlashAttention-2 (arXiv:2307.08691); Milakov and Gimelshein (arXiv:1805.02867)
// Cost       decode: reads each tile once; prefill: 4 * head_dim flops per row and token seen.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/aligned_buffer.h"
#include "kernels/page_view.h"

namespace pagoda::kernels {

struct AttentionParams {
  // [query_count] rows of q_stride floats; head g of the group at + g * head_dim. After RoPE, not
  // rotated.
  const float* q = nullptr;
  int64_t q_stride = 0;
  float* out = nullptr;  // same form; written
  int64_t out_stride = 0;
  float* lse2 = nullptr;  // [query_count][group_count], written; may be null
  int32_t query_count = 0;
  int32_t group_count = 0;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  int64_t first_position = 0;        // query i is at first_position + i
  float softmax_scale = 0;           // usually 1 / sqrt(head_dim)
  absl::Span<const PageTile> pages;  // ascending base_position; gaps are fine
  // Decode reads codes by floats even where integers are faster (AVX512-VNNI; AVX2 for q4).
  bool float_codes = false;
};

// Reusable memory of AttentionCpu; grows to the largest call and stays.
class AttentionScratch {
 public:
  // At least `count` floats, 4096-byte aligned; content is unspecified.
  float* Floats(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(float));
    if (buffer_.size() < bytes) buffer_ = AlignedBuffer(bytes);
    return reinterpret_cast<float*>(buffer_.data());
  }

 private:
  AlignedBuffer buffer_;
};

absl::Status AttentionRef(const AttentionParams& params);
absl::Status AttentionCpu(const AttentionParams& params, AttentionScratch& scratch);

// Shared by the twins.
absl::Status ValidateAttention(const AttentionParams& params);

}  // namespace pagoda::kernels
