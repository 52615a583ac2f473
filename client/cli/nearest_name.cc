#include "client/cli/nearest_name.h"

#include <algorithm>
#include <vector>

namespace pagoda::cli {

int EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<int> before_last(b.size() + 1);
  std::vector<int> last(b.size() + 1);
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) last[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int change = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, change});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
    before_last.swap(last);
    last.swap(row);
  }
  return last[b.size()];
}

std::string NearestName(absl::string_view word, absl::Span<const std::string> names) {
  std::string nearest;
  int distance_max = std::max<int>(1, static_cast<int>(word.size()) / 3);
  for (const std::string& name : names) {
    const int distance = EditDistance(word, name);
    if (distance > distance_max) continue;
    nearest = name;
    distance_max = distance - 1;  // only nearer ones from here
  }
  return nearest;
}

}  // namespace pagoda::cli
