// Decode over codes: K with lanes of tokens, V with lanes of channels, straight from the nibbles.
// Included once per target, by Highway's rules.
#if defined(PAGODA_KERNELS_ATTENTION_CODES_INL_H) == defined(HWY_TARGET_TOGGLE)
#ifdef PAGODA_KERNELS_ATTENTION_CODES_INL_H
#undef PAGODA_KERNELS_ATTENTION_CODES_INL_H
#else
#define PAGODA_KERNELS_ATTENTION_CODES_INL_H
#endif

#include <algorithm>
#include <cstdint>

#include "kernels/attention_simd-inl.h"
#include "kernels/decode_state.h"

HWY_BEFORE_NAMESPACE();
namespace pagoda::kernels {
namespace HWY_NAMESPACE {

// What a head has accumulated, times `factor`.
HWY_INLINE void Rescale(HeadState& head, float factor, int32_t head_dim) {
  const DF d;
  const VF scale = hn::Set(d, factor);
  head.sum *= factor;
  for (float& bias : head.bias) bias *= factor;
  for (float& sum : head.sum_lanes) sum *= factor;
  for (auto& lanes : head.bias_lanes) {
    for (float& bias : lanes) bias *= factor;
  }
  const auto v_dim = static_cast<int32_t>(AlignUp(head_dim, 32));
  for (int32_t c = 0; c < v_dim; c += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, head.o_rotated + c), scale), d, head.o_rotated + c);
  }
  for (int32_t c = 0; c < v_dim / 2; c += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, head.o_even + c), scale), d, head.o_even + c);
    hn::Store(hn::Mul(hn::Load(d, head.o_odd + c), scale), d, head.o_odd + c);
  }
}

// Adds octet `words` (lanes are tokens) times q[0..7] of each head.
template <int kHeads, int kVectors, bool kBoth>
HWY_INLINE void DotOctet(const VU (&hi)[kVectors], const VU (&lo)[kVectors],
                         const float* const (&q)[kHeads], int32_t channel,
                         VF (&acc)[kHeads][kVectors]) {
  PAGODA_UNROLL
  for (int i = 0; i < kOctet; ++i) {
    VF u[kVectors];
    PAGODA_UNROLL
    for (int v = 0; v < kVectors; ++v) u[v] = OctetWords<kBoth>(hi[v], lo[v])[i];
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) {
      const VF query = hn::Set(DF(), q[h][channel + i]);
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) acc[h][v] = hn::MulAdd(query, u[v], acc[h][v]);
    }
  }
}

// Logits of all tokens of the tile, codes [begin, end) or not: the softmax masks.
template <int kHeads, bool kBoth>
void KeyCodes(HeadState* heads, const float (&mean_dot)[kHeads], const CodesOf& k,
              const RunArgs& run) {
  constexpr int kVectors = 2 * kLanes <= kTileTokens ? 2 : 1;
  constexpr float kCentre = kBoth ? 127.5f : 7.5f;
  constexpr int32_t kChunk = kVectors * kLanes;
  const DF d;
  const DU du;
  const float* q[kHeads];
  for (int h = 0; h < kHeads; ++h) q[h] = heads[h].q_rotated;
  const int32_t first = run.begin / kChunk * kChunk;
  for (int32_t t = first; t < run.end; t += kChunk) {
    const int64_t tile_words =
        int64_t{t / kTileTokens} * run.head_dim * kTileTokens / kOctet + t % kTileTokens;
    VF logit[kHeads][kVectors];
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVectors; ++v) logit[h][v] = hn::Set(d, mean_dot[h]);
    }
    for (int32_t g = 0; g < run.groups.count; ++g) {
      VF acc[kHeads][kVectors];
      PAGODA_UNROLL
      for (int h = 0; h < kHeads; ++h) {
        PAGODA_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          acc[h][v] = hn::Set(d, -kCentre * heads[h].q_sum[g]);
        }
      }
      for (int32_t c = run.groups.begin[g]; c < run.groups.begin[g + 1]; c += kOctet) {
        const int64_t at = tile_words + int64_t{c} * (kTileTokens / kOctet);
        VU hi[kVectors];
        VU lo[kVectors];
        PAGODA_UNROLL
        for (int v = 0; v < kVectors; ++v) {
          hi[v] = hn::Load(du, k.hi + at + v * kLanes);
          lo[v] = kBoth ? hn::Load(du, k.lo + at + v * kLanes) : hi[v];
        }
        PrefetchLine(k.next_hi + at);
        if (kChunk > 16) PrefetchLine(k.next_hi + at + 16);
        if (kBoth) PrefetchLine(k.next_lo + at);
        if (kBoth && kChunk > 16) PrefetchLine(k.next_lo + at + 16);
        DotOctet<kHeads, kVectors, kBoth>(hi, lo, q, c, acc);
      }
      PAGODA_UNROLL
      for (int v = 0; v < kVectors; ++v) {
        VF a = LoadFp16(k.scales + int64_t{g} * run.page_tokens + t + v * kLanes);
        if (kBoth) a = hn::Mul(a, hn::Set(d, 0.0625f));
        PAGODA_UNROLL
        for (int h = 0; h < kHeads; ++h) logit[h][v] = hn::MulAdd(acc[h][v], a, logit[h][v]);
      }
    }
    for (int h = 0; h < kHeads; ++h) {
      for (int v = 0; v < kVectors; ++v) {
        hn::Store(logit[h][v], d, heads[h].p + t + v * kLanes);
      }
    }
  }
}

// o_rotated[c .. c + kVectors * kLanes) += p_scaled . u for all tokens; one scale group.
template <int kHeads, int kVectors, bool kBoth>
HWY_INLINE void ValueColumns(HeadState* heads, const CodesOf& v, const RunArgs& run, int32_t c,
                             int32_t group) {
  const DF d;
  const DU du;
  const int64_t v_dim = AlignUp(run.head_dim, 32);
  const float* p[kHeads];
  VF acc[kHeads][kVectors];
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    p[h] = heads[h].p_scaled[group];
    PAGODA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      acc[h][i] = hn::Load(d, heads[h].o_rotated + c + i * kLanes);
    }
  }
  const int32_t first = run.begin / kOctet * kOctet;
  for (int32_t t = first; t < run.end; t += kOctet) {
    const int64_t at = int64_t{t / kTileTokens} * v_dim * 4 + int64_t{c / 32} * 128 +
                       t % kTileTokens / kOctet * 32 + c % 32;
    VU hi[kVectors];
    VU lo[kVectors];
    PAGODA_UNROLL
    for (int i = 0; i < kVectors; ++i) {
      hi[i] = hn::Load(du, v.hi + at + i * kLanes);
      lo[i] = kBoth ? hn::Load(du, v.lo + at + i * kLanes) : hi[i];
    }
    PrefetchLine(v.next_hi + at);
    if (kVectors * kLanes > 16) PrefetchLine(v.next_hi + at + 16);
    if (kBoth) PrefetchLine(v.next_lo + at);
    if (kBoth && kVectors * kLanes > 16) PrefetchLine(v.next_lo + at + 16);
    const float* weights[kHeads];
    PAGODA_UNROLL
    for (int h = 0; h < kHeads; ++h) weights[h] = p[h];
    DotOctet<kHeads, kVectors, kBoth>(hi, lo, weights, t, acc);
  }
  PAGODA_UNROLL
  for (int h = 0; h < kHeads; ++h) {
    PAGODA_UNROLL
    for (int i = 0; i < kVectors; ++i) hn::Store(acc[h][i], d, heads[h].o_rotated + c + i * kLanes);
  }
}

template <int kHeads, bool kBoth>
void ValueCodes(HeadState* heads, const CodesOf& v, const RunArgs& run) {
  constexpr int32_t kPair = 2 * kLanes;
  const auto v_dim = static_cast<int32_t>(AlignUp(run.head_dim, 32));
  const auto last = run.groups.count - 1;
  for (int32_t c = 0, g = 0; c < v_dim;) {
    while (g < last && c >= run.groups.begin[g + 1]) ++g;
    // Two vectors share their weights unless a group ends between them.
    const bool split = g < last && c + kLanes >= run.groups.begin[g + 1];
    if (split || c % 32 + kPair > 32) {
      ValueColumns<kHeads, 1, kBoth>(heads, v, run, c, g);
      c += kLanes;
    } else {
      ValueColumns<kHeads, 2, kBoth>(heads, v, run, c, g);
      c += kPair;
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace pagoda::kernels
HWY_AFTER_NAMESPACE();

#endif  // include guard per target
