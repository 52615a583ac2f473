// Named places at which a test makes the process die at once, as a power cut between two steps of
// the storage code would. Every build has them, so that what is tested is what ships: a place that
// is not armed costs one predicted branch on a constant.
//
//   PAGODA_CRASH_AT=ssd_delete:3 pagodad ...      dies the third time it comes by
//
// Threads  CrashPoint() from any thread; ArmCrashPoint() once, before other threads start
// Errors   INVALID_ARGUMENT  names the value and what is accepted
#pragma once

#include <cstdint>

#include "absl/base/optimization.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace pagoda {

enum class CrashAt : uint8_t {
  kSsdPut = 0,        // before a page's bytes go to SSD
  kSsdRecord = 1,     // its bytes are handed over, its record is not
  kSsdPutDone = 2,    // both are; nothing is flushed
  kSsdFlush = 3,      // before a flush
  kSsdFlushDone = 4,  // after it
  kSsdDelete = 5,     // before a page is deleted
  kSsdDeleteDone = 6,
  kRebuild = 7,   // at start: records are read, what is broken is not deleted yet
  kShutdown = 8,  // at a clean stop, before what is only in memory is written
};
constexpr int kCrashAtCount = 9;

// "ssd_put", ...
absl::string_view CrashAtName(CrashAt place);

// The exit code of a process that died at a crash point.
constexpr int kCrashExitCode = 86;

// "NAME" or "NAME:COUNT": the process ends the COUNT-th time it passes. Empty: nothing is armed.
absl::Status ArmCrashPoint(absl::string_view spec);

namespace crash_point_internal {
extern bool armed;  // constant once threads run
void Pass(CrashAt place);
}  // namespace crash_point_internal

inline void CrashPoint(CrashAt place) {
  if (ABSL_PREDICT_FALSE(crash_point_internal::armed)) crash_point_internal::Pass(place);
}

}  // namespace pagoda
