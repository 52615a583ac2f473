// Cosines and sines of rotary position embedding, half-split: pair i of a head is (i, i + half) and
// turns by position / linear_factor * theta^(-2i / rope_dims).
//
// Shapes   a row has half_count() floats      Threads  reading: any, while nobody grows it
// Error    angles, cosines and sines in double, rounded once to float
// Cost     8 * half_count bytes per position; rows are made when first needed
#pragma once

#include <cstdint>
#include <vector>

#include "client/worker/llama_config.h"

namespace pagoda {

class RopeTable {
 public:
  explicit RopeTable(const LlamaConfig& config);

  // Makes the rows of positions [0, position_count) available.
  void GrowTo(int64_t position_count);

  int64_t half_count() const { return half_count_; }
  // REQUIRES: 0 <= position < the greatest GrowTo().
  const float* cosines(int64_t position) const { return &cosines_[position * half_count_]; }
  const float* sines(int64_t position) const { return &sines_[position * half_count_]; }

 private:
  int64_t half_count_;
  double linear_factor_;
  std::vector<double> frequencies_;
  std::vector<float> cosines_;
  std::vector<float> sines_;
};

}  // namespace pagoda
