// What decoding keeps per query head while it walks the tiles, and what one step of it reads.
#pragma once

#include <cstdint>

#include "kernels/page_layout.h"

namespace pagoda::kernels {

constexpr int32_t kHeadsMax = 4;  // of one pass

// State of one head, in scratch.
struct HeadState {
  alignas(64) float q_even[kHeadDimMax / 2];  // scaled query, channels 0, 2, ...
  alignas(64) float q_odd[kHeadDimMax / 2];
  alignas(64) float q_rotated[kHeadDimMax];
  alignas(64) float o_even[kHeadDimMax / 2];
  alignas(64) float o_odd[kHeadDimMax / 2];
  alignas(64) float o_rotated[kHeadDimMax];
  alignas(64) float p[kPageTokensMax];                                   // logits, then weights
  alignas(64) float p_scaled[ChannelGroups::kCountMax][kPageTokensMax];  // p * scale of V
  // For arithmetic by integers (attention_integers-inl.h), four channels or tokens in a word.
  alignas(64) int32_t p_digits[2][ChannelGroups::kCountMax][kPageTokensMax / 4];
  alignas(64) int32_t q_digits[2][kHeadDimMax / 4];
  alignas(64) float sum_lanes[16];  // added up at the end
  alignas(64) float bias_lanes[ChannelGroups::kCountMax][16];
  int32_t q_total[ChannelGroups::kCountMax];  // sum of the integers
  float q_step[ChannelGroups::kCountMax];
  float p_step[ChannelGroups::kCountMax];
  float q_sum[ChannelGroups::kCountMax];  // of q_rotated
  float bias[ChannelGroups::kCountMax];   // centre * sum p_scaled
  float max;
  float sum;
};

// What a run reads of one tensor, and where the same offsets of the next tile are.
struct CodesOf {
  const uint32_t* hi;
  const uint32_t* lo;  // null: hi alone
  const uint16_t* scales;
  const uint32_t* next_hi;
  const uint32_t* next_lo;
};

struct RunArgs {
  int32_t head_dim;
  int32_t page_tokens;
  int32_t begin;
  int32_t end;
  ChannelGroups groups;
  bool integers = false;  // codes by integers, where the target can
};

}  // namespace pagoda::kernels
