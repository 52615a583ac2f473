// Encoding raw16 pages into the planes of one embedded 8-bit code (CodeRecipe::kEmbedded8), and
// decoding tiles back. Which bytes go where is page_layout.h; when to encode is the caller's.
//
// Recipe, per tile (one layer, one kv head); k and v are the bf16 rows as floats:
//   K   mu[c] = fp16(forward(sum over tokens of k / page_tokens))   tokens added in order
//       y     = forward(k) - mu                                     hadamard.h
//   V   y     = forward(v)
//   per token and channel group (at most 64 channels), channels in order, starting from 0:
//       m = max(max |y|, 1e-12),  inv = 127.5 / m
//       c = clamp(floor(y * inv), -128, 127),  L8 = c + 0.5,  L4 = floor(c / 16) + 0.5
//       scale(L) = yy / max(yL, 1e-20) for K (unbiased),  yL / LL for V (least squares),
//                  yy = sum y * y,  yL = sum y * L,  LL = sum L * L
//       a4 = fp16(scale(L4)),  stored16a8 = fp16(16 * scale(L8))
//   stored code u = c + 128: hi = u / 16, lo = u % 16
// Decoded: K  hi alone  a4 * (hi - 7.5) + mu,   hi + lo  (stored16a8 / 16) * (u - 127.5) + mu
//          V  the same without mu; then backward().
//
// Arithmetic  float, in exactly this order, every operation rounded once, no contraction: Ref and
//             Cpu agree bit for bit on every target and machine, so that equal raw16 pages give
//             equal encoded pages everywhere.
// Error       |y - decoded| <= m / 127.5 * (0.5 + 127.5 * r8) per element with hi + lo and
//             <= m / 7.96875 * (0.5 + 8 * r4) with hi, r = |scale / step - 1| plus 2^-11 (fp16):
//             the mid-rise cell is half a step wide on each side, and the scale differs from the
//             step by r. An element below 2^-24 of fp16 range decodes to mu.
// Errors      INVALID_ARGUMENT     NaN or infinity in K or V; or a mean or scale that fp16 cannot
//                                  hold (|y| above about 5e5): the page cannot be encoded and stays
//                                  raw16; target bytes are then unspecified. Also spans that do not
//                                  fit their header.
//             FAILED_PRECONDITION  source is not raw16, or the target's tables are not of this
//             codec
// Threads     pure functions; calls on different pages may run in parallel.
// Cost        reads the page once; about 1.3 ns per element (bench in README).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/page_view.h"
#include "storage/base/page_header.h"

namespace pagoda::kernels {

// The header of the encoded form of a raw16 page: everything copied, recipe and rotation set, plane
// table and offsets of `target` (kQ8 or kQ4); checksums are still 0.
absl::StatusOr<PageHeader> PlanEncodedHeader(const PageHeader& raw16_header, Precision target);

// Encodes a whole page. raw_segments and target_segments follow their headers' segment tables;
// target spans are the caller's memory of stored_bytes() each, 64-byte aligned; padding is zeroed.
// Fills crc32c of target_header.segments. EncodePage is EncodePageCpu: the one to call.
absl::Status EncodePage(const PageHeader& raw16_header, absl::Span<const ByteSpan> raw_segments,
                        PageHeader& target_header,
                        absl::Span<const MutableByteSpan> target_segments);
absl::Status EncodePageRef(const PageHeader& raw16_header, absl::Span<const ByteSpan> raw_segments,
                           PageHeader& target_header,
                           absl::Span<const MutableByteSpan> target_segments);

// Checksums of all segments of a page in memory, for raw16 pages that a worker makes.
void FillChecksums(absl::Span<const ByteSpan> segments, PageHeader& header);

// One tile. K and V rows are [page_tokens][head_dim] bf16; outputs as in page_layout.h. The lo
// pointers are all null (encode hi alone) or all set.
struct EncodeTileParams {
  const uint16_t* raw_k = nullptr;
  const uint16_t* raw_v = nullptr;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  uint16_t* k_hi_params = nullptr;
  uint16_t* v_hi_params = nullptr;
  uint16_t* k_lo_params = nullptr;
  uint16_t* v_lo_params = nullptr;
  uint32_t* k_hi = nullptr;  // codes: 64-byte aligned
  uint32_t* v_hi = nullptr;
  uint32_t* k_lo = nullptr;
  uint32_t* v_lo = nullptr;
};
absl::Status EncodeTileRef(const EncodeTileParams& params);
absl::Status EncodeTileCpu(const EncodeTileParams& params);

// A tile back in the un-rotated frame: k and v are [token_count][head_dim] float, written. Raw
// tiles are converted, sink rows are exact. Ref computes in double and rounds once. Cpu differs
// from Ref by at most 2^-20 * (||k row|| + ||mu||): one rounding each of level * a, + mu, and of
// hadamard.h.
absl::Status DecodeTileRef(const PageTile& tile, int32_t head_dim, int32_t page_tokens, float* k,
                           float* v);
absl::Status DecodeTileCpu(const PageTile& tile, int32_t head_dim, int32_t page_tokens, float* k,
                           float* v);

}  // namespace pagoda::kernels
