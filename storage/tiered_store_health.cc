// TieredStore: living with a disk that fails, hangs or forgets.
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/log.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

using policy::BreakerOutcome;

// What the end of an operation says about the disk.
BreakerOutcome OutcomeOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kOk:
      return BreakerOutcome::kOk;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kInternal:
      return BreakerOutcome::kFailed;
    case absl::StatusCode::kDataLoss:
      return IntegrityKindOf(status) == IntegrityKind::kUnreadable ? BreakerOutcome::kFailed
                                                                   : BreakerOutcome::kNeutral;
    default:
      return BreakerOutcome::kNeutral;  // full, gone, no memory: the disk itself answers
  }
}

}  // namespace

// ---- One change of a key at a time --------------------------------------------------------------

void TieredStore::HoldKey(const RecordKey& key) {
  const auto free = [this, &key]()
                        ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !held_keys_.contains(key); };
  mutex_.Await(absl::Condition(&free));
  held_keys_.insert(key);
}

void TieredStore::ReleaseKey(const RecordKey& key) { PAGODA_CHECK(held_keys_.erase(key) == 1); }

absl::Status TieredStore::DeleteOnSsd(const RecordKey& key) {
  bool written_again = false;
  {
    absl::MutexLock lock(&mutex_);
    HoldKey(key);
    const EntryId id = directory_.Find(key);
    written_again = id != kNoEntry && directory_.at(id).on_ssd();
  }
  const absl::Status status = written_again ? absl::OkStatus() : ssd_->Delete(key);
  absl::MutexLock lock(&mutex_);
  ReleaseKey(key);
  return status;
}

// ---- Health -------------------------------------------------------------------------------------

uint64_t TieredStore::BeginDiskWork() {
  disk_work_[next_disk_work_] = {breaker_.epoch(), clock_.Monotonic()};
  return next_disk_work_++;
}

void TieredStore::EndDiskWork(uint64_t work, const absl::Status& status, Aftermath& after) {
  const auto it = disk_work_.find(work);
  PAGODA_CHECK(it != disk_work_.end());
  const DiskWork done = it->second;
  disk_work_.erase(it);
  const absl::Duration now = clock_.Monotonic();
  if (breaker_.Report(done.epoch, OutcomeOf(status), now - done.began, now)) NoteBreaker(after);
}

absl::Status TieredStore::DiskSetAside() const {
  return absl::UnavailableError(absl::StrFormat("ssd: set aside (%s); tried again after %s",
                                                policy::BreakerReasonName(breaker_.reason()),
                                                absl::FormatDuration(breaker_.open_period())));
}

void TieredStore::NoteBreaker(Aftermath& after) {
  const policy::BreakerState state = breaker_.state();
  const policy::BreakerReason reason = breaker_.reason();
  if (state == policy::BreakerState::kOpen) {
    ++counters_.ssd_breaker_trips[static_cast<int>(reason)];
  }
  after.events.push_back(
      [=, path = ssd_->path(), period = breaker_.open_period()](StoreObserver& observer) {
        observer.OnSsdBreaker(state, reason);
        if (state == policy::BreakerState::kClosed) {
          LogInfo("ssd_breaker_closed", {{"path", path}});
          return;
        }
        LogWarning("ssd_breaker_open", {{"path", path},
                                        {"reason", std::string(policy::BreakerReasonName(reason))},
                                        {"probe_in", absl::FormatDuration(period)}});
      });
}

TieredStore::LateLoads TieredStore::TakeLateLoads(absl::Duration now) {
  LateLoads late;
  while (!load_deadlines_.empty() && load_deadlines_.front().first <= now) {
    const auto [deadline, key] = load_deadlines_.front();
    load_deadlines_.pop_front();
    const auto it = loads_.find(key);
    if (it == loads_.end() || it->second.deadline != deadline) continue;  // it has ended
    Load& load = it->second;
    if (load.progress_ns != nullptr) {
      const absl::Duration alive_until =
          absl::Nanoseconds(load.progress_ns->load(std::memory_order_relaxed)) +
          options_.load_timeout;
      if (alive_until > now) {
        load.deadline = alive_until;
        load_deadlines_.emplace_back(alive_until, key);
        continue;
      }
    }
    if (load.teller != nullptr) late.tellers.push_back(load.teller);
    for (LoadCallback& waiter : load.waiters) late.waiters.push_back(std::move(waiter));
    load.waiters.clear();
  }
  counters_.loads_late += static_cast<int64_t>(late.waiters.size());
  return late;
}

void TieredStore::CheckSsd() {
  if (ssd_ == nullptr) return;
  Aftermath after;
  LateLoads late;
  const std::vector<RecordKey> lost = ssd_->TakeLost();
  const int64_t flush_failures = ssd_->flush_failure_count();
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_.Monotonic();
    late = TakeLateLoads(now);
    bool opened = false;
    for (const auto& [id, work] : disk_work_) {
      if (now - work.began < options_.load_timeout) continue;
      opened |= breaker_.Report(work.epoch, BreakerOutcome::kHung, now - work.began, now);
    }
    if (flush_failures > flush_failures_seen_) {
      flush_failures_seen_ = flush_failures;
      opened |=
          breaker_.Report(breaker_.epoch(), BreakerOutcome::kFailed, absl::ZeroDuration(), now);
    }
    const int64_t hung_probes = breaker_.trip_count(policy::BreakerReason::kProbe);
    if (breaker_.BeginProbe(now)) {
      writer_->PushAlways([this, epoch = breaker_.epoch()] { ProbeDisk(epoch); });
    }
    opened |= breaker_.trip_count(policy::BreakerReason::kProbe) > hung_probes;
    if (opened) NoteBreaker(after);
    for (const RecordKey& key : lost) {
      writer_->PushAlways([this, key] { ForgetLost(key); });
    }
  }
  Finish(after);
  if (!late.waiters.empty()) observer_->OnLoadsLate(static_cast<int64_t>(late.waiters.size()));
  Silence(late.tellers);
  for (const LoadCallback& waiter : late.waiters) {
    waiter(absl::UnavailableError(absl::StrCat("ssd: the read has not ended after ",
                                               absl::FormatDuration(options_.load_timeout))));
  }
}

void TieredStore::ProbeDisk(policy::CircuitBreaker::Epoch epoch) {
  const absl::Status status = ssd_->Probe();
  // A full disk works: reads go on, and writes say what they lack.
  const bool works = status.ok() || status.code() == absl::StatusCode::kResourceExhausted;
  Aftermath after;
  {
    absl::MutexLock lock(&mutex_);
    if (breaker_.EndProbe(epoch, works, clock_.Monotonic())) NoteBreaker(after);
  }
  Finish(after);
  if (!works) LogWarning("ssd_probe_failed", {{"error", status.ToString()}});
}

void TieredStore::ForgetLost(const RecordKey& key) {
  {
    absl::MutexLock lock(&mutex_);
    HoldKey(key);
  }
  const bool written_again = ssd_->Find(key).ok();
  Aftermath after;
  {
    absl::MutexLock lock(&mutex_);
    ReleaseKey(key);
    const EntryId id = directory_.Find(key);
    if (!written_again && id != kNoEntry && directory_.at(id).on_ssd()) {
      ++counters_.ssd_pages_lost;
      CountIntegrity(TierKind::kSsd, IntegrityKind::kUnsynced, after);
      DropSsd(id, EvictionReason::kSsdFailed, after);  // a copy in host memory is dirty again
    }
  }
  Finish(after);
}

}  // namespace pagoda
