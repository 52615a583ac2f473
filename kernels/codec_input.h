// What both twins of the encoder do alike with their input: check it, and take the mean of K.
#pragma once

#include "absl/status/status.h"
#include "kernels/codec.h"

namespace pagoda::kernels {

// Greatest magnitude of an input and of a rotated element. It keeps every float of the recipe
// finite and every scale, at most 2 * 2^17 / 7.97, inside fp16.
constexpr float kEncodeMagnitudeMax = 131072.0f;

// INVALID_ARGUMENT for NaN, infinity and magnitudes above kEncodeMagnitudeMax in K or V.
absl::Status CheckEncodable(const EncodeTileParams& params);

// Writes the fp16 mean of the rotated keys (and its padding) to k_hi_params, and its value to
// `mean` [head_dim]. INVALID_ARGUMENT when fp16 cannot hold it.
absl::Status StoreMean(const EncodeTileParams& params, float* mean);

}  // namespace pagoda::kernels
