#include "client/cli/units.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace pagoda::cli {

std::string FormatBytes(double bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  size_t unit = 0;
  // 1023.95 would be printed as 1024.0: that is one of the next unit.
  while (std::abs(bytes) >= (unit == 0 ? 1024 : 1023.95) && unit + 1 < std::size(kUnits)) {
    bytes /= 1024;
    ++unit;
  }
  return unit == 0 ? absl::StrFormat("%.0f B", bytes)
                   : absl::StrFormat("%.1f %s", bytes, kUnits[unit]);
}

std::string FormatCount(int64_t count) {
  std::string digits = absl::StrCat(count);
  const size_t sign = count < 0 ? 1 : 0;
  for (size_t at = digits.size(); at > sign + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

std::string FormatSeconds(double seconds) {
  if (seconds < 0.9995e-3) return absl::StrFormat("%.0f us", seconds * 1e6);
  if (seconds < 0.9995) return absl::StrFormat("%.*f ms", seconds < 0.1 ? 1 : 0, seconds * 1e3);
  return absl::StrFormat("%.2f s", seconds);
}

std::string FormatAge(double seconds) {
  const auto total = static_cast<int64_t>(std::max(0.0, seconds));
  if (total < 60) return absl::StrCat(total, " s");
  if (total < 3600) return absl::StrCat(total / 60, " min ", total % 60, " s");
  if (total < 86400) return absl::StrCat(total / 3600, " h ", total / 60 % 60, " min");
  return absl::StrCat(total / 86400, " d ", total / 3600 % 24, " h");
}

std::string FormatPercent(double share) { return absl::StrFormat("%.1f %%", share * 100); }

std::string FormatRate(double bytes_per_second) {
  if (bytes_per_second >= 1e9) return absl::StrFormat("%.2f GB/s", bytes_per_second / 1e9);
  if (bytes_per_second >= 1e6) return absl::StrFormat("%.1f MB/s", bytes_per_second / 1e6);
  return absl::StrFormat("%.1f kB/s", bytes_per_second / 1e3);
}

std::string Bar(double share, int width) {
  if (!(share > 0)) share = 0;  // NaN too
  share = std::min(share, 1.0);
  int filled = static_cast<int>(std::lround(share * width));
  if (share > 0) filled = std::max(filled, 1);
  if (share < 1) filled = std::min(filled, width - 1);
  filled = std::clamp(filled, 0, width);
  return absl::StrCat("[", std::string(filled, '#'), std::string(width - filled, '-'), "]");
}

}  // namespace pagoda::cli
