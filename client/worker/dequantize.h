// Weights in any of the tensor types of tensor_type.h -> float32, bit for bit what ggml's reference
// dequantization (and gguf-py's) gives. Used once, at load.
//
// Shapes     a row is dims[0] elements, whole blocks; rows follow one another without gaps
// Threads    pure functions: any thread, disjoint targets
// Source     ggml-quants.c, dequantize_row_*; golden values in tests/golden
// Cost       one pass; 135 M weights of Q4_1 and Q8_0 in 0.3 to 0.5 s on one shared core
#pragma once

#include <cstdint>

#include "absl/types/span.h"
#include "client/worker/gguf.h"
#include "client/worker/tensor_type.h"
#include "storage/base/bytes.h"

namespace pagoda {

// REQUIRES: target.size() is a whole number of blocks of `type` and source holds exactly those.
void Dequantize(TensorType type, ByteSpan source, absl::Span<float> target);

// The encoded bytes of rows [first_row, first_row + row_count) of `tensor`, where a row is dims[0]
// elements. REQUIRES: those rows exist.
ByteSpan EncodedRows(const GgufTensor& tensor, uint64_t first_row, uint64_t row_count);

// Encoded bytes of `element_count` elements. REQUIRES: a whole number of blocks.
uint64_t EncodedBytes(TensorType type, uint64_t element_count);

}  // namespace pagoda
