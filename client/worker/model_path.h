// Where the reference model lies on this machine. Downloading it is deploy/quickstart.sh.
//
// The product's cache folder is the first of $PAGODA_CACHE_DIR, $XDG_CACHE_HOME/pagoda and
// $HOME/.cache/pagoda; models are in its folder "models". This is the only library file that reads
// the environment: the commands that need a model share one rule, and --model FILE goes before it.
//
// Threads    any, as long as nobody changes the environment meanwhile
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda {

inline constexpr const char kDefaultModelFile[] = "SmolLM2-135M-Instruct.Q4_1.gguf";

// FAILED_PRECONDITION when none of the three variables is set.
absl::StatusOr<std::string> CacheFolder();

// `flag`, the value of --model, when it is not empty; otherwise the default model in the cache
// folder. NOT_FOUND names the path and the remedy when there is no such file.
absl::StatusOr<std::string> ResolveModelPath(absl::string_view flag = "");

}  // namespace pagoda
