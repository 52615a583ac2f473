// The load of the crash loop and the soak: pushes, aborted pushes, pushes with false checksums,
// fetches that are verified, prefetches, and what an admin does (flushes, evictions, ladders), on
// all streams at once, until the process is killed.
//
// Threads  one per stream, and one for the admin
#pragma once

#include <cstdint>
#include <string>

namespace pagoda {

[[noreturn]] void RunCrashWriter(const std::string& target, const std::string& log_path,
                                 uint32_t seed);

}  // namespace pagoda
