// Sizes as people write them: "512MiB", "4GiB", "1073741824".
//
// Units   B, KiB, MiB, GiB, TiB (powers of 1024); K, M, G, T mean the same; a number alone is
// bytes.
//         A fraction is fine when the result is a whole number of bytes: "1.5GiB".
// Errors  INVALID_ARGUMENT  not a size, negative, not whole, or 8 EiB and above
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda {

absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

// The greatest unit that divides it: 1073741824 is "1GiB", 1000 is "1000". Parses back to itself.
std::string FormatByteSize(int64_t bytes);

}  // namespace pagoda
