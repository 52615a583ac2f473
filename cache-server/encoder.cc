#include "cache-server/encoder.h"

#include <algorithm>

#include "cache-server/page_encoding.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr size_t kBatchPages = 64;
constexpr absl::Duration kBatchTime = absl::Milliseconds(2);

}  // namespace

Encoder::Encoder(const Options& options, TieredStore& store, const ModelRegistry& models,
                 Metrics& metrics, const Clock& clock)
    : options_(options),
      store_(store),
      models_(models),
      metrics_(metrics),
      clock_(clock),
      table_(options.sequences) {
  for (int32_t i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
}

Encoder::~Encoder() { Stop(); }

absl::Status Encoder::OpenSequence(const SessionId& session, const SequenceId& id,
                                   const SequenceShape& shape) {
  std::vector<PageRef> changed;
  absl::Status status;
  {
    absl::MutexLock lock(&table_mutex_);
    status = table_.Open(session, id, shape, changed);
  }
  ConsiderAgain(changed);
  return status;
}

void Encoder::DropEarlySequences(absl::Duration age) {
  std::vector<PageRef> changed;
  {
    absl::MutexLock lock(&table_mutex_);
    table_.DropEarly(clock_.Monotonic() - age, changed);
  }
  ConsiderAgain(changed);
}

absl::Status Encoder::AdvanceSequence(const SessionId& session, const SequenceId& id,
                                      uint64_t length_tokens) {
  std::vector<PageRef> changed;
  absl::Status status;
  {
    absl::MutexLock lock(&table_mutex_);
    status = table_.Advance(session, id, length_tokens, changed);
  }
  ConsiderAgain(changed);
  return status;
}

absl::Status Encoder::AttachPages(const SessionId& session, const SequenceId& id,
                                  absl::Span<const SequencePage> pages) {
  std::vector<PageRef> changed;
  absl::MutexLock lock(&table_mutex_);
  // Attaching only raises needs: nothing to do for a page that is stored already.
  return table_.Attach(session, id, pages, clock_.Monotonic(), changed);
}

absl::Status Encoder::CloseSequence(const SessionId& session, const SequenceId& id) {
  std::vector<PageRef> changed;
  absl::Status status;
  {
    absl::MutexLock lock(&table_mutex_);
    status = table_.Close(session, id, changed);
  }
  ConsiderAgain(changed);
  return status;
}

void Encoder::CloseSession(const SessionId& session) {
  std::vector<PageRef> changed;
  {
    absl::MutexLock lock(&table_mutex_);
    table_.CloseSession(session, changed);
  }
  ConsiderAgain(changed);
}

PageNeed Encoder::NeedOf(const RecordKey& record) const {
  absl::MutexLock lock(&table_mutex_);
  return table_.NeedOf(record);
}

size_t Encoder::sequence_count() const {
  absl::MutexLock lock(&table_mutex_);
  return table_.sequence_count();
}

void Encoder::ConsiderAgain(const std::vector<PageRef>& pages) {
  for (const PageRef& page : pages) Consider(page);
}

bool Encoder::Consider(const PageRef& page, absl::Duration idle) {
  absl::MutexLock lock(&queue_mutex_);
  if (stopped_ || queued_.contains(page.record)) return true;
  if (queue_.size() >= options_.queue_pages_max) {
    scan_wanted_.store(true, std::memory_order_relaxed);
    metrics_.OnEncodeRefused();
    return false;
  }
  queued_.insert(page.record);
  queue_.push_back({page, idle});
  return true;
}

int64_t Encoder::ShedGain(const HostPage& page) const {
  const Identity& identity = page.header().identity;
  const Ladder ladder = models_.LadderOf(identity);
  if (!ladder.pressure.has_value()) return 0;
  const PageNeed need = NeedOf(page.header().record);
  const Precision target = TargetPrecision(need, ladder, absl::ZeroDuration(), /*pressure=*/true);
  if (need.in_window || target >= page.precision()) return 0;
  // It has its ordinary step to take first, with which it goes to SSD: what pressure takes then is
  // not lost.
  if (page.precision() > TargetPrecision(need, ladder)) return 0;
  const absl::StatusOr<PageHeader> lower =
      PlanAtPrecision(page, target, models_.KLoLayersOf(identity));
  return lower.ok() ? std::max<int64_t>(0, page.bytes() - lower->stored_bytes()) : 0;
}

bool Encoder::Shed(const RecordKey& record, const ScopeId& scope) {
  absl::MutexLock lock(&queue_mutex_);
  if (stopped_ || pressed_.size() >= options_.queue_pages_max) return false;
  pressed_.push_back({{record, scope}, absl::ZeroDuration(), /*pressure=*/true});
  return true;
}

int64_t Encoder::ConsiderAll(const std::optional<Identity>& identity) {
  int64_t count = 0;
  const policy::EntryId begin = scan_begin_.load(std::memory_order_relaxed);
  const policy::EntryId end = store_.ScanPages(begin, [&](const PageInfo& page) {
    if (!page.in_host || (identity.has_value() && page.identity != *identity)) return true;
    const Precision target =
        TargetPrecision(PageNeed{}, models_.LadderOf(page.identity), page.idle);
    if (page.precision <= target && !page.to_write) return true;
    if (!Consider({page.record, page.scope}, page.idle)) return false;
    ++count;
    return true;
  });
  scan_begin_.store(end, std::memory_order_relaxed);
  return count;
}

void Encoder::Tick() {
  absl::Duration period = options_.idle_scan_period;
  if (scan_wanted_.load(std::memory_order_relaxed)) period = std::min(period, options_.scan_period);
  {
    absl::MutexLock lock(&queue_mutex_);
    const absl::Duration now = clock_.Monotonic();
    if (now - last_scan_ < period) return;
    if (queue_.size() > options_.queue_pages_max / 2) return;
    last_scan_ = now;
  }
  scan_wanted_.store(false, std::memory_order_relaxed);
  ConsiderAll(std::nullopt);
}

int64_t Encoder::queued_count() const {
  absl::MutexLock lock(&queue_mutex_);
  return static_cast<int64_t>(queue_.size() + pressed_.size());
}

bool Encoder::AwaitIdle(absl::Duration timeout) const {
  absl::MutexLock lock(&queue_mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(queue_mutex_) {
    return queue_.empty() && pressed_.empty() && working_ == 0;
  };
  return queue_mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout);
}

void Encoder::Stop() {
  {
    absl::MutexLock lock(&queue_mutex_);
    stopped_ = true;
    queue_.clear();
    pressed_.clear();
    queued_.clear();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void Encoder::Run() {
  while (true) {
    Work work;
    {
      absl::MutexLock lock(&queue_mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(queue_mutex_) {
        return stopped_ || !queue_.empty() || !pressed_.empty();
      };
      if (!ready()) {
        // One wake-up for the pages of a moment, not one for each: who pushes them needs the
        // processor now.
        queue_mutex_.Await(absl::Condition(&ready));
        const auto many = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(queue_mutex_) {
          return stopped_ || queue_.size() >= kBatchPages || !pressed_.empty();
        };
        queue_mutex_.AwaitWithTimeout(absl::Condition(&many), kBatchTime);
      }
      if (stopped_) return;
      if (!ready()) continue;  // another thread took them
      std::deque<Work>& next = pressed_.empty() ? queue_ : pressed_;
      work = next.front();
      next.pop_front();
      // From here on it may be queued again: what changes meanwhile is then seen.
      if (!work.pressure) queued_.erase(work.page.record);
      ++working_;
    }
    Process(work);
    absl::MutexLock lock(&queue_mutex_);
    --working_;
  }
}

void Encoder::Process(const Work& work) {
  const PageRef& ref = work.page;
  if (work.pressure) return ProcessPressure(ref);
  const HostPagePtr page = store_.GetResident(ref.record, ref.scope);
  if (page == nullptr) return;  // Gone, or on SSD only: considered again when it is loaded.
  const PageNeed need = NeedOf(ref.record);
  // It may have been used since.
  const absl::Duration idle =
      std::min(work.idle, store_.IdleTime(ref.record, ref.scope).value_or(absl::ZeroDuration()));
  const Precision target = TargetPrecision(need, models_.LadderOf(page->header().identity), idle);
  if (page->precision() > target && page->precision() <= Precision::kRaw16) {
    const absl::Status status = Lower(page, target, /*pressure=*/false);
    if (status.code() == absl::StatusCode::kAborted) {  // replaced meanwhile
      Consider(ref, work.idle);
      return;
    }
    if (status.code() == absl::StatusCode::kResourceExhausted) {
      // No room to encode: written as it is, so that it can be demoted and make room.
      scan_wanted_.store(true, std::memory_order_relaxed);
    }
  }
  if (!need.in_window) Persist(ref);
}

void Encoder::ProcessPressure(const PageRef& ref) {
  const HostPagePtr page = store_.TakeShed(ref.record, ref.scope);
  if (page == nullptr) return;
  const PageNeed need = NeedOf(ref.record);
  const Ladder ladder = models_.LadderOf(page->header().identity);
  const Precision target = TargetPrecision(need, ladder, absl::ZeroDuration(), /*pressure=*/true);
  // A sequence needs it now, or it is another form of the page that still has its ordinary step to
  // take.
  if (need.in_window || target >= page->precision() ||
      page->precision() > TargetPrecision(need, ladder)) {
    return store_.EndShed(ref.record, ref.scope, /*ask_again=*/true);
  }
  const absl::Status status = Lower(page, target, /*pressure=*/true);
  if (!status.ok()) {
    const bool values = status.code() == absl::StatusCode::kInvalidArgument;
    store_.EndShed(ref.record, ref.scope, /*ask_again=*/!values);
  }
  Persist(ref);
}

void Encoder::Persist(const PageRef& ref) {
  const absl::Status persisted = store_.PersistAsync(ref.record, ref.scope);
  if (persisted.code() == absl::StatusCode::kResourceExhausted) {
    scan_wanted_.store(true, std::memory_order_relaxed);
  }
}

absl::Status Encoder::Lower(const HostPagePtr& page, Precision target, bool pressure) {
  const absl::Duration start = clock_.Monotonic();
  const int64_t before = page->bytes();
  const std::vector<int32_t> k_lo_layers = models_.KLoLayersOf(page->header().identity);
  absl::StatusOr<StagedPage> staged = StageAtPrecision(store_, *page, target, k_lo_layers);
  if (!staged.ok()) {
    const bool room = staged.status().code() == absl::StatusCode::kResourceExhausted;
    const bool values = staged.status().code() == absl::StatusCode::kInvalidArgument;
    metrics_.OnEncodeFailed(room     ? EncodeFailure::kRoom
                            : values ? EncodeFailure::kValues
                                     : EncodeFailure::kOther);
    return staged.status();
  }
  const int64_t after = staged->bytes();
  const Precision reached = PrecisionOf(staged->header().planes);
  // What pressure takes from memory may come back from SSD.
  PAGODA_RETURN_IF_ERROR(store_.ReplaceEncoding(page, *std::move(staged),
                                                pressure ? SsdCopy::kStays : SsdCopy::kFollows));
  metrics_.OnEncoded(pressure ? EncodePlace::kPressure : EncodePlace::kLadder, reached,
                     before - after, clock_.Monotonic() - start);
  return absl::OkStatus();
}

}  // namespace pagoda
