#include "kernels/position_shift.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/attention_rows_ref.h"
#include "kernels/merge_states.h"
#include "storage/base/status_macros.h"

namespace pagoda::kernels {
namespace {

constexpr int64_t kShiftMax = int64_t{1} << 24;  // angles then err by less than 2^-28
constexpr size_t kRunsOfCallMax = 4096;

absl::Status Validate(const ShiftedAttentionParams& p) {
  if (!p.attention.pages.empty() || p.runs.empty() || p.runs.size() > kRunsOfCallMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "position shift: %d runs (accepted 1 to %d) and %d pages beside them (accepted 0)",
        p.runs.size(), kRunsOfCallMax, p.attention.pages.size()));
  }
  for (const TileRun& run : p.runs) {
    AttentionParams of_run = p.attention;
    of_run.pages = run.pages;
    PAGODA_RETURN_IF_ERROR(ValidateAttention(of_run));
    PAGODA_RETURN_IF_ERROR(ValidateShift(p.rope, run.shift, p.attention.head_dim));
  }
  return absl::OkStatus();
}

// Angles rounded once to float, as a rope table holds them.
void TurnQueries(const RopeAngles& angles, const AttentionParams& p, float* q) {
  const int64_t row_floats = int64_t{p.group_count} * p.head_dim;
  const size_t half = angles.cosines.size();
  for (int32_t i = 0; i < p.query_count; ++i) {
    float* row = q + i * row_floats;
    std::copy_n(p.q + i * p.q_stride, row_floats, row);
    for (int32_t g = 0; g < p.group_count; ++g, row += p.head_dim) {
      for (size_t c = 0; c < half; ++c) {
        const auto cosine = static_cast<float>(angles.cosines[c]);
        const auto sine = static_cast<float>(angles.sines[c]);
        const float a = row[c];
        const float b = row[half + c];
        row[c] = a * cosine - b * sine;
        row[half + c] = b * cosine + a * sine;
      }
    }
  }
}

// One run, its rows without gaps, into out and lse2.
absl::Status AttendRun(const ShiftedAttentionParams& p, const TileRun& run, std::vector<float>& out,
                       std::vector<float>& lse2, ShiftedAttentionScratch& scratch) {
  AttentionParams of_run = p.attention;
  of_run.pages = run.pages;
  const int64_t row_floats = int64_t{of_run.group_count} * of_run.head_dim;
  if (run.shift != 0) {
    scratch.q.resize(static_cast<size_t>(of_run.query_count * row_floats));
    TurnQueries(AnglesOf(p.rope, -run.shift), p.attention, scratch.q.data());
    of_run.q = scratch.q.data();
    of_run.q_stride = row_floats;
  }
  out.resize(static_cast<size_t>(of_run.query_count * row_floats));
  lse2.resize(static_cast<size_t>(int64_t{of_run.query_count} * of_run.group_count));
  of_run.out = out.data();
  of_run.out_stride = row_floats;
  of_run.lse2 = lse2.data();
  return AttentionCpu(of_run, scratch.attention);
}

}  // namespace

absl::Status ValidateShift(const Rope& rope, int64_t shift, int32_t head_dim) {
  if (shift < -kShiftMax || shift > kShiftMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "position shift: shift %d, accepted -%d to %d", shift, kShiftMax, kShiftMax));
  }
  const bool dims_ok = rope.rope_dims >= 2 && rope.rope_dims <= head_dim && rope.rope_dims % 2 == 0;
  // Below 1 angles would grow beyond what the bound in the header covers.
  const bool numbers_ok = std::isfinite(rope.theta) && rope.theta >= 1 &&
                          std::isfinite(rope.linear_factor) && rope.linear_factor >= 1;
  if (dims_ok && numbers_ok) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("position shift: rope of %d channels (accepted even, 2 to %d), theta %g, "
                      "linear factor %g (accepted 1 and above)",
                      rope.rope_dims, head_dim, rope.theta, rope.linear_factor));
}

RopeAngles AnglesOf(const Rope& rope, int64_t shift) {
  RopeAngles angles;
  for (int32_t i = 0; i < rope.rope_dims / 2; ++i) {
    const double angle = static_cast<double>(shift) / rope.linear_factor *
                         std::pow(rope.theta, -2.0 * i / rope.rope_dims);
    angles.cosines.push_back(std::cos(angle));
    angles.sines.push_back(std::sin(angle));
  }
  return angles;
}

void TurnRef(const RopeAngles& angles, double* x) {
  const size_t half = angles.cosines.size();
  for (size_t c = 0; c < half; ++c) {
    const double a = x[c];
    const double b = x[half + c];
    x[c] = a * angles.cosines[c] - b * angles.sines[c];
    x[half + c] = b * angles.cosines[c] + a * angles.sines[c];
  }
}

absl::Status ShiftedAttentionRef(const ShiftedAttentionParams& p) {
  PAGODA_RETURN_IF_ERROR(Validate(p));
  const int32_t dim = p.attention.head_dim;
  std::vector<DecodedTile> tiles;
  for (const TileRun& run : p.runs) {
    const size_t first = tiles.size();
    PAGODA_RETURN_IF_ERROR(DecodeTilesRef(run.pages, dim, p.attention.page_tokens, tiles));
    const RopeAngles angles = AnglesOf(p.rope, run.shift);
    for (size_t i = first; i < tiles.size(); ++i) {
      for (int32_t t = 0; t < tiles[i].token_count; ++t) TurnRef(angles, &tiles[i].k[t * dim]);
    }
  }
  AttendRowsRef(p.attention, tiles);
  return absl::OkStatus();
}

absl::Status ShiftedAttentionCpu(const ShiftedAttentionParams& p,
                                 ShiftedAttentionScratch& scratch) {
  PAGODA_RETURN_IF_ERROR(Validate(p));
  const AttentionParams& a = p.attention;
  const int64_t row_floats = int64_t{a.group_count} * a.head_dim;
  const int64_t row_count = int64_t{a.query_count} * a.group_count;
  for (size_t i = 0; i < p.runs.size(); ++i) {
    const int into = i == 0 ? 0 : 1;
    PAGODA_RETURN_IF_ERROR(AttendRun(p, p.runs[i], scratch.out[into], scratch.lse2[into], scratch));
    if (into == 0) continue;
    MergeStatesCpu({scratch.out[0].data(), scratch.lse2[0].data()},
                   {scratch.out[1].data(), scratch.lse2[1].data()}, row_count, a.head_dim);
  }
  for (int32_t i = 0; i < a.query_count; ++i) {
    std::copy_n(&scratch.out[0][i * row_floats], row_floats, a.out + i * a.out_stride);
  }
  if (a.lse2 != nullptr) std::copy_n(scratch.lse2[0].data(), row_count, a.lse2);
  return absl::OkStatus();
}

}  // namespace pagoda::kernels
