#include "storage/prefetch/successor_table.h"

#include <algorithm>
#include <utility>

namespace pagoda::prefetch {

void SuccessorTable::Halve(Row& row) {
  row.uses /= 2;
  for (Slot& slot : row.slots) {
    slot.count /= 2;
    if (slot.count == 0) slot = Slot{};
  }
}

void SuccessorTable::MakeRoom() {
  while (row_count() >= options_.pages_max) {
    for (auto it = rows_.begin(); it != rows_.end();) {
      Halve(it->second);
      if (it->second.uses == 0) {
        rows_.erase(it++);
      } else {
        ++it;
      }
    }
  }
}

void SuccessorTable::Learn(PageId from, PageId to) {
  if (from == to) return;
  auto it = rows_.find(from);
  if (it == rows_.end()) {
    MakeRoom();
    it = rows_.try_emplace(from).first;
  }
  Row& row = it->second;
  if (row.uses >= static_cast<uint32_t>(options_.uses_max)) Halve(row);
  ++row.uses;
  auto slot = std::find_if(row.slots.begin(), row.slots.end(),
                           [to](const Slot& s) { return s.page == to; });
  if (slot == row.slots.end()) {
    slot = row.slots.end() - 1;  // the rarest
    // A newcomer wears the rarest one down before it takes its place, so that a stream of pages
    // seen once cannot push out a habit.
    if (slot->count > 0 && --slot->count > 0) return;
    *slot = {to, 0};
  }
  ++slot->count;
  for (; slot != row.slots.begin() && (slot - 1)->count < slot->count; --slot) {
    std::swap(*slot, *(slot - 1));
  }
}

std::vector<SuccessorTable::Prediction> SuccessorTable::Predict(PageId from) const {
  std::vector<Prediction> found;
  // Breadth first: what is found at one step is where the next one starts.
  std::vector<Prediction> step = {{from, 1.0}};
  for (int64_t depth = 0; depth < options_.depth_max && !step.empty(); ++depth) {
    std::vector<Prediction> next;
    for (const Prediction& at : step) {
      const auto it = rows_.find(at.page);
      if (it == rows_.end() || it->second.uses < options_.uses_min) continue;
      for (int i = 0; i < kPredicted; ++i) {
        const Slot& slot = it->second.slots[static_cast<size_t>(i)];
        const double confidence = at.confidence * slot.count / it->second.uses;
        if (slot.count == 0 || confidence < options_.confidence_min) continue;
        const auto same = [&](const Prediction& p) { return p.page == slot.page; };
        if (slot.page == from || std::any_of(found.begin(), found.end(), same)) continue;
        found.push_back({slot.page, confidence});
        next.push_back({slot.page, confidence});
      }
    }
    step = std::move(next);
  }
  return found;
}

double SuccessorTable::ConfidenceOf(PageId from, PageId to) const {
  const auto it = rows_.find(from);
  if (it == rows_.end()) return 0;
  for (const Slot& slot : it->second.slots) {
    if (slot.page == to) return static_cast<double>(slot.count) / it->second.uses;
  }
  return 0;
}

}  // namespace pagoda::prefetch
