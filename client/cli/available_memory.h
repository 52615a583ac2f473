// How much memory a program may still take without pushing others out.
#pragma once

#include <cstdint>

namespace pagoda::cli {

// MemAvailable of /proc/meminfo: free memory and what the page cache would give back. INT64_MAX
// where it is not known.
int64_t AvailableMemoryBytes();

}  // namespace pagoda::cli
