#include "client/cli/demo_document.h"

#include <algorithm>
#include <fstream>
#include <sstream>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace pagoda::cli {

std::string CutAtParagraph(absl::string_view text, int64_t token_count_min,
                           const CountTokens& count_tokens) {
  std::vector<size_t> ends;  // of paragraphs
  for (size_t at = text.find("\n\n"); at != absl::string_view::npos; at = text.find("\n\n", at)) {
    ends.push_back(at + 1);  // the line's own newline stays
    at = text.find_first_not_of('\n', at);
    if (at == absl::string_view::npos) break;
  }
  if (!text.empty()) ends.push_back(text.size());
  // Longer beginnings have more tokens: the first that has enough is found by halving.
  const auto found = std::partition_point(ends.begin(), ends.end(), [&](size_t end) {
    return count_tokens(text.substr(0, end)) < token_count_min;
  });
  return found == ends.end() ? "" : std::string(text.substr(0, *found));
}

std::vector<std::string> StandardDocuments() {
  std::vector<std::string> paths;
  for (const char* name : {"GPL-3", "GPL-2", "LGPL-2.1", "Apache-2.0", "MPL-2.0", "GFDL-1.3"}) {
    paths.push_back(absl::StrFormat("/usr/share/common-licenses/%s", name));
  }
  return paths;
}

absl::StatusOr<DemoDocument> LoadDemoDocument(absl::Span<const std::string> paths,
                                              int64_t token_count_min,
                                              const CountTokens& count_tokens) {
  for (const std::string& path : paths) {
    std::ifstream file(path);
    if (!file) continue;
    std::stringstream whole;
    whole << file.rdbuf();
    std::string text = CutAtParagraph(whole.str(), token_count_min, count_tokens);
    if (text.empty()) continue;
    const int64_t token_count = count_tokens(text);
    return DemoDocument{path, std::move(text), token_count};
  }
  return absl::NotFoundError(absl::StrFormat(
      "no document of %d tokens among %s; Debian's package base-files has them, or name a text "
      "file with --document",
      token_count_min, absl::StrJoin(paths, ", ")));
}

}  // namespace pagoda::cli
