// Attention over pages whose keys were computed at other positions than they are read at. Rotary
// embedding turns keys by their position, R(p + s) = R(s) R(p), and R(s) is orthogonal:
//
//   q . R(s) k = (R(-s) q) . k
//
// A run of tiles with one shift is read with q turned back by it. No key is touched; codes, scales
// and digests (page_score.h) stay as they are, and the rotation of codes comes after.
//
// Rope       half-split pairs: channel i and i + rope_dims / 2 turn by
//            position / linear_factor * theta^(-2i / rope_dims); channels from rope_dims on do not.
//            Frequencies that change with the length of a sequence cannot be shifted.
// Positions  a tile's base_position is where it is read; its keys were made for
//            base_position - shift
// Errors     INVALID_ARGUMENT  as attention.h, attention.pages not empty, a rope or shift outside
// its
//                              limits; nothing is written
// Limits     |shift| <= 2^24; rope_dims even, 2 to head_dim; 1 to 4096 runs
// Threads    one ShiftedAttentionScratch per thread
// Error      |Cpu - Ref| per element, over R runs of tiles:
//              2 * B + R * 2^-20 * V,  B the bound of attention.h with
//              E + 2^-22 * softmax_scale * log2(e) * max_t(||q|| * ||k_t||) for E
//            q is turned in float (three roundings of 2^-24 of a pair), states are merged R - 1
//            times. Ref turns the keys, in double.
//            Keys that a model stores at another position are rounded to bf16 anew, which moves a
//            logit by up to 2^-8 * ||q|| * ||k||: far more.
// Cost       attention.h for each run, 3 * rope_dims flops per row and run, a merge
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/attention.h"

namespace pagoda::kernels {

struct Rope {
  double theta = 0;          // at least 1
  int32_t rope_dims = 0;     // leading channels of a head that turn
  double linear_factor = 1;  // positions are divided by this; at least 1
};

// Cosines and sines of the angles of `shift` positions, [rope_dims / 2] each.
struct RopeAngles {
  std::vector<double> cosines;
  std::vector<double> sines;
};
RopeAngles AnglesOf(const Rope& rope, int64_t shift);

// In place, one head: R(shift) x, or R(-shift) x with the angles of -shift.
void TurnRef(const RopeAngles& angles, double* x);

// Tiles in a row that have one shift.
struct TileRun {
  absl::Span<const PageTile> pages;  // ascending base_position
  int64_t shift = 0;
};

struct ShiftedAttentionParams {
  AttentionParams attention;  // its pages are empty
  absl::Span<const TileRun> runs;
  Rope rope;
};

struct ShiftedAttentionScratch {
  AttentionScratch attention;
  std::vector<float> q;
  std::vector<float> out[2];
  std::vector<float> lse2[2];
};

// Shared by the twins.
absl::Status ValidateShift(const Rope& rope, int64_t shift, int32_t head_dim);

absl::Status ShiftedAttentionRef(const ShiftedAttentionParams& params);
absl::Status ShiftedAttentionCpu(const ShiftedAttentionParams& params,
                                 ShiftedAttentionScratch& scratch);

}  // namespace pagoda::kernels
