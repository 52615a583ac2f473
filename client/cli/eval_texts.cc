#include "client/cli/eval_texts.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/worker/model_path.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {

absl::StatusOr<std::string> EvalTextPath(const std::string& name_or_path) {
  const bool known = std::find(std::begin(kEvalTextNames), std::end(kEvalTextNames),
                               name_or_path) != std::end(kEvalTextNames);
  if (!known) return name_or_path;
  PAGODA_ASSIGN_OR_RETURN(const std::string folder, CacheFolder());
  return absl::StrCat(folder, "/texts/", name_or_path, ".txt");
}

absl::StatusOr<std::vector<uint32_t>> ReadEvalText(const std::string& name_or_path,
                                                   int64_t token_count,
                                                   const Tokenizer& tokenizer) {
  PAGODA_ASSIGN_OR_RETURN(const std::string path, EvalTextPath(name_or_path));
  std::ifstream file(path);
  std::stringstream whole;
  if (file) whole << file.rdbuf();
  if (!file || whole.fail()) {
    return absl::NotFoundError(absl::StrFormat(
        "no text at %s: run deploy/fetch_texts.sh, or name a file with --text FILE", path));
  }
  std::vector<uint32_t> ids = tokenizer.Encode(whole.str(), ParseSpecial::kNo);
  if (static_cast<int64_t>(ids.size()) < token_count) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s has %d tokens, %d are asked; lower --tokens or name a longer text",
                        path, ids.size(), token_count));
  }
  ids.resize(static_cast<size_t>(token_count));
  return ids;
}

}  // namespace pagoda::cli
