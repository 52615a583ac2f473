// Merging partial attention results: the same query over disjoint sets of tokens.
//
//   state   (o normalised, L = log2 of the sum of 2^x),   x = q . k * softmax_scale * log2(e)
//   empty   (0, -inf)
//   merge   M = max L_i; w_i = 2^(L_i - M); o = sum w_i o_i / sum w_i; L = M + log2(sum w_i)
//
// Commutative and associative up to rounding; merging with empty changes nothing, bit for bit.
// The base is 2 everywhere, on the wire too.
//
// Shapes  o [row_count][head_dim] float, lse2 [row_count] float
// Error   |Cpu - Ref| <= 2^-20 * max |o_i| per element and 2^-20 * max(1, |L|) for lse2: the two
//         weights carry the error of exp2f and three roundings, the sum two more.
// Source  FlashInfer, docs/tutorials/recursive_attention.rst
#pragma once

#include <cstdint>

namespace pagoda::kernels {

struct AttentionState {
  float* o;     // [row_count][head_dim]
  float* lse2;  // [row_count]
};

// target = merge(target, source), row by row. REQUIRES: no overlap.
void MergeStatesRef(AttentionState target, AttentionState source, int64_t row_count,
                    int32_t head_dim);
void MergeStatesCpu(AttentionState target, AttentionState source, int64_t row_count,
                    int32_t head_dim);

}  // namespace pagoda::kernels
