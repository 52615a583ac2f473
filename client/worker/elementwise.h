// The parts of a transformer layer that are not matrix products, on one row each. SIMD chosen at
// run time; what a row gives depends on that row and on the machine's SIMD width, nothing else.
//
// Shapes   all pointers to `count` floats unless said; targets may be the sources
// Threads  pure functions
// Error    a few roundings of float per element; exp is within 2 ulp
#pragma once

#include <cstdint>

namespace pagoda {

// y = x / sqrt(mean(x^2) + epsilon) * weight.
void RmsNorm(const float* x, const float* weight, int64_t count, float epsilon, float* y);

// out = gate / (1 + exp(-gate)) * up.
void SiluMultiply(const float* gate, const float* up, int64_t count, float* out);

// Rotates the pairs (x[i], x[i + half_count]) by the angles whose cosines and sines are given.
void RotateHalfSplit(const float* cosines, const float* sines, int64_t half_count, float* x);

// To bf16, nearest, ties to even: the same bits as kernels::Bf16FromFloat.
void RoundToBf16(const float* x, int64_t count, uint16_t* target);

// log(sum(exp(x))), summed in blocks of 1024 in float and over the blocks in double. count >= 1.
double LogSumExp(const float* x, int64_t count);

// sum p (exp(d) - 1 - d), p = exp(reference - reference_lse), d = (x - lse) - (reference -
// reference_lse): the KL divergence of softmax(x) from softmax(reference), in a form whose every
// term is at least 0, so that small divergences survive float.
double KlDivergence(const float* reference, double reference_lse, const float* x, double lse,
                    int64_t count);

// The SIMD instruction set in use: "AVX2", "AVX3", ...
const char* SimdTargetName();

}  // namespace pagoda
