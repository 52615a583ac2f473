#include "client/worker/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"

// Compiled with -ffp-contract=off: a fused multiply-add would round otherwise on some machines.
namespace pagoda {
namespace {

// e^x for x <= 0, within 1e-15 relative; below e^-700 zero. libm's differs in the last bit between
// versions and processors, and one bit can turn a draw.
double ExpOfNegative(double x) {
  if (!(x > -700)) return 0;
  // x = n ln 2 + r with |r| <= ln 2 / 2; ln 2 in two parts so that n * kLn2High is exact.
  constexpr double kLn2High = 0x1.62e42fee00000p-1;
  constexpr double kLn2Low = 0x1.a39ef35793c76p-33;
  const double n = std::floor(x * 1.4426950408889634 + 0.5);
  const double r = (x - n * kLn2High) - n * kLn2Low;
  double sum = 1;
  for (int i = 14; i >= 1; --i) sum = 1 + sum * r / i;
  const auto exponent = static_cast<int64_t>(n) + 1023;
  return sum * std::bit_cast<double>(static_cast<uint64_t>(exponent) << 52);
}

// The likelier token pops first, the lower id among equals.
bool PopsLater(const std::pair<double, uint32_t>& a, const std::pair<double, uint32_t>& b) {
  return a.first != b.first ? a.first < b.first : a.second > b.second;
}

}  // namespace

absl::Status SamplerOptions::Validate() const {
  if (!(temperature >= 0 && temperature <= 100)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("temperature is %g, expected 0 to 100", temperature));
  }
  if (!(top_p > 0 && top_p <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("top_p is %g, expected above 0 and at most 1", top_p));
  }
  return absl::OkStatus();
}

uint32_t ArgMax(absl::Span<const float> logits) {
  PAGODA_CHECK(!logits.empty());
  size_t best = 0;
  float best_logit = -std::numeric_limits<float>::infinity();
  for (size_t i = 0; i < logits.size(); ++i) {
    if (logits[i] > best_logit) {
      best = i;
      best_logit = logits[i];
    }
  }
  return static_cast<uint32_t>(best);
}

absl::StatusOr<Sampler> Sampler::Create(const SamplerOptions& options) {
  if (absl::Status status = options.Validate(); !status.ok()) return status;
  return Sampler(options);
}

uint32_t Sampler::Next(absl::Span<const float> logits) {
  const uint32_t likeliest = ArgMax(logits);
  const double logit_max = logits[likeliest];
  // An infinite or missing maximum leaves no distribution to draw from.
  if (options_.temperature == 0 || !std::isfinite(logit_max)) return likeliest;

  heap_.clear();
  double total = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double weight = ExpOfNegative((double{logits[i]} - logit_max) / options_.temperature);
    if (weight == 0) continue;
    total += weight;
    heap_.emplace_back(weight, static_cast<uint32_t>(i));
  }
  const double unit = random_.Unit();
  if (options_.top_p == 1) {
    double left = unit * total;
    for (const auto& [weight, token] : heap_) {
      left -= weight;
      if (left < 0) return token;
    }
    return likeliest;  // rounding left a rest beyond the last token
  }

  // Pop the likeliest into the back of the vector until they reach top_p, then draw among them.
  std::make_heap(heap_.begin(), heap_.end(), PopsLater);
  auto heap_end = heap_.end();
  double kept = 0;
  while (heap_end != heap_.begin() && kept < options_.top_p * total) {
    std::pop_heap(heap_.begin(), heap_end, PopsLater);
    --heap_end;
    kept += heap_end->first;
  }
  double left = unit * kept;
  for (auto it = heap_.end(); it != heap_end;) {
    --it;
    left -= it->first;
    if (left < 0) return it->second;
  }
  return likeliest;
}

}  // namespace pagoda
