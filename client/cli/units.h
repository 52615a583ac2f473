// Numbers as people read them: sizes, counts, times, shares, bars. Text only; JSON keeps the raw
// numbers.
//
// Threads  pure functions.   Units  bytes are binary (KiB, MiB, ...), times are seconds
#pragma once

#include <cstdint>
#include <string>

namespace pagoda::cli {

std::string FormatBytes(double bytes);            // "0 B", "1.5 KiB", "12.0 MiB"
std::string FormatCount(int64_t count);           // "1,234,567"
std::string FormatSeconds(double seconds);        // "850 us", "12.3 ms", "4.56 s"
std::string FormatAge(double seconds);            // "42 s", "3 min 5 s", "2 h 7 min", "3 d 4 h"
std::string FormatPercent(double share);          // 0.123 -> "12.3 %"
std::string FormatRate(double bytes_per_second);  // "1.23 GB/s": decimal, as networks are sold

// "[#####-----]": `width` cells between the brackets. A share above 0 shows at least one cell, one
// below 1 leaves at least one empty; shares outside [0, 1] and NaN are clamped.
std::string Bar(double share, int width);

}  // namespace pagoda::cli
