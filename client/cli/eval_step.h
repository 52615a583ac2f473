// One step of a `pagoda eval` command behind a progress line: it hears how far it is and stops when
// the user interrupts.
//
// Threads    one
#pragma once

#include <cstdint>
#include <cstdio>
#include <string>

#include "client/cli/interrupt.h"
#include "client/cli/progress_line.h"

namespace pagoda::cli {

// `measure(progress)` with bool progress(int64_t done, int64_t total); returns what it returns.
template <typename Measure>
auto WithProgress(FILE* stream, const std::string& step, Measure measure) {
  ProgressLine line(stream, step);
  return measure([&line](int64_t done, int64_t total) {
    line.set_share(static_cast<double>(done) / static_cast<double>(total));
    return !Interrupted();
  });
}

}  // namespace pagoda::cli
