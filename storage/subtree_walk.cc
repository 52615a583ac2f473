#include "storage/subtree_walk.h"

#include <algorithm>
#include <utility>

#include "storage/directory.h"

namespace pagoda {

using policy::EntryId;
using policy::kNoEntry;

void SubtreeWalk::Scan(const Directory& directory, EntryId begin, EntryId end,
                       absl::FunctionRef<bool(EntryId)> marks) {
  verdicts_.resize(directory.slot_count());
  const auto is_known = [&](EntryId id) {
    return verdicts_[id].known && verdicts_[id].incarnation == directory.at(id).incarnation;
  };
  for (EntryId start = begin; start < std::min(end, directory.slot_count()); ++start) {
    if (!directory.at(start).alive()) continue;
    EntryId id = start;
    for (; id != kNoEntry && !is_known(id); id = directory.at(id).parent) path_.push_back(id);
    bool marked = id != kNoEntry && verdicts_[id].marked;
    uint32_t depth = id == kNoEntry ? 0 : verdicts_[id].depth + 1;
    for (; !path_.empty(); path_.pop_back()) {
      const EntryId at = path_.back();
      const uint32_t incarnation = directory.at(at).incarnation;
      marked = marked || marks(at);
      verdicts_[at] = {incarnation, depth, true, marked};
      if (marked && directory.at(at).alive()) found_.push_back({at, incarnation, depth});
      ++depth;
    }
  }
}

std::vector<SubtreeWalk::Found> SubtreeWalk::Take() {
  std::stable_sort(found_.begin(), found_.end(),
                   [](const Found& a, const Found& b) { return a.depth > b.depth; });
  return std::exchange(found_, {});
}

}  // namespace pagoda
