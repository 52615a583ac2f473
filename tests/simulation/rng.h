// A small random generator whose stream is the same on every machine, so that a seed is a story.
// Source: SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators, 2014).
#pragma once

#include <cstdint>

namespace pagoda::simulation {

class Rng {
 public:
  explicit Rng(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t Next() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  int Below(int n) {  // 0 to n - 1
    return static_cast<int>(((Next() >> 32) * static_cast<uint64_t>(n)) >> 32);
  }
  bool Chance(int per_mille) { return Below(1000) < per_mille; }

 private:
  uint64_t state_;
};

}  // namespace pagoda::simulation
