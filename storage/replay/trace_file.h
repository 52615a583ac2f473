// Trace files: read whole, unpacked when they are gzip, told apart by how they begin.
//
// Errors     NOT_FOUND, PERMISSION_DENIED, ...  the path and the system's reason
//            INVALID_ARGUMENT  damaged gzip, or what trace_formats.h says
//            RESOURCE_EXHAUSTED  beyond the limit
// Limits     2 GiB of text
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "storage/replay/trace_formats.h"

namespace pagoda::replay {

// The trace's name is the file's, without folder and endings.
absl::StatusOr<Trace> ReadTrace(const std::string& path, const AgenticOptions& options);

// The text of gzip bytes; INVALID_ARGUMENT: damaged or cut. RESOURCE_EXHAUSTED: more than
// `text_bytes_max`.
absl::StatusOr<std::string> Gunzip(absl::string_view bytes, int64_t text_bytes_max);

}  // namespace pagoda::replay
