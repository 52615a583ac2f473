// A worth and a time of last use in one word, ordered by worth first: entries of equal worth go
// least recently used first. Times are numbers of events; 48 bits last for 89 years of 100,000 uses
// a second.
#pragma once

#include <cstdint>

namespace pagoda::policy {

constexpr int kUseTimeBits = 48;
constexpr uint64_t kUseTimeMask = (uint64_t{1} << kUseTimeBits) - 1;

constexpr uint64_t MakeUseWord(uint16_t worth, uint64_t time) {
  return uint64_t{worth} << kUseTimeBits | (time & kUseTimeMask);
}
constexpr uint16_t WorthOf(uint64_t use_word) {
  return static_cast<uint16_t>(use_word >> kUseTimeBits);
}
constexpr uint64_t UseTimeOf(uint64_t use_word) { return use_word & kUseTimeMask; }

// One use more; 65535 stands for more than that.
constexpr uint16_t OneMore(uint16_t use_count) {
  return use_count == UINT16_MAX ? use_count : static_cast<uint16_t>(use_count + 1);
}

}  // namespace pagoda::policy
