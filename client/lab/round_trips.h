// What a codec makes of K or V: rows go in, what a reader of the codes would see comes out, in the
// same place. Codes are never stored: the laboratory measures quality, the product stores.
// Comparators are written from their public rules; our own prefixes from kernels/codec.h.
//
// Shapes     rows [token_count][head_dim] floats, of one layer and kv head
// Units      bits per element, with all scales, zeros and means counted
// Threads    pure functions; a RoundTrip may be called from several threads
// Arithmetic float; stored scales, zeros and means are rounded to what their rule stores
// Limits     finite values. REQUIRES as said: group sizes divide what they cut.
// Source     llama.cpp ggml-quants.c (q8_0, q4_0) and its rotation of quantized caches; KIVI
//            (arXiv:2402.02750) quant/new_pack.py; Transformers' QuantizedCache over quanto; KVarN
//            (arXiv:2606.03458)
#pragma once

#include <cstdint>
#include <functional>

#include "absl/types/span.h"

namespace pagoda::lab {

struct Rows {
  float* data = nullptr;
  int64_t token_count = 0;
  int32_t head_dim = 0;
  absl::Span<float> row(int64_t token) const {
    return {data + token * head_dim, static_cast<size_t>(head_dim)};
  }
};
using RoundTrip = std::function<void(const Rows& rows)>;

// ---- Groups of numbers that share a scale
// Symmetric, step max|x| / 127, nearest; fp16 scale. llama.cpp's q8_0 has groups of 32.
void RoundTripQ8_0(absl::Span<float> group);
// The number of the largest magnitude becomes code 0 of [0, 15], zero is code 8; fp16 scale.
void RoundTripQ4_0(absl::Span<float> group);
// q * scale + zero with zero = min, scale = (max - min) / (2^bits - 1), both stored as fp16 or
// bf16.
enum class ScaleType { kFp16, kBf16 };
void RoundTripAffine(absl::Span<float> group, int bits, ScaleType type);
// The top `bits` of the product's 8-bit mid-rise code, with a scale of that rate.
enum class ScaleRule { kUnbiased, kLeastSquares };  // of K, of V
void RoundTripPrefix(absl::Span<float> group, int bits, ScaleRule rule);

// ---- Which numbers form a group
using GroupRoundTrip = std::function<void(absl::Span<float> group)>;
// Runs of `group` channels of each token.
RoundTrip PerToken(int32_t group, GroupRoundTrip codec);
// The product's groups of channels (GroupsOf in page_layout.h) of each token.
RoundTrip PerProductGroup(GroupRoundTrip codec);
// Each channel over all tokens of the rows.
RoundTrip PerChannel(GroupRoundTrip codec);
// A tile of 128 tokens or what the rows hold: alternating normalization of the spread of its rows
// and columns, 8 times, then affine codes of `bits` for each row: channels for K, tokens for V. The
// tile is divided by its root mean square first, without which the rule's clamp leaves quiet tiles
// as they are.
enum class TileRows { kChannels, kTokens };
RoundTrip KVarN(int bits, TileRows tile_rows);

// ---- The frame in which groups are coded
// Plain Hadamard transform of blocks of `block` channels, a power of two that divides head_dim.
RoundTrip InHadamard(int32_t block, RoundTrip codec);
// llama.cpp's channel order of K: the two channels that rotate together stand side by side.
RoundTrip InInterleavedOrder(RoundTrip codec);
// The product's: hadamard.h with its signs; centred: the fp16 mean of the rows is taken off.
enum class Centring { kNone, kMean };
RoundTrip InProductFrame(Centring centring, RoundTrip codec);

}  // namespace pagoda::lab
