// Prefill: many query rows over the same tiles. Each block of 64 tokens is converted once, K
// transposed and V by rows; then for every block of kRows query rows, S = Q K^T, softmax and O += P
// V run in registers (FlashAttention-2's order, one core). Codes stay in the rotated frame: q
// exists in both frames, and so does O, whose rotated part is turned back once at the end.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/attention_kernels.h"
#include "kernels/hadamard.h"
#include "kernels/simd_targets.h"
#include "kernels/token_run.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/attention_prefill_cpu.cc"
#include "hwy/foreach_target.h"
//
#include "kernels/attention_simd-inl.h"

#ifndef PAGODA_KERNELS_ATTENTION_PREFILL_ONCE
#define PAGODA_KERNELS_ATTENTION_PREFILL_ONCE
namespace pagoda::kernels {

constexpr int32_t kBlockTokens = 64;
constexpr int32_t kRowsMax = 8;

// Memory of one call, carved from the scratch.
struct PrefillMemory {
  float* k;       // [head_dim][kBlockTokens]
  float* v;       // [kBlockTokens][v_dim]
  float* p;       // [kRowsMax][kBlockTokens]
  float* q[2];    // raw, rotated: [row block][head_dim][rows]; null when no run needs it
  float* o[2];    // raw, rotated: [padded rows][v_dim]
  float* max;     // [padded rows]
  float* sum;     // [padded rows]
  float* factor;  // [kRowsMax]
  int64_t v_dim;
  bool uses[2];  // some run is raw; some is codes
};

}  // namespace pagoda::kernels
#endif  // PAGODA_KERNELS_ATTENTION_PREFILL_ONCE

HWY_BEFORE_NAMESPACE();
namespace pagoda::kernels {
namespace HWY_NAMESPACE {

constexpr int32_t kRows = kManyRegisters ? 8 : 6;
constexpr int32_t kVectors = 2;
constexpr int32_t kBlockLanes = kVectors * kLanes;
static_assert(kRows <= kRowsMax && kBlockTokens % kBlockLanes == 0);

// ---- Conversion of up to kBlockTokens tokens, from token `first` of the run's tile

void ConvertRawKeys(const uint16_t* rows, int32_t count, int32_t head_dim, float* k) {
  const DF d;
  const DI di;
  const DU du;
  for (int32_t t = 0; t < kBlockTokens; t += kLanes) {
    // Lanes past the last token read it again; their logits are masked.
    const auto token = hn::Min(hn::Iota(di, t), hn::Set(di, count - 1));
    const auto offsets = hn::Mul(token, hn::Set(di, head_dim / 2));
    for (int32_t c = 0; c < head_dim; c += 2) {
      const auto* words = reinterpret_cast<const int32_t*>(rows + c);
      const VU word = hn::BitCast(du, hn::GatherIndex(di, words, offsets));
      hn::Store(hn::BitCast(d, hn::ShiftLeft<16>(word)), d, k + c * kBlockTokens + t);
      hn::Store(hn::BitCast(d, hn::And(word, hn::Set(du, 0xffff0000u))), d,
                k + (c + 1) * kBlockTokens + t);
    }
  }
}

void ConvertRawValues(const uint16_t* rows, int32_t count, int32_t head_dim, int64_t v_dim,
                      float* v) {
  for (int32_t t = 0; t < count; ++t) {
    for (int32_t c = 0; c < head_dim; ++c) {
      v[t * v_dim + c] = FloatFromBf16(rows[int64_t{t} * head_dim + c]);
    }
    std::fill(v + t * v_dim + head_dim, v + (t + 1) * v_dim, 0.0f);
  }
  std::fill(v + count * v_dim, v + kBlockTokens * v_dim, 0.0f);
}

// Scales of kLanes tokens; the 8-bit rate stores 16 times its scale.
HWY_INLINE VF LoadScales(const uint16_t* scales, bool both) {
  const VF a = LoadFp16(scales);
  return both ? hn::Mul(a, hn::Set(DF(), 0.0625f)) : a;
}

void ConvertKeyCodes(const PageTile& tile, int32_t head_dim, int32_t page_tokens, int32_t first,
                     float* k) {
  const DF d;
  const DU du;
  const bool both = tile.k_lo != nullptr;
  const uint16_t* scales = both ? tile.k_lo_params : tile.k_hi_params + MeanWords(head_dim);
  const VF centre = hn::Set(d, both ? 127.5f : 7.5f);
  const ChannelGroups groups = GroupsOf(head_dim);
  const int32_t octets = head_dim / kOctet;
  const int32_t count = std::min(kBlockTokens, page_tokens - first);
  for (int32_t t = 0; t < count; t += kLanes) {
    const int64_t tile_words = int64_t{(first + t) / kTileTokens} * octets * kTileTokens;
    const int64_t in_tile = (first + t) % kTileTokens;
    for (int32_t g = 0; g < groups.count; ++g) {
      const VF a = LoadScales(scales + int64_t{g} * page_tokens + first + t, both);
      for (int32_t o = groups.begin[g] / kOctet; o < groups.begin[g + 1] / kOctet; ++o) {
        const int64_t at = tile_words + o * kTileTokens + in_tile;
        const VU hi = hn::Load(du, tile.k_hi + at);
        const ElementBytes bytes =
            both ? MergeWords(hi, hn::Load(du, tile.k_lo + at)) : SplitWords(hi);
        PAGODA_UNROLL
        for (int i = 0; i < kOctet; ++i) {
          const int32_t c = o * kOctet + i;
          const VF u = ElementOf(bytes, i);
          const VF mean = hn::Set(d, FloatFromFp16(tile.k_hi_params[c]));
          hn::Store(hn::MulAdd(hn::Sub(u, centre), a, mean), d, k + c * kBlockTokens + t);
        }
      }
    }
  }
  for (int32_t c = 0; c < head_dim && count < kBlockTokens; ++c) {
    std::fill(k + c * kBlockTokens + count, k + (c + 1) * kBlockTokens, 0.0f);
  }
}

void ConvertValueCodes(const PageTile& tile, int32_t head_dim, int32_t page_tokens, int32_t first,
                       int64_t v_dim, float* v) {
  const DF d;
  const DU du;
  const bool both = tile.v_lo != nullptr;
  const uint16_t* scales = both ? tile.v_lo_params : tile.v_hi_params;
  const float factor = both ? 0.0625f : 1.0f;
  const VF centre = hn::Set(d, both ? 127.5f : 7.5f);
  const ChannelGroups groups = GroupsOf(head_dim);
  const int32_t count = std::min(kBlockTokens, page_tokens - first);
  for (int32_t t = 0; t < count; t += kOctet) {
    const int64_t octet_words =
        int64_t{(first + t) / kTileTokens} * v_dim * 4 + (first + t) % kTileTokens / kOctet * 32;
    for (int32_t c = 0, g = 0; c < v_dim; c += kLanes) {
      while (g + 1 < groups.count && c >= groups.begin[g + 1]) ++g;
      const int64_t at = octet_words + int64_t{c / 32} * 128 + c % 32;
      const VU hi = hn::Load(du, tile.v_hi + at);
      const ElementBytes bytes =
          both ? MergeWords(hi, hn::Load(du, tile.v_lo + at)) : SplitWords(hi);
      const uint16_t* a = scales + int64_t{g} * page_tokens + first + t;
      PAGODA_UNROLL
      for (int i = 0; i < kOctet; ++i) {
        const VF u = ElementOf(bytes, i);
        const VF scale = hn::Set(d, FloatFromFp16(a[i]) * factor);
        hn::Store(hn::Mul(hn::Sub(u, centre), scale), d, v + (t + i) * v_dim + c);
      }
    }
  }
  std::fill(v + count * v_dim, v + kBlockTokens * v_dim, 0.0f);
}

// ---- One block of kRows rows against one block of tokens

// p[r][t] = sum over c of q[c][r] * k[c][t]
HWY_INLINE void Logits(const float* HWY_RESTRICT q, const float* HWY_RESTRICT k, int32_t head_dim,
                       float* HWY_RESTRICT p) {
  const DF d;
  for (int32_t t = 0; t < kBlockTokens; t += kBlockLanes) {
    VF acc[kRows][kVectors];
    PAGODA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      PAGODA_UNROLL
      for (int i = 0; i < kVectors; ++i) acc[r][i] = hn::Zero(d);
    }
    for (int32_t c = 0; c < head_dim; ++c) {
      VF key[kVectors];
      PAGODA_UNROLL
      for (int i = 0; i < kVectors; ++i)
        key[i] = hn::Load(d, k + c * kBlockTokens + t + i * kLanes);
      PAGODA_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const VF query = hn::Set(d, q[c * kRows + r]);
        PAGODA_UNROLL
        for (int i = 0; i < kVectors; ++i) acc[r][i] = hn::MulAdd(query, key[i], acc[r][i]);
      }
    }
    PAGODA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      PAGODA_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        hn::Store(acc[r][i], d, p + r * kBlockTokens + t + i * kLanes);
      }
    }
  }
}

// Logits to weights, in place; tokens outside [begin, end) weigh 0. Updates max and sum, and
// returns the factor of what was accumulated before.
HWY_INLINE float Softmax(float* p, int32_t begin, int32_t end, float& max, float& sum) {
  const DF d;
  const DI di;
  if (begin > 0 || end < kBlockTokens) {
    const VF minus_infinity = hn::Set(d, -std::numeric_limits<float>::infinity());
    for (int32_t t = 0; t < kBlockTokens; t += kLanes) {
      const auto token = hn::Iota(di, t);
      const auto hidden =
          hn::Or(hn::Lt(token, hn::Set(di, begin)), hn::Not(hn::Lt(token, hn::Set(di, end))));
      const VF x = hn::Load(d, p + t);
      hn::Store(hn::IfThenElse(hn::RebindMask(d, hidden), minus_infinity, x), d, p + t);
    }
  }
  VF greatest = hn::Load(d, p);
  for (int32_t t = kLanes; t < kBlockTokens; t += kLanes) {
    greatest = hn::Max(greatest, hn::Load(d, p + t));
  }
  const float new_max = std::max(max, MaxOfLanes(greatest));
  const float factor = Exp2One(max - new_max);
  const VF vmax = hn::Set(d, new_max);
  VF total = hn::Zero(d);
  for (int32_t t = 0; t < kBlockTokens; t += kLanes) {
    const VF weight = Exp2(hn::Sub(hn::Load(d, p + t), vmax));
    total = hn::Add(total, weight);
    hn::Store(weight, d, p + t);
  }
  max = new_max;
  sum = sum * factor + SumOfLanes(total);
  return factor;
}

// o[r][c] = factor[r] * o[r][c] + sum over t of p[r][t] * v[t][c]
HWY_INLINE void Accumulate(const float* HWY_RESTRICT p, const float* HWY_RESTRICT v,
                           const float* HWY_RESTRICT factor, int64_t v_dim, float* HWY_RESTRICT o) {
  const DF d;
  for (int64_t c = 0; c < v_dim; c += kBlockLanes) {
    VF acc[kRows][kVectors];
    PAGODA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      PAGODA_UNROLL
      for (int i = 0; i < kVectors; ++i) {
        acc[r][i] = hn::Mul(hn::Load(d, o + r * v_dim + c + i * kLanes), hn::Set(d, factor[r]));
      }
    }
    for (int32_t t = 0; t < kBlockTokens; ++t) {
      VF value[kVectors];
      PAGODA_UNROLL
      for (int i = 0; i < kVectors; ++i) value[i] = hn::Load(d, v + t * v_dim + c + i * kLanes);
      PAGODA_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const VF weight = hn::Set(d, p[r * kBlockTokens + t]);
        PAGODA_UNROLL
        for (int i = 0; i < kVectors; ++i) acc[r][i] = hn::MulAdd(weight, value[i], acc[r][i]);
      }
    }
    PAGODA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      PAGODA_UNROLL
      for (int i = 0; i < kVectors; ++i) hn::Store(acc[r][i], d, o + r * v_dim + c + i * kLanes);
    }
  }
}

// ---- The loops

// All row blocks that see a token of [first, first + kBlockTokens) of the run.
void AttendBlock(const AttentionParams& a, const PrefillMemory& m, const TokenRun& run,
                 int32_t first) {
  const int frame = run.raw_k != nullptr ? 0 : 1;
  const int64_t row_count = int64_t{a.query_count} * a.group_count;
  const int64_t first_token = run.tile->base_position + std::max(first, run.begin);
  const int64_t first_query = std::max<int64_t>(0, first_token - a.first_position);
  const int64_t first_row = first_query * a.group_count / kRows * kRows;
  for (int64_t row = first_row; row < row_count; row += kRows) {
    Logits(m.q[frame] + row * a.head_dim, m.k, a.head_dim, m.p);
    for (int32_t r = 0; r < kRows; ++r) {
      // Padding rows behave as the last one; nobody reads them.
      const int64_t query = std::min(row + r, row_count - 1) / a.group_count;
      const int64_t seen = a.first_position + query - run.tile->base_position + 1;
      const auto end = static_cast<int32_t>(std::clamp<int64_t>(seen, 0, run.end));
      m.factor[r] = Softmax(m.p + r * kBlockTokens, run.begin - first, end - first, m.max[row + r],
                            m.sum[row + r]);
    }
    Accumulate(m.p, m.v, m.factor, m.v_dim, m.o[frame] + row * m.v_dim);
    // The other frame keeps pace with the maximum.
    if (!m.uses[1 - frame]) continue;
    for (int32_t r = 0; r < kRows; ++r) {
      if (m.factor[r] == 1.0f) continue;
      const DF d;
      float* o = m.o[1 - frame] + (row + r) * m.v_dim;
      for (int64_t c = 0; c < m.v_dim; c += kLanes) {
        hn::Store(hn::Mul(hn::Load(d, o + c), hn::Set(d, m.factor[r])), d, o + c);
      }
    }
  }
}

void AttendRuns(const AttentionParams& a, const PrefillMemory& m) {
  for (const PageTile& tile : a.pages) {
    TokenRun runs[kRunsMax];
    const int32_t run_count = RunsOf(tile, a.first_position + a.query_count - 1, runs);
    for (int32_t i = 0; i < run_count; ++i) {
      const TokenRun& run = runs[i];
      const int32_t begin = run.begin / kBlockTokens * kBlockTokens;
      for (int32_t first = begin; first < run.end; first += kBlockTokens) {
        if (run.raw_k != nullptr) {
          const int32_t count = std::min(kBlockTokens, run.end - first);
          const int64_t row = int64_t{first} * a.head_dim;
          ConvertRawKeys(run.raw_k + row, count, a.head_dim, m.k);
          ConvertRawValues(run.raw_v + row, count, a.head_dim, m.v_dim, m.v);
        } else {
          ConvertKeyCodes(tile, a.head_dim, a.page_tokens, first, m.k);
          ConvertValueCodes(tile, a.head_dim, a.page_tokens, first, m.v_dim, m.v);
        }
        AttendBlock(a, m, run, first);
      }
    }
  }
}

// q times the scale, by blocks of rows; padding rows are zero.
void PackQueries(const AttentionParams& a, const PrefillMemory& m, int64_t padded_rows) {
  const float scale = a.softmax_scale * 1.44269504088896340736f;
  const int64_t row_count = int64_t{a.query_count} * a.group_count;
  for (int64_t row = 0; row < padded_rows; ++row) {
    float x[2][kHeadDimMax] = {};
    if (row < row_count) {
      const float* q = a.q + row / a.group_count * a.q_stride + row % a.group_count * a.head_dim;
      for (int32_t c = 0; c < a.head_dim; ++c) x[0][c] = x[1][c] = q[c] * scale;
      if (m.uses[1]) RotateForward(x[1], a.head_dim);
    }
    for (int frame = 0; frame < 2; ++frame) {
      if (!m.uses[frame]) continue;
      float* packed = m.q[frame] + row / kRows * kRows * a.head_dim + row % kRows;
      for (int32_t c = 0; c < a.head_dim; ++c) packed[c * kRows] = x[frame][c];
    }
  }
}

void StoreOutputs(const AttentionParams& a, const PrefillMemory& m) {
  const int64_t row_count = int64_t{a.query_count} * a.group_count;
  for (int64_t row = 0; row < row_count; ++row) {
    float x[kHeadDimMax] = {};
    if (m.uses[1]) {
      std::copy_n(m.o[1] + row * m.v_dim, a.head_dim, x);
      RotateBackward(x, a.head_dim);
    }
    const bool empty = m.sum[row] == 0.0f;
    const float inv = empty ? 0.0f : 1.0f / m.sum[row];
    float* out = a.out + row / a.group_count * a.out_stride + row % a.group_count * a.head_dim;
    for (int32_t c = 0; c < a.head_dim; ++c) {
      const float raw = m.uses[0] ? m.o[0][row * m.v_dim + c] : 0.0f;
      out[c] = (raw + x[c]) * inv;
    }
    if (a.lse2 != nullptr) {
      a.lse2[row] =
          empty ? -std::numeric_limits<float>::infinity() : m.max[row] + std::log2(m.sum[row]);
    }
  }
}

void Prefill(const AttentionParams& a, AttentionScratch& scratch) {
  PrefillMemory m{};
  for (const PageTile& tile : a.pages) {
    const bool raw = tile.precision == Precision::kRaw16;
    m.uses[0] = m.uses[0] || raw || tile.sink_count > 0;
    m.uses[1] = m.uses[1] || !raw;
  }
  const int64_t padded_rows = AlignUp(int64_t{a.query_count} * a.group_count, kRows);
  m.v_dim = AlignUp(a.head_dim, 32);
  const int64_t q_floats = AlignUp(padded_rows * a.head_dim, 16);
  const int64_t o_floats = padded_rows * m.v_dim;
  const int64_t row_floats = AlignUp(padded_rows, 16);
  const int64_t frames = int{m.uses[0]} + int{m.uses[1]};
  float* at = scratch.Floats(kBlockTokens * (a.head_dim + m.v_dim + kRowsMax) + 16 +
                             2 * row_floats + frames * (q_floats + o_floats));
  const auto take = [&at](int64_t count) {
    float* taken = at;
    at += count;
    return taken;
  };
  m.k = take(int64_t{kBlockTokens} * a.head_dim);
  m.v = take(kBlockTokens * m.v_dim);
  m.p = take(kBlockTokens * kRowsMax);
  m.factor = take(16);
  m.max = take(row_floats);
  m.sum = take(row_floats);
  for (int frame = 0; frame < 2; ++frame) {
    if (!m.uses[frame]) continue;
    m.q[frame] = take(q_floats);
    m.o[frame] = take(o_floats);
    std::fill_n(m.o[frame], o_floats, 0.0f);
  }
  std::fill_n(m.max, row_floats, kNoMax);
  std::fill_n(m.sum, row_floats, 0.0f);
  PackQueries(a, m, padded_rows);
  AttendRuns(a, m);
  StoreOutputs(a, m);
}

}  // namespace HWY_NAMESPACE
}  // namespace pagoda::kernels
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace pagoda::kernels {

HWY_EXPORT(Prefill);

void PrefillAttention(const AttentionParams& params, AttentionScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(Prefill)(params, scratch);
}

}  // namespace pagoda::kernels
#endif  // HWY_ONCE
