#include "client/lab/round_trips.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/float16.h"
#include "kernels/hadamard.h"
#include "kernels/page_layout.h"
#include "storage/base/check.h"

namespace pagoda::lab {
namespace {

float Stored(float value, ScaleType type) {
  return type == ScaleType::kFp16 ? kernels::FloatFromFp16(kernels::Fp16FromFloat(value))
                                  : kernels::FloatFromBf16(kernels::Bf16FromFloat(value));
}
float Fp16(float value) { return Stored(value, ScaleType::kFp16); }

// The number of the largest magnitude, with its sign; the first of equals.
float Extreme(absl::Span<const float> group) {
  float extreme = 0;
  for (const float x : group) {
    if (std::fabs(x) > std::fabs(extreme)) extreme = x;
  }
  return extreme;
}

// Butterflies and one multiplication; its own inverse.
void Hadamard(absl::Span<float> block) {
  const size_t size = block.size();
  for (size_t stride = 1; stride < size; stride *= 2) {
    for (size_t i = 0; i < size; ++i) {
      if ((i & stride) != 0) continue;
      const float a = block[i];
      const float b = block[i + stride];
      block[i] = a + b;
      block[i + stride] = a - b;
    }
  }
  const float scale = 1 / std::sqrt(static_cast<float>(size));
  for (float& x : block) x *= scale;
}

void HadamardRows(const Rows& rows, int32_t block) {
  PAGODA_CHECK(rows.head_dim % block == 0);
  for (int64_t token = 0; token < rows.token_count; ++token) {
    for (int32_t begin = 0; begin < rows.head_dim; begin += block) {
      Hadamard(rows.row(token).subspan(begin, block));
    }
  }
}

// The fp16 mean of every channel over all tokens.
std::vector<float> MeanOf(const Rows& rows) {
  std::vector<float> mean(rows.head_dim, 0);
  for (int64_t token = 0; token < rows.token_count; ++token) {
    for (int32_t c = 0; c < rows.head_dim; ++c) mean[c] += rows.row(token)[c];
  }
  for (float& x : mean) x = Fp16(x / static_cast<float>(rows.token_count));
  return mean;
}

}  // namespace

void RoundTripQ8_0(absl::Span<float> group) {
  const float step = std::fabs(Extreme(group)) / 127;
  const float inverse = step == 0 ? 0 : 1 / step;
  const float stored = Fp16(step);
  for (float& x : group) x = std::round(x * inverse) * stored;
}

void RoundTripQ4_0(absl::Span<float> group) {
  const float step = Extreme(group) / -8;
  const float inverse = step == 0 ? 0 : 1 / step;
  const float stored = Fp16(step);
  for (float& x : group) {
    const float code = std::min(15.0F, std::floor(x * inverse + 8.5F));
    x = (code - 8) * stored;
  }
}

void RoundTripAffine(absl::Span<float> group, int bits, ScaleType type) {
  const auto [low, high] = std::minmax_element(group.begin(), group.end());
  const auto code_max = static_cast<float>((1 << bits) - 1);
  const float zero = Stored(*low, type);
  const float scale = Stored((*high - zero) / code_max, type);
  const float inverse = scale > 0 ? 1 / scale : 0;
  for (float& x : group) {
    const float code = std::clamp(std::nearbyint((x - zero) * inverse), 0.0F, code_max);
    x = code * scale + zero;
  }
}

void RoundTripPrefix(absl::Span<float> group, int bits, ScaleRule rule) {
  const float extreme = std::max(std::fabs(Extreme(group)), 1e-12F);
  const float inverse = 127.5F / extreme;
  const auto dropped = static_cast<float>(1 << (8 - bits));
  std::vector<float> levels(group.size());
  double yy = 0;
  double yl = 0;
  double ll = 0;
  for (size_t i = 0; i < group.size(); ++i) {
    const float code = std::clamp(std::floor(group[i] * inverse), -128.0F, 127.0F);
    levels[i] = std::floor(code / dropped) + 0.5F;
    yy += double{group[i]} * group[i];
    yl += double{group[i]} * levels[i];
    ll += double{levels[i]} * levels[i];
  }
  const double scale = rule == ScaleRule::kUnbiased ? yy / std::max(yl, 1e-20) : yl / ll;
  // As the product stores them: a scale of 8 bits times 16, so that fp16 holds it well.
  const float lift = bits == 8 ? 16 : 1;
  const float stored = Fp16(static_cast<float>(scale) * lift) / lift;
  for (size_t i = 0; i < group.size(); ++i) group[i] = levels[i] * stored;
}

RoundTrip PerToken(int32_t group, GroupRoundTrip codec) {
  return [group, codec = std::move(codec)](const Rows& rows) {
    PAGODA_CHECK(rows.head_dim % group == 0);
    for (int64_t token = 0; token < rows.token_count; ++token) {
      for (int32_t begin = 0; begin < rows.head_dim; begin += group) {
        codec(rows.row(token).subspan(begin, group));
      }
    }
  };
}

RoundTrip PerProductGroup(GroupRoundTrip codec) {
  return [codec = std::move(codec)](const Rows& rows) {
    const kernels::ChannelGroups groups = kernels::GroupsOf(rows.head_dim);
    for (int64_t token = 0; token < rows.token_count; ++token) {
      for (int32_t i = 0; i < groups.count; ++i) {
        codec(rows.row(token).subspan(groups.begin[i], groups.begin[i + 1] - groups.begin[i]));
      }
    }
  };
}

RoundTrip PerChannel(GroupRoundTrip codec) {
  return [codec = std::move(codec)](const Rows& rows) {
    std::vector<float> column(rows.token_count);
    for (int32_t c = 0; c < rows.head_dim; ++c) {
      for (int64_t token = 0; token < rows.token_count; ++token) column[token] = rows.row(token)[c];
      codec(absl::MakeSpan(column));
      for (int64_t token = 0; token < rows.token_count; ++token) rows.row(token)[c] = column[token];
    }
  };
}

RoundTrip InHadamard(int32_t block, RoundTrip codec) {
  return [block, codec = std::move(codec)](const Rows& rows) {
    HadamardRows(rows, block);
    codec(rows);
    HadamardRows(rows, block);
  };
}

RoundTrip InInterleavedOrder(RoundTrip codec) {
  return [codec = std::move(codec)](const Rows& rows) {
    const int32_t half = rows.head_dim / 2;
    std::vector<float> row(rows.head_dim);
    for (int64_t token = 0; token < rows.token_count; ++token) {
      std::copy_n(rows.row(token).data(), rows.head_dim, row.data());
      for (int32_t c = 0; c < rows.head_dim; ++c) rows.row(token)[c] = row[c / 2 + c % 2 * half];
    }
    codec(rows);
    for (int64_t token = 0; token < rows.token_count; ++token) {
      std::copy_n(rows.row(token).data(), rows.head_dim, row.data());
      for (int32_t c = 0; c < rows.head_dim; ++c) rows.row(token)[c / 2 + c % 2 * half] = row[c];
    }
  };
}

RoundTrip InProductFrame(Centring centring, RoundTrip codec) {
  return [centring, codec = std::move(codec)](const Rows& rows) {
    const auto shift = [&rows](const std::vector<float>& mean, float sign) {
      for (int64_t token = 0; token < rows.token_count; ++token) {
        for (int32_t c = 0; c < rows.head_dim; ++c) rows.row(token)[c] += sign * mean[c];
      }
    };
    for (int64_t token = 0; token < rows.token_count; ++token) {
      kernels::RotateForward(rows.row(token).data(), rows.head_dim);
    }
    const std::vector<float> mean =
        centring == Centring::kMean ? MeanOf(rows) : std::vector<float>(rows.head_dim, 0);
    shift(mean, -1);
    codec(rows);
    shift(mean, 1);
    for (int64_t token = 0; token < rows.token_count; ++token) {
      kernels::RotateBackward(rows.row(token).data(), rows.head_dim);
    }
  };
}

}  // namespace pagoda::lab
