// The two SIMD paths behind AttentionCpu. Parameters are valid here.
#pragma once

#include "kernels/attention.h"

namespace pagoda::kernels {

// query_count == 1: fused, tile by tile, codes never materialised.
void DecodeAttention(const AttentionParams& params, AttentionScratch& scratch);

// Any query_count: tiles are converted once and shared by all rows.
void PrefillAttention(const AttentionParams& params, AttentionScratch& scratch);

}  // namespace pagoda::kernels
