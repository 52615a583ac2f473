// What every `pagoda eval` command starts from: the model, and the texts as tokens.
//
// Threads    one
// Errors     those of Engine::Load and ReadEvalText; a text that is missing is said before minutes
//            are spent on the others
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/worker/engine.h"

namespace pagoda::cli {

struct EvalFlags {
  std::string model;
  std::vector<std::string> texts;  // empty: all three
  int64_t token_count = 4096;
  int64_t window_tokens = 128;
  int thread_count = 0;
};
// --model, --text, --tokens, --window, --threads
void AddEvalFlags(CLI::App& app, EvalFlags& flags);
// Positions before the window's end read the same bytes at every precision: with fewer tokens there
// is nothing to compare. Empty: fine.
std::string CheckEvalFlags(const EvalFlags& flags);

struct EvalInputs {
  std::unique_ptr<Engine> engine;
  std::vector<std::string> names;
  std::vector<std::vector<uint32_t>> ids;  // of each name, token_count each
};
// Says on `stream` what takes long.
absl::StatusOr<EvalInputs> LoadEvalInputs(const EvalFlags& flags, FILE* stream);

}  // namespace pagoda::cli
