// Which of Highway's targets our kernels are built for. Included before any header of Highway, by
// every source that has kernels and by the tests that run each target.
//
// SSSE3 is left to the scalar target (no such processor serves models); SVE's vectors have no size
// at compile time, which register blocking needs, so that ARM runs NEON.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SVE | HWY_SVE2 | HWY_SVE_256 | HWY_SVE2_128)
