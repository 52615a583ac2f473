#include "kernels/codec_input.h"

#include <algorithm>

#include "absl/strings/str_format.h"
#include "kernels/float16.h"
#include "kernels/hadamard.h"

namespace pagoda::kernels {

absl::Status CheckEncodable(const EncodeTileParams& params) {
  for (const uint16_t* raw : {params.raw_k, params.raw_v}) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < int64_t{params.page_tokens} * params.head_dim; ++i) {
      largest = std::max<uint32_t>(largest, raw[i] & 0x7fffu);
    }
    if (largest > Bf16FromFloat(kEncodeMagnitudeMax)) {
      return absl::InvalidArgumentError(
          absl::StrFormat("encode: an element of %s is %g, the codec holds up to %g",
                          raw == params.raw_k ? "K" : "V",
                          FloatFromBf16(static_cast<uint16_t>(largest)), kEncodeMagnitudeMax));
    }
  }
  return absl::OkStatus();
}

absl::Status StoreMean(const EncodeTileParams& params, float* mean) {
  std::fill_n(mean, params.head_dim, 0.0f);
  for (int32_t t = 0; t < params.page_tokens; ++t) {
    const uint16_t* row = params.raw_k + t * params.head_dim;
    for (int32_t c = 0; c < params.head_dim; ++c) mean[c] += FloatFromBf16(row[c]);
  }
  for (int32_t c = 0; c < params.head_dim; ++c) mean[c] /= static_cast<float>(params.page_tokens);
  RotateForward(mean, params.head_dim);
  std::fill_n(params.k_hi_params, MeanWords(params.head_dim), uint16_t{0});
  for (int32_t c = 0; c < params.head_dim; ++c) {
    params.k_hi_params[c] = Fp16FromFloat(mean[c]);
    if (!IsFiniteFp16(params.k_hi_params[c])) {
      return absl::InvalidArgumentError(
          absl::StrFormat("encode: mean of a channel is %g, above fp16", mean[c]));
    }
    mean[c] = FloatFromFp16(params.k_hi_params[c]);
  }
  return absl::OkStatus();
}

}  // namespace pagoda::kernels
