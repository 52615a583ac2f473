// The demo itself: one model, one daemon, six requests of three tenants that share a document.
//
// Threads  one: the caller's
// Errors   whatever of its parts fails first, in one line; INTERNAL by CheckDemo
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/demo_report.h"
#include "client/cli/json_output.h"

namespace pagoda::cli {

struct DemoOptions {
  std::string model;     // GGUF file; empty: the installed one
  std::string document;  // text file; empty: a licence of the system
  int64_t document_tokens = 2560;
  int64_t new_tokens = 48;
  int thread_count = 0;  // 0: as many as the machine has
  JsonOptions json;      // decides where the text goes
};

// Prints as it goes. Everything it started is gone when it returns.
absl::StatusOr<DemoReport> RunDemo(const DemoOptions& options);

}  // namespace pagoda::cli
