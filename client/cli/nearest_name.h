// The name a user probably meant.
#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace pagoda::cli {

// Insertions, deletions, substitutions and swaps of neighbours that turn one text into the other.
int EditDistance(absl::string_view a, absl::string_view b);

// The nearest of `names`, the first among equals; empty when none is near: more than a third of the
// word, at least one edit, would have to change.
std::string NearestName(absl::string_view word, absl::Span<const std::string> names);

}  // namespace pagoda::cli
