// The instruction sets that the kernels are built for, by name, and a choice among them for benches
// and tests. Without a choice the kernels take the best that the processor has.
//
// Threads  Use() before any kernel runs; the rest from any
// Errors   INVALID_ARGUMENT  unknown, or not on this processor; names those that are
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pagoda::kernels {

// Best first: "avx512-vnni", "avx512", "avx2", "sse4", "neon", "portable", as far as they are here.
std::vector<std::string> AvailableIsas();

// For the whole process. "avx512" is avx512-vnni with AttentionParams::float_codes: the caller sets
// that.
absl::Status UseIsa(absl::string_view name);

}  // namespace pagoda::kernels
