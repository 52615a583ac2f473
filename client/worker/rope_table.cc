#include "client/worker/rope_table.h"

#include <cmath>

namespace pagoda {

RopeTable::RopeTable(const LlamaConfig& config)
    : half_count_(config.rope_dims / 2), linear_factor_(config.rope_linear_factor) {
  for (int64_t i = 0; i < half_count_; ++i) {
    frequencies_.push_back(std::pow(
        config.rope_theta, -2.0 * static_cast<double>(i) / static_cast<double>(config.rope_dims)));
  }
}

void RopeTable::GrowTo(int64_t position_count) {
  auto position = static_cast<int64_t>(cosines_.size()) / half_count_;
  for (; position < position_count; ++position) {
    for (const double frequency : frequencies_) {
      const double angle = static_cast<double>(position) / linear_factor_ * frequency;
      cosines_.push_back(static_cast<float>(std::cos(angle)));
      sines_.push_back(static_cast<float>(std::sin(angle)));
    }
  }
}

}  // namespace pagoda
