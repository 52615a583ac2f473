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
// Error       per element of y, with m of its token and group:
//                 hi + lo  |y - decoded| <= m * (1 / 127.5 * 0.5 + 2 * r8) + m * 2^-10
//                 hi       |y - decoded| <= m * (16 / 127.5 * 0.5 + 2 * r4) + m * 2^-10
//             r = |scale / step - 1|: a cell reaches half a step to each side of its level, the
//             scale moves the level by r, 2^-10 covers fp16 and float. Since |level| >= |y| / (2
//             step), no scale exceeds 2 steps. Scales below fp16's 2^-14 lose bits, below 2^-25
//             vanish: add 2^-24 * |level| (2^-28 with hi + lo).
// Errors      INVALID_ARGUMENT     NaN or infinity in K or V, or a magnitude (input, rotated or its
//                                  mean) that fp16 scales cannot serve: an input or |y| above 2^17,
//                                  a mean above 65504. The page stays raw16; the target's bytes are
//                                  then unspecified. Also spans that do not fit their header.
//             FAILED_PRECONDITION  source is not raw16, or the target's tables are not of this
//             codec
// Threads     pure functions; calls on different pages may run in parallel.
// Cost        reads the page once; about 1.5 ns per element, all in (README).
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/page_view.h"
#include "storage/base/page_header.h"

namespace pagoda::kernels {

// The header of the encoded form of a raw16 page: everything copied, recipe and rotation set, plane
// table and offsets of `target` (kQ8, kQ4 with K lo of `k_lo_layers`, kQ3 or kQ2); checksums are
// still 0.
absl::StatusOr<PageHeader> PlanEncodedHeader(const PageHeader& raw16_header, Precision target,
                                             KLoLayers k_lo_layers = {});

// Encodes a whole page. raw_segments and target_segments follow their headers' segment tables;
// target spans are the caller's memory of stored_bytes() each, 64-byte aligned; padding is zeroed.
// Fills crc32c of target_header.segments. EncodePage is EncodePageCpu: the one to call.
absl::Status EncodePage(const PageHeader& raw16_header, absl::Span<const ByteSpan> raw_segments,
                        PageHeader& target_header,
                        absl::Span<const MutableByteSpan> target_segments);
absl::Status EncodePageRef(const PageHeader& raw16_header, absl::Span<const ByteSpan> raw_segments,
                           PageHeader& target_header,
                           absl::Span<const MutableByteSpan> target_segments);

// The header of the poorer page that an encoded one contains: `target` as above.
// FAILED_PRECONDITION when it does not contain it. CutPage() then copies the bytes, whatever the
// cut of the segments, and takes the top codes of q3 and q2 from hi (top_codes.h; INVALID_ARGUMENT
// as there); target spans as in EncodePage(). Nothing is quantized: the result is what encoding
// from raw16 gives, by whatever steps it comes down. Checksums of segments that stay whole are
// taken over.
absl::StatusOr<PageHeader> PlanCutHeader(const PageHeader& encoded_header, Precision target,
                                         KLoLayers k_lo_layers = {});
absl::Status CutPage(const PageHeader& source_header, absl::Span<const ByteSpan> source_segments,
                     PageHeader& target_header, absl::Span<const MutableByteSpan> target_segments);

// Checksums of all segments of a page in memory, for raw16 pages that a worker makes.
void FillChecksums(absl::Span<const ByteSpan> segments, PageHeader& header);

// One tile. K and V rows are [page_tokens][head_dim] bf16, 4-byte aligned; outputs as in
// page_layout.h. The two lo pointers of K, and those of V, are null (hi alone) or set.
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

// A tile back in the un-rotated frame: k and v are [token_count][head_dim], written. Raw tiles are
// converted and sink rows are exact. Ref computes in double. Cpu rounds level * a, the addition of
// mu, and what hadamard.h does once each:
//   |Cpu - Ref| <= (log2(head_dim) + 5) * 2^-24 * (||row|| + ||mu||) per element
// INVALID_ARGUMENT  shape invalid, token_count outside 0..page_tokens, or pointers of its precision
//                   missing
absl::Status DecodeTileRef(const PageTile& tile, const PageShape& shape, double* k, double* v);
absl::Status DecodeTileCpu(const PageTile& tile, const PageShape& shape, float* k, float* v);

// The pointers that a tile's precision promises are there, and its counts fit. Shared by all
// readers.
absl::Status ValidateTile(const PageTile& tile, int32_t page_tokens);

}  // namespace pagoda::kernels
