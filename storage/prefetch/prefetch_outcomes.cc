#include "storage/prefetch/prefetch_outcomes.h"

#include "storage/base/check.h"

namespace pagoda::prefetch {

void Outcomes::OnStarted(PageId page, Source source, int64_t victims) {
  const bool added = pages_.try_emplace(page, Page{source, false, false}).second;
  PAGODA_CHECK(added);
  ++loading_;
  Of(source).victims += victims;
}

bool Outcomes::OnLoaded(PageId page, bool ok) {
  const auto it = pages_.find(page);
  if (it == pages_.end() || it->second.loaded) return false;
  --loading_;
  if (ok) {
    ++Of(it->second.source).loaded;
    if (it->second.late) ++Of(it->second.source).late;
  } else {
    OnDropped(it->second.source, DropReason::kFailed);
  }
  if (!ok || it->second.late) {
    pages_.erase(it);
  } else {
    it->second.loaded = true;
  }
  return true;
}

void Outcomes::OnUse(PageId page, bool needs_load) {
  if (const auto it = pages_.find(page); it != pages_.end()) {
    if (it->second.loaded) {
      ++Of(it->second.source).used;
      pages_.erase(it);
    } else {
      it->second.late = true;
    }
    return;
  }
  if (needs_load) ++counters_.demanded;
}

void Outcomes::OnLeft(PageId page) {
  const auto it = pages_.find(page);
  if (it == pages_.end() || !it->second.loaded) return;
  ++Of(it->second.source).unused;
  pages_.erase(it);
}

bool Outcomes::loading(PageId page) const {
  const auto it = pages_.find(page);
  return it != pages_.end() && !it->second.loaded;
}

Counters Outcomes::counters() const {
  Counters counters = counters_;
  counters.loading = loading_;
  counters.resident = static_cast<int64_t>(pages_.size()) - loading_;
  return counters;
}

}  // namespace pagoda::prefetch
