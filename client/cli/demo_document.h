// The text that the demo's requests share: a real document that every Debian system has, cut at the
// end of a paragraph so that it is about as long as asked.
//
// Threads  pure functions
// Errors   NOT_FOUND  no document of that length; names the places that were tried and the remedy
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace pagoda::cli {

struct DemoDocument {
  std::string path;
  std::string text;
  int64_t token_count = 0;
};

using CountTokens = std::function<int64_t(absl::string_view text)>;

// The shortest beginning that ends a paragraph and has at least `token_count_min` tokens; empty
// when the text is shorter than that.
std::string CutAtParagraph(absl::string_view text, int64_t token_count_min,
                           const CountTokens& count_tokens);

// Licences that base-files installs everywhere, the best known first.
std::vector<std::string> StandardDocuments();

// The first of `paths` that is there and long enough.
absl::StatusOr<DemoDocument> LoadDemoDocument(absl::Span<const std::string> paths,
                                              int64_t token_count_min,
                                              const CountTokens& count_tokens);

}  // namespace pagoda::cli
