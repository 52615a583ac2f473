// SplitMix64: the generator of the sampler, and of tests that share a seed with the scripts in
// tests/golden, so that both sides make the same bytes and texts. Not for secrets.
//
// Source  Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators (2014)
#pragma once

#include <cstdint>

namespace pagoda {

class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}

  uint64_t Next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // In [0, bound); slightly biased, the same on every machine. REQUIRES: bound > 0.
  uint64_t Below(uint64_t bound) { return Next() % bound; }
  // In [0, 1).
  double Unit() { return static_cast<double>(Next() >> 11) * 0x1p-53; }

 private:
  uint64_t state_;
};

}  // namespace pagoda
