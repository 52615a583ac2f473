// TieredStore: under pressure, lower forms of the coldest pages before any is demoted.
//
// A walk looks at samples of the directory, each spread evenly over all of it, so that the coldest
// of a sample are cold; a hand sees to it that every page has its turn. A tier of fewer pages than
// a sample is walked whole, in the policy's order. Nothing that a policy knows is changed by it.
#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

constexpr EntryId kSampleSlots = 1024;  // some 100 us under the lock
constexpr EntryId kSamplesMax = 16;     // in one walk, the lock let go of in between

}  // namespace

void TieredStore::ShedHost() {
  PageForms forms;
  int64_t missing_bytes = 0;
  EntryId stride = 0;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Monotonic();
    if (forms_.shed == nullptr || closing_ || now < next_shed_) return;
    missing_bytes = sheds_.MissingBytes(ExcessHostBytes() - demoting_bytes_, now);
    // A push that was refused cannot wait.
    if (missing_bytes <= 0 || pressure_bytes_ > 0) return;
    next_shed_ = now + options_.demotion_period;
    shed_enough_ = false;
    if (directory_.HostPagesAbove(forms_.shed_floor, Precision::kRaw16) == 0) return;
    forms = forms_;
    stride = 1 + directory_.slot_count() / kSampleSlots;
  }
  for (EntryId i = 0; i < std::min(stride, kSamplesMax) && missing_bytes > 0; ++i) {
    // Who takes a Mutex again at once overtakes those that wait.
    if (i > 0) absl::SleepFor(absl::Microseconds(50));
    for (HostPagePtr& page : SampleToShed(stride)) {
      if (missing_bytes <= 0) break;
      missing_bytes -= AskToShed(forms, std::move(page));
    }
  }
  absl::MutexLock lock(&mutex_);
  shed_enough_ = missing_bytes <= 0;
}

std::vector<HostPagePtr> TieredStore::SampleToShed(EntryId stride) {
  std::vector<std::pair<uint64_t, EntryId>> found;
  std::vector<HostPagePtr> pages;
  absl::MutexLock lock(&mutex_);
  shed_hand_ = (shed_hand_ + 1) % stride;
  for (EntryId id = 1 + shed_hand_; id < directory_.slot_count(); id += stride) {
    if (!MayShed(id) || !sheds_.MayAsk(id)) continue;
    found.emplace_back(directory_.host_policy().OrderOf(id), id);
  }
  std::sort(found.begin(), found.end());
  for (const auto& [order, id] : found) pages.push_back(directory_.at(id).host);
  return pages;
}

// What somebody reads would not be freed. What pressure may not take it may not make smaller.
bool TieredStore::MayShed(EntryId id) const {
  const DirectoryEntry& entry = directory_.at(id);
  if (entry.host == nullptr || entry.host.use_count() > 1) return false;
  const Precision precision = entry.host->precision();
  if (precision <= forms_.shed_floor || precision > Precision::kRaw16) return false;
  if (entry.locked() || entry.quarantined || demoting_.contains(id)) return false;
  if (entry.queued) return false;  // a write is on its way: then SSD has what memory gives up
  return GuardOf(TierKind::kHost, /*presser=*/nullptr).MayTake(CandidateOf(TierKind::kHost, id));
}

int64_t TieredStore::AskToShed(const PageForms& forms, HostPagePtr page) {
  const int64_t gain_bytes = forms.shed_gain(*page);
  if (gain_bytes <= 0) return 0;
  const RecordKey record = page->header().record;
  const ScopeId scope = page->header().scope;
  {
    absl::MutexLock lock(&mutex_);
    const EntryId id = directory_.Find(record, scope);
    if (id == kNoEntry || directory_.at(id).host != page || !sheds_.MayAsk(id)) return 0;
    sheds_.Ask(id, gain_bytes, clock_.Monotonic());
  }
  page = nullptr;  // whoever holds it when its turn comes reads it
  if (forms.shed(record, scope)) return gain_bytes;
  EndShed(record, scope, /*ask_again=*/true);
  return 0;
}

HostPagePtr TieredStore::TakeShed(const RecordKey& key, const ScopeId& scope) {
  absl::MutexLock lock(&mutex_);
  const EntryId id = directory_.Find(key, scope);
  if (id == kNoEntry) return nullptr;
  const HostTierUsage usage = host_->usage();
  const policy::Watermarks& marks = policies_.host.marks;
  const bool pressed = static_cast<double>(usage.used_bytes) >
                       marks.stop * static_cast<double>(usage.capacity_bytes);
  if (pressed && !closing_ && sheds_.AskedInTime(id, clock_.Monotonic()) && MayShed(id)) {
    return directory_.at(id).host;
  }
  sheds_.Settle(id);
  return nullptr;
}

void TieredStore::EndShed(const RecordKey& key, const ScopeId& scope, bool ask_again) {
  absl::MutexLock lock(&mutex_);
  const EntryId id = directory_.Find(key, scope);
  if (id == kNoEntry) return;
  ask_again ? sheds_.Settle(id) : sheds_.Refuse(id);
}

}  // namespace pagoda
