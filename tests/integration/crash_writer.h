// The load of the crash loop: pushes, aborted pushes, pushes with false checksums, fetches that are
// verified, and what an admin does, on all streams at once, until the process is killed.
//
// Threads  one per stream, and one for the admin
#pragma once

#include <cstdint>
#include <string>

namespace pagoda {

[[noreturn]] void RunCrashWriter(const std::string& target, const std::string& log_path,
                                 uint32_t seed);

}  // namespace pagoda
