// The version of this build, from the project's build file.
#pragma once

namespace pagoda {

#ifndef PAGODA_VERSION
#error "PAGODA_VERSION is set by CMake"
#endif
inline constexpr char kVersion[] = PAGODA_VERSION;

}  // namespace pagoda
