#include "storage/base/crash_point.h"

#include <unistd.h>

#include <array>
#include <atomic>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "storage/base/log.h"

namespace pagoda {
namespace {

constexpr std::array<absl::string_view, kCrashAtCount> kNames = {
    "ssd_put",    "ssd_record",      "ssd_put_done", "ssd_flush", "ssd_flush_done",
    "ssd_delete", "ssd_delete_done", "rebuild",      "shutdown"};

CrashAt armed_at;                     // constant once threads run
std::atomic<int64_t> passes_left{0};  // relaxed: whoever takes the last one ends the process

}  // namespace

namespace crash_point_internal {

constinit bool armed = false;

void Pass(CrashAt place) {
  if (place != armed_at || passes_left.fetch_sub(1, std::memory_order_relaxed) != 1) return;
  constexpr absl::string_view kLine = "crash point reached: ending without a word more\n";
  (void)!::write(STDERR_FILENO, kLine.data(), kLine.size());
  ::_exit(kCrashExitCode);
}

}  // namespace crash_point_internal

absl::string_view CrashAtName(CrashAt place) { return kNames[static_cast<size_t>(place)]; }

absl::Status ArmCrashPoint(absl::string_view spec) {
  crash_point_internal::armed = false;
  if (spec.empty()) return absl::OkStatus();
  const std::pair<absl::string_view, absl::string_view> parts =
      absl::StrSplit(spec, absl::MaxSplits(':', 1));
  int64_t count = 1;
  const bool counted =
      parts.first.size() == spec.size() || (absl::SimpleAtoi(parts.second, &count) && count >= 1);
  size_t place = 0;
  while (place < kNames.size() && kNames[place] != parts.first) ++place;
  if (!counted || place == kNames.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("crash point: is '", spec, "', expected NAME or NAME:COUNT, with a NAME of ",
                     absl::StrJoin(kNames, ", "), " and a COUNT of at least 1"));
  }
  armed_at = static_cast<CrashAt>(place);
  passes_left.store(count, std::memory_order_relaxed);
  crash_point_internal::armed = true;
  LogWarning("crash_point_armed",
             {{"place", std::string(parts.first)}, {"count", absl::StrCat(count)}});
  return absl::OkStatus();
}

}  // namespace pagoda
