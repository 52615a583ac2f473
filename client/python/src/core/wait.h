// Waiting that Ctrl-C ends: without the GIL in short steps, between which Python looks for signals.
//
// Threads  with the GIL
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>

#include "absl/time/time.h"
#include "errors.h"
#include "gil.h"
#include "storage/base/clock.h"

namespace pagoda::python {

constexpr absl::Duration kWaitStep = absl::Milliseconds(100);

// `wait` is given the time of a step, and answers DEADLINE_EXCEEDED, or whatever else it knows to
// be missing, at its end. Raises what it answers sooner, or at the end of `timeout`.
template <typename F>
void WaitInSteps(absl::Duration timeout, F&& wait) {
  const absl::Duration end = SystemClock().Monotonic() + timeout;
  while (true) {
    const absl::Duration begin = SystemClock().Monotonic();
    const absl::Duration step = std::clamp(end - begin, absl::ZeroDuration(), kWaitStep);
    const absl::Status status = WithoutGil([&] { return wait(step); });
    if (status.ok()) return;
    if (PyErr_CheckSignals() != 0) throw nanobind::python_error();
    const absl::Duration now = SystemClock().Monotonic();
    if (now >= end || now - begin < step) Raise(status);
  }
}

}  // namespace pagoda::python
