// What `pagoda eval ppl` found, as rows and JSON.
//
// Threads  pure functions
#pragma once

#include <string>
#include <vector>

#include "client/cli/json_output.h"
#include "client/cli/text_table.h"
#include "client/worker/perplexity.h"

namespace pagoda::cli {

struct EvalText {
  std::string name;
  PerplexityReport report;  // raw16, q8, q4
};

TextTable EvalTable();
std::vector<std::string> EvalRow(const EvalText& text);

Json EvalJson(const std::vector<EvalText>& texts);

}  // namespace pagoda::cli
