// TieredStore: staging, committing, replacing, and the way to SSD.
#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

// Each try asks for twice as much room as the one before: slabs of other sizes may fill the chunks,
// and only an empty chunk can take a new size.
constexpr int kRoomTriesMax = 8;
constexpr int kCompactionsMax = 4;  // chunks that one page may have emptied for itself

bool SamePage(const PageHeader& a, const PageHeader& b) {
  return a.record == b.record && a.identity == b.identity && a.parent == b.parent &&
         a.parent_is_root == b.parent_is_root && a.scope == b.scope &&
         a.scope_kind == b.scope_kind && a.fidelity == b.fidelity &&
         a.page_tokens == b.page_tokens && a.base_position == b.base_position &&
         a.content_hash == b.content_hash;
}

}  // namespace

absl::StatusOr<StagedPage> TieredStore::Stage(const ScopeId& scope, PageHeader header) {
  if (header.scope != scope) {
    return absl::InvalidArgumentError("page: its header names another scope than the caller's");
  }
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return absl::UnavailableError("store: shutting down");
  }
  auto page = StageWithRoom(std::move(header));
  if (!page.ok()) {
    absl::MutexLock lock(&mutex_);
    if (page.status().code() == absl::StatusCode::kResourceExhausted) ++counters_.stage_refusals;
    return page.status();
  }
  staged_page_count_->fetch_add(1, std::memory_order_relaxed);
  page->AttachTicket(std::shared_ptr<const void>(staged_page_count_.get(),
                                                 [count = staged_page_count_](const void*) {
                                                   count->fetch_sub(1, std::memory_order_relaxed);
                                                 }));
  return page;
}

absl::StatusOr<StagedPage> TieredStore::StageWithRoom(PageHeader header, bool may_evict) {
  const int64_t asked_bytes = header.stored_bytes();
  absl::Status refused;
  int64_t room_bytes = asked_bytes;
  int compactions = 0;
  const policy::Watermarks marks = host_marks();
  for (int i = 0; i < kRoomTriesMax; ++i, room_bytes *= 2) {
    const HostTierUsage usage = host_->usage();
    const int64_t short_bytes =
        marks.ShortBytes(usage.used_bytes, asked_bytes, usage.capacity_bytes);
    if (short_bytes == 0) {
      auto page = StagedPage::Create(host_, header);
      if (page.ok() || page.status().code() != absl::StatusCode::kResourceExhausted) {
        if (marks.ExcessBytes(usage.used_bytes + asked_bytes, usage.capacity_bytes) > 0) {
          absl::MutexLock lock(&mutex_);
          demotion_asked_ = true;
        }
        return page;
      }
      refused = page.status();
      // There is room, in holes: rather move pages than drop them.
      bool emptied = false;
      while (!emptied && compactions++ < kCompactionsMax) {
        const int64_t drained = host_->drained_chunk_count();
        if (CompactOneChunk() == 0) break;
        emptied = host_->drained_chunk_count() > drained;
      }
      if (emptied) continue;
    } else {
      refused = absl::ResourceExhaustedError(
          absl::StrFormat("host tier: asked %d bytes, %d used of %d, refused beyond %g of it",
                          asked_bytes, usage.used_bytes, usage.capacity_bytes, marks.hard));
    }
    if (!may_evict) return refused;
    if (MakeRoom(std::max(short_bytes, room_bytes), header.scope) == 0) break;
  }
  absl::MutexLock lock(&mutex_);
  pressure_bytes_ = std::max(pressure_bytes_, 2 * asked_bytes);
  demotion_asked_ = true;
  return refused;
}

absl::StatusOr<CommitOutcome> TieredStore::Commit(StagedPage page, const CommitOptions& options) {
  absl::Status checked = page.VerifyChecksums();
  PageHeader& header = page.mutable_header();
  if (checked.ok() && header.recipe == CodeRecipe::kNone) {
    // What was pushed is what is stored: its fingerprint is ours to know.
    const ContentHash content = ContentHashOf(header.segments);
    if (header.content_hash.is_zero()) header.content_hash = content;
    if (header.content_hash != content) {
      checked = absl::InvalidArgumentError("page: content hash is not that of its segments");
    }
  }
  absl::StatusOr<HostPagePtr> frozen(checked.ok() ? StagedPage::Freeze(std::move(page)) : checked);
  if (!frozen.ok()) {
    absl::MutexLock lock(&mutex_);
    ++counters_.commits_refused;
    return frozen.status();
  }
  const int64_t bytes = (*frozen)->bytes();
  Aftermath after;
  const absl::StatusOr<CommitOutcome> outcome = PlaceLocked(*frozen, options, after);
  if (outcome.ok()) {
    after.events.push_back(
        [outcome = *outcome, bytes](StoreObserver& o) { o.OnCommit(outcome, bytes); });
  }
  Finish(after);
  return outcome;
}

absl::StatusOr<CommitOutcome> TieredStore::PlaceLocked(const HostPagePtr& page,
                                                       const CommitOptions& options,
                                                       Aftermath& after) {
  absl::MutexLock lock(&mutex_);
  const absl::StatusOr<CommitOutcome> outcome = Place(page, options, after);
  ++(outcome.ok() ? counters_.commits[static_cast<int>(*outcome)] : counters_.commits_refused);
  return outcome;
}

absl::Status TieredStore::CheckParent(const PageHeader& header) const {
  if (header.parent_is_root) return absl::OkStatus();
  RecordKey parent = header.record;
  parent.key = header.parent;
  if (directory_.Find(parent, header.scope) != kNoEntry) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("page: its parent %s is not stored", header.parent.hex()));
}

absl::StatusOr<CommitOutcome> TieredStore::Place(const HostPagePtr& page,
                                                 const CommitOptions& options, Aftermath& after) {
  if (closing_) return absl::UnavailableError("store: shutting down");
  const PageHeader& header = page->header();
  PAGODA_RETURN_IF_ERROR(CheckParent(header));
  const absl::Duration now = clock_.Monotonic();
  const EntryId id = directory_.Find(header.record);
  if (id == kNoEntry) {
    PAGODA_ASSIGN_OR_RETURN(const EntryId added, directory_.AddHost(page, now));
    const EntryId parent = directory_.at(added).parent;
    if (parent != kNoEntry) prefetch_.OnCommit(PageIdOf(parent), PageIdOf(added), now);
    return CommitOutcome::kStored;
  }
  const DirectoryEntry& entry = directory_.at(id);
  const PageKey stored_parent =
      entry.parent == kNoEntry ? PageKey{} : directory_.at(entry.parent).record.key;
  if (directory_.scope_of(id) != header.scope || directory_.identity_of(id) != header.identity ||
      entry.parent_is_root != header.parent_is_root ||
      (!header.parent_is_root && stored_parent != header.parent)) {
    return absl::FailedPreconditionError(
        "page: its key is stored with another scope, model or parent");
  }
  if (entry.quarantined) {
    // Nothing of the old page may come back, not even from a write that is on its way.
    DropEntry(id, EvictionReason::kIntegrity, after);
    PAGODA_RETURN_IF_ERROR(directory_.AddHost(page, now).status());
    return CommitOutcome::kReplaced;
  }
  const CopyInfo stored = directory_.best_copy_of(id);
  if (header.fidelity == stored.fidelity &&
      header.backend_tag == directory_.traits_of(id).backend_tag &&
      !directory_.MayBeContent(id, header.content_hash)) {
    // Equal arithmetic should give equal bytes; a difference is worth a look, not an error.
    ++counters_.content_mismatches;
    CountIntegrity(TierKind::kHost, IntegrityKind::kContent, after);
  }
  const bool better_fidelity = header.fidelity > stored.fidelity;
  const bool too_coarse = header.fidelity == stored.fidelity &&
                          stored.precision < options.keep_at_least &&
                          page->precision() > stored.precision;
  if (!better_fidelity && !too_coarse) return CommitOutcome::kAlreadyStored;
  ForgetDemotion(id);
  sheds_.Settle(id);
  NoteLeftHost(header.record, after);
  after.pages.push_back(directory_.SetHost(id, page, /*dirty=*/true));
  directory_.Touch(id, now);
  if (entry.on_ssd()) QueueWrite(id);
  return CommitOutcome::kReplaced;
}

void TieredStore::SetPageForms(PageForms forms) {
  absl::MutexLock lock(&mutex_);
  forms_ = std::move(forms);
}

absl::Status TieredStore::ReplaceEncoding(const HostPagePtr& expected, StagedPage page,
                                          SsdCopy on_ssd) {
  PAGODA_CHECK(expected != nullptr);
  PAGODA_RETURN_IF_ERROR(page.VerifyChecksums());
  if (!SamePage(expected->header(), page.header())) {
    return absl::InvalidArgumentError("page: the new encoding is of another page or content");
  }
  PAGODA_ASSIGN_OR_RETURN(const HostPagePtr frozen, StagedPage::Freeze(std::move(page)));
  const Precision ssd_precision = SsdPrecisionOf(*frozen);
  Aftermath after;
  absl::ReleasableMutexLock lock(&mutex_);
  if (closing_) return absl::UnavailableError("store: shutting down");
  const EntryId id = directory_.Find(expected->header().record);
  if (id == kNoEntry || directory_.at(id).host != expected) {
    return absl::AbortedError("page: replaced or evicted meanwhile");
  }
  ForgetDemotion(id);
  sheds_.Settle(id);
  const DirectoryEntry& entry = directory_.at(id);
  const CopyInfo form = {frozen->bytes(), frozen->planes(), frozen->precision(),
                         frozen->header().fidelity};
  // Nothing to write: SSD has all of the page, and keeps it, or has this very form, or the poorer
  // one that would be written of it again.
  const bool on_disk = entry.on_ssd() && !entry.dirty;
  const CopyInfo copy = directory_.ssd_copy_of(id);
  const bool written =
      copy == form || (ssd_precision < form.precision && copy.precision == ssd_precision &&
                       copy.fidelity == form.fidelity);
  const bool clean = on_disk && (on_ssd == SsdCopy::kStays || written);
  NoteLeftHost(entry.record, after);
  after.pages.push_back(directory_.SetHost(id, frozen, /*dirty=*/!clean));
  if (!clean && entry.on_ssd()) QueueWrite(id);
  lock.Release();
  Finish(after);
  return absl::OkStatus();
}

absl::Status TieredStore::PersistAsync(const RecordKey& key, const ScopeId& scope) {
  if (ssd_ == nullptr) return absl::OkStatus();
  {
    absl::MutexLock lock(&mutex_);
    if (closing_) return absl::UnavailableError("store: shutting down");
    const EntryId id = directory_.Find(key, scope);
    if (id == kNoEntry) return absl::NotFoundError("page: not stored");
    if (directory_.at(id).quarantined) return absl::NotFoundError("page: quarantined");
    if (!directory_.at(id).dirty || !WorthWritingEarly(id)) return absl::OkStatus();
    if (QueueWrite(id)) return absl::OkStatus();
    if (!breaker_.closed()) return DiskSetAside();
  }
  observer_->OnWriteQueueFull();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "ssd: %d pages wait to be written, at most that many", options_.write_queue_pages_max));
}

bool TieredStore::MayWriteEarly(EntryId id) const {
  return NeedsWriting(id) && !directory_.at(id).queued && breaker_.closed() &&
         WorthWritingEarly(id);
}

bool TieredStore::QueueWrite(EntryId id) {
  const DirectoryEntry& entry = directory_.at(id);
  if (entry.queued) return true;
  if (!breaker_.closed()) return false;  // stays dirty; written when it is demoted
  const bool pushed = writer_->TryPush(
      [this, key = entry.record, incarnation = entry.incarnation] { WritePage(key, incarnation); });
  if (pushed) {
    directory_.SetQueued(id, true);
  } else {
    ++counters_.write_queue_refusals;
  }
  return pushed;
}

std::optional<SsdForm> TieredStore::FormOnSsd(const HostPage& page) const {
  std::function<std::optional<SsdForm>(const HostPage&)> form;
  {
    absl::MutexLock lock(&mutex_);
    form = forms_.on_ssd;
  }
  if (form == nullptr) return std::nullopt;
  return form(page);
}

Precision TieredStore::SsdPrecisionOf(const HostPage& page) const {
  std::function<Precision(const HostPage&)> precision;
  {
    absl::MutexLock lock(&mutex_);
    precision = forms_.ssd_precision;
  }
  return precision == nullptr ? page.precision() : precision(page);
}

void TieredStore::WritePage(const RecordKey& key, uint64_t incarnation) {
  HostPagePtr page;
  {
    absl::MutexLock lock(&mutex_);
    HoldKey(key);
    const EntryId id = directory_.Find(key);
    const bool gone = id == kNoEntry || directory_.at(id).incarnation != incarnation;
    if (!gone) page = directory_.at(id).host;
    if (gone || page == nullptr || directory_.at(id).quarantined || !breaker_.closed()) {
      if (!gone) {
        directory_.SetQueued(id, false);
        ForgetDemotion(id);
      }
      ReleaseKey(key);
      return;
    }
    ++ssd_changes_;
  }
  const std::optional<SsdForm> form = FormOnSsd(*page);
  const PageHeader& header = form.has_value() ? form->header : page->header();
  const std::string form_header = form.has_value() ? EncodePageHeader(header) : std::string();
  SsdPageWrite write{DirectoryRecordOf(header), AsBytes(form_header), {}};
  if (form.has_value()) {
    write.segments = form->segments;
  } else {
    write.header = page->header_bytes();
    for (size_t i = 0; i < page->segment_count(); ++i) {
      write.segments.push_back(page->padded_segment(i));
    }
  }
  const CopyInfo copy = {header.stored_bytes(), PlaneMaskOf(header.planes),
                         PrecisionOf(header.planes), header.fidelity};
  ssd_->WaitForRate(copy.bytes);
  MakeSsdRoom(copy.bytes, &header.scope);
  absl::Status status;
  uint64_t work = 0;
  {
    absl::MutexLock lock(&mutex_);
    work = BeginDiskWork();
    const int64_t short_bytes =
        policies_.ssd.marks.ShortBytes(directory_.ssd_bytes(), copy.bytes, ssd_->capacity_bytes());
    if (short_bytes > 0) {
      status = absl::ResourceExhaustedError(
          absl::StrFormat("ssd: page of %d bytes is %d too large for what can be evicted",
                          copy.bytes, short_bytes));
    }
  }
  const absl::Duration start = clock_.Monotonic();
  if (status.ok()) status = ssd_->Put(write);
  const absl::Duration took = clock_.Monotonic() - start;
  Aftermath after;
  after.events.push_back([took, bytes = copy.bytes, ok = status.ok()](StoreObserver& o) {
    o.OnSsdWrite(took, bytes, ok);
  });
  {
    absl::MutexLock lock(&mutex_);
    --ssd_changes_;
    ssd_refused_ |= !status.ok();
    if (status.ok()) {
      counters_.ssd_written_bytes += copy.bytes;
    } else {
      ++counters_.ssd_write_errors;
    }
    EndDiskWork(work, status, after);
    ReleaseKey(key);
    const EntryId id = directory_.Find(key);
    // Removed meanwhile: the deletion waits in the queue behind us.
    if (id != kNoEntry && directory_.at(id).incarnation == incarnation) {
      FinishWrite(id, page, copy, status, after);
    }
  }
  page = nullptr;
  Finish(after);
  if (!status.ok()) LogWarning("ssd_write_failed", {{"error", status.ToString()}});
}

void TieredStore::FinishWrite(EntryId id, const HostPagePtr& page, const CopyInfo& written,
                              const absl::Status& status, Aftermath& after) {
  const DirectoryEntry& entry = directory_.at(id);
  directory_.SetQueued(id, false);
  const bool demote = demoting_.contains(id);
  ForgetDemotion(id);
  if (demote) demotion_asked_ = true;  // the queue has room again
  if (entry.quarantined) return;       // the deletion waits in the queue behind us
  if (status.ok()) {
    directory_.SetSsd(id, written);
    if (entry.host != page) {
      // Another encoding came while this one was written: it follows. When the queue is full it
      // stays dirty, and is written when it is demoted.
      if (entry.host != nullptr && !closing_) QueueWrite(id);
      return;
    }
    directory_.SetDirty(id, false);
  }
  if (!demote || entry.host != page) return;
  constexpr long kOurReferences = 2;  // the entry's and the writer's
  const bool wanted = entry.locked() || entry.host.use_count() > kOurReferences ||
                      directory_.host_policy().child_count(id) > 0;
  if (wanted) return;
  if (status.ok()) {
    DropHost(id, EvictionReason::kWatermark, after);
  } else if (entry.on_ssd() || entry.child_count == 0) {
    // A cache may forget; it may not fill up because a disk is sick.
    DropHost(id, EvictionReason::kSsdFailed, after);
  }
}

void TieredStore::MakeSsdRoom(int64_t bytes, const ScopeId* presser) {
  std::vector<RecordKey> deleted;
  Aftermath after;
  {
    absl::MutexLock lock(&mutex_);
    const int64_t used_bytes = directory_.ssd_bytes();
    const int64_t need_bytes =
        std::max(policies_.ssd.marks.ShortBytes(used_bytes, bytes, ssd_->capacity_bytes()),
                 policies_.ssd.marks.ExcessBytes(used_bytes + bytes, ssd_->capacity_bytes()));
    if (need_bytes == 0) return;
    policy::EvictionGuard guard = GuardOf(TierKind::kSsd, presser);
    const std::vector<EntryId> victims =
        directory_.ssd_policy().PickVictims(need_bytes, [&](EntryId id) {
          mutex_.AssertHeld();
          const DirectoryEntry& entry = directory_.at(id);
          if (loads_.contains(entry.record) || held_keys_.contains(entry.record)) return false;
          // The last copy goes only when no page that follows it is elsewhere.
          const bool free =
              entry.host != nullptr || entry.child_count == directory_.ssd_policy().child_count(id);
          return free && guard.MayTake(CandidateOf(TierKind::kSsd, id));
        });
    for (const EntryId id : victims) {
      // When it was picked, those that follow it were to go first. They may have stayed in memory.
      const DirectoryEntry& entry = directory_.at(id);
      if (entry.host == nullptr && entry.child_count > 0) continue;
      if (directory_.ssd_policy().child_count(id) > 0) continue;
      deleted.push_back(entry.record);
      HoldKey(deleted.back());
      DropSsd(id, EvictionReason::kWatermark, after);
    }
    ++ssd_changes_;
  }
  bool refused = false;
  for (const RecordKey& key : deleted) {
    const absl::Status status = ssd_->Delete(key);
    {
      absl::MutexLock lock(&mutex_);
      ReleaseKey(key);
    }
    if (!status.ok()) LogWarning("ssd_delete_failed", {{"error", status.ToString()}});
    refused |= !status.ok();
  }
  {
    absl::MutexLock lock(&mutex_);
    --ssd_changes_;
    ssd_refused_ |= refused;
  }
  Finish(after);
}

}  // namespace pagoda
