// The upper bits of hi codes as planes of their own: 3 bits of the embedded code (q3) or 2 (q2),
// for pages that lie on SSD or travel. They are cut, never encoded: the bits are those of hi, and
// every scale follows from the codes and scales of the form one bit richer, so that a q2 page has
// the same bytes whether it was cut from q8, q4 or q3. To be read they are widened to the form of
// hi.
//
// Level of a code   a4 * (u4 - 7.5), a3 * (u3 - 3.5), a2 * (u2 - 1.5), with u3 = u4 / 2 and
//                   u2 = u3 / 2. From b to b - 1 bits, F and H the odd numbers 2 * level / a before
//                   and after, sums over the channels of a token's group:
//                       a' = fp16(a * sum(F * F) / sum(F * H)) for K (unbiased, as in codec.h)
//                       a' = fp16(a * sum(F * H) / sum(H * H)) for V (least squares)
//                   the sums exact, a multiplication and a division in float
// Widened           u4 = u3 + 4 with a4 = a3, or u2 + 6 with a4 = a2: the same levels, so that what
//                   reads hi reads these; the mean and the padding stay what they are
// Layout            page_layout.h
// Threads           pure functions
// Errors            INVALID_ARGUMENT  a scale is not finite, or would not be: rotated magnitudes
//                                     from 2^15 on. The page stays what it is
// Cost              cutting about 0.5 ns an element and bit, widening some 0.05 ns (README)
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "kernels/page_layout.h"

namespace pagoda::kernels {

// One tensor of one tile. Params and codes as in page_layout.h, codes 64-byte aligned.
struct CodesShape {
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  bool is_k = false;
};
struct TileCodes {
  const uint16_t* params = nullptr;
  const uint32_t* codes = nullptr;
};
struct MutableTileCodes {
  uint16_t* params = nullptr;
  uint32_t* codes = nullptr;
};

// hi to 3 bits.
absl::Status CutHiToTop3(const CodesShape& shape, const TileCodes& hi,
                         const MutableTileCodes& top3);
// 3 bits to 2.
absl::Status CutTop3ToTop2(const CodesShape& shape, const TileCodes& top3,
                           const MutableTileCodes& top2);

void WidenTop3(const CodesShape& shape, const TileCodes& top3, const MutableTileCodes& hi);
void WidenTop2(const CodesShape& shape, const TileCodes& top2, const MutableTileCodes& hi);

}  // namespace pagoda::kernels
