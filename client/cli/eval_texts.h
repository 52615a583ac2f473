// The texts that quality is measured on: legal, tech and prose, put into the cache folder by
// deploy/fetch_texts.sh. A path of one's own works too.
//
// Threads  pure functions
// Errors   NOT_FOUND            no such file: path and remedy
//          FAILED_PRECONDITION  fewer tokens than asked
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/worker/tokenizer.h"

namespace pagoda::cli {

inline constexpr const char* kEvalTextNames[] = {"legal", "tech", "prose"};

// A name of the list above means the cache folder's file, anything else is a path.
absl::StatusOr<std::string> EvalTextPath(const std::string& name_or_path);

// Its first `token_count` tokens.
absl::StatusOr<std::vector<uint32_t>> ReadEvalText(const std::string& name_or_path,
                                                   int64_t token_count, const Tokenizer& tokenizer);

}  // namespace pagoda::cli
