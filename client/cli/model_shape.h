// What a page of a model takes: shapes by name, and the bytes of a stored page at each precision.
//
// Units      bytes as the daemon accounts them: page header, scales and padding included
// Threads    pure functions
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/page_layout.h"
#include "storage/base/precision.h"

namespace pagoda::cli {

// "llama-3-8b", "llama-3-70b", "qwen2.5-7b", "smollm2-135m", or "LAYERS:KVHEADS:HEADDIM".
// INVALID_ARGUMENT lists what is accepted.
absl::StatusOr<kernels::PageShape> ParseModelShape(absl::string_view spec, int32_t page_tokens);

// Of a page in the middle of a sequence. REQUIRES: a valid shape; a precision of kStoredPrecisions.
int64_t StoredPageBytes(const kernels::PageShape& shape, Precision precision);

// Of the K and V of one token in raw16, nothing else.
int64_t RawTokenBytes(const kernels::PageShape& shape);

// A number with a unit: "3M", "1.5k", "64GiB", "2TB", "1000". k, M, G, T (and kB, ...) are powers
// of 1000; Ki, Mi, Gi, Ti (and KiB, ...) of 1024. INVALID_ARGUMENT: something else, or not from 1
// to 2^62.
absl::StatusOr<int64_t> ParseAmount(absl::string_view text);

}  // namespace pagoda::cli
