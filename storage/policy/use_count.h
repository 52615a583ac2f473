// How often a page was used lately, in one byte: every use adds one, every window halves. The
// windows are those of the clock, so that steady use gives a steady count: about twice the uses in
// one window. Pure.
#pragma once

#include <algorithm>
#include <cstdint>

namespace pagoda::policy {

constexpr uint8_t kUsesMax = 255;

// What is left at `now` of a count that was made at `then`.
constexpr uint8_t DecayedUses(uint8_t uses, uint32_t then_seconds, uint32_t now_seconds,
                              uint32_t window_seconds) {
  if (now_seconds <= then_seconds) return uses;
  const uint32_t windows = now_seconds / window_seconds - then_seconds / window_seconds;
  return windows >= 8 ? uint8_t{0} : static_cast<uint8_t>(uses >> windows);
}

// The count after one more use at `now`.
constexpr uint8_t AddUse(uint8_t uses, uint32_t then_seconds, uint32_t now_seconds,
                         uint32_t window_seconds) {
  const uint8_t left = DecayedUses(uses, then_seconds, now_seconds, window_seconds);
  return static_cast<uint8_t>(std::min<int>(left + 1, kUsesMax));
}

}  // namespace pagoda::policy
