#include "storage/base/byte_size.h"

#include <array>
#include <cmath>

#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace pagoda {
namespace {

struct Unit {
  absl::string_view name;
  absl::string_view brief;
  int shift;
};
constexpr std::array<Unit, 4> kUnits = {
    {{"TiB", "T", 40}, {"GiB", "G", 30}, {"MiB", "M", 20}, {"KiB", "K", 10}}};

absl::Status NotASize(absl::string_view text) {
  return absl::InvalidArgumentError(
      absl::StrCat("'", text, "' is not a size; write bytes or a unit, as in 512MiB or 4GiB"));
}

}  // namespace

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text) {
  absl::string_view number = absl::StripAsciiWhitespace(text);
  int shift = 0;
  for (const Unit& unit : kUnits) {
    const bool full = absl::EndsWithIgnoreCase(number, unit.name);
    if (full || absl::EndsWithIgnoreCase(number, unit.brief)) {
      number.remove_suffix(full ? unit.name.size() : unit.brief.size());
      shift = unit.shift;
      break;
    }
  }
  if (shift == 0 && absl::EndsWithIgnoreCase(number, "B")) number.remove_suffix(1);
  number = absl::StripTrailingAsciiWhitespace(number);
  // Digits and one point only: SimpleAtod would take "1e3", "inf" and "0x10" as well.
  if (number.empty() || number.find_first_not_of("0123456789.") != absl::string_view::npos) {
    return NotASize(text);
  }
  int64_t whole = 0;
  if (absl::SimpleAtoi(number, &whole)) {
    if (whole > (INT64_MAX >> shift)) return NotASize(text);
    return whole << shift;
  }
  double value = 0;
  if (!absl::SimpleAtod(number, &value)) return NotASize(text);
  value = std::ldexp(value, shift);
  if (value >= 0x1p53 || value != std::floor(value)) return NotASize(text);
  return static_cast<int64_t>(value);
}

std::string FormatByteSize(int64_t bytes) {
  for (const Unit& unit : kUnits) {
    const int64_t one = int64_t{1} << unit.shift;
    if (bytes != 0 && bytes % one == 0) return absl::StrCat(bytes / one, unit.name);
  }
  return absl::StrCat(bytes);
}

}  // namespace pagoda
