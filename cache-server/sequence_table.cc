#include "cache-server/sequence_table.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

absl::Status Unknown(const SequenceId& id) {
  return absl::NotFoundError(
      absl::StrCat("sequence ", id.hex(), " is not open in this session; open it first"));
}

// Window sums stay far from overflow: a position past 2^62 is no position.
constexpr uint64_t kPositionMax = uint64_t{1} << 62;

size_t IndexOf(Precision precision) {
  return static_cast<size_t>(
      std::find(kStoredPrecisions.begin(), kStoredPrecisions.end(), precision) -
      kStoredPrecisions.begin());
}

absl::Status ValidateShape(const SequenceShape& shape) {
  if (shape.length_tokens > kPositionMax || shape.window_tokens > kPositionMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sequence of %d tokens with a window of %d: expected at most 2^62",
                        shape.length_tokens, shape.window_tokens));
  }
  if (IndexOf(shape.wanted) == kStoredPrecisions.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "sequence precision ", PrecisionName(shape.wanted), ": expected raw16, q8, q4, q3 or q2"));
  }
  return absl::OkStatus();
}

}  // namespace

uint32_t& SequenceTable::CountOf(Holds& holds, bool in_window, Precision wanted) {
  return in_window ? holds.in_window : holds.wanted[IndexOf(wanted)];
}

PageNeed SequenceTable::NeedOf(const Holds& holds) {
  if (holds.in_window > 0) return {true, Precision::kRaw16};
  for (size_t i = 0; i < holds.wanted.size(); ++i) {
    if (holds.wanted[i] > 0) return {false, kStoredPrecisions[i]};
  }
  return {};
}

PageNeed SequenceTable::NeedOf(const RecordKey& record) const {
  const auto found = holds_.find(record);
  return found == holds_.end() ? PageNeed{} : NeedOf(found->second);
}

void SequenceTable::Count(const PageRef& page, bool in_window, Precision wanted, int step,
                          std::vector<PageRef>& changed) {
  Holds& holds = holds_[page.record];
  const PageNeed before = NeedOf(holds);
  uint32_t& count = CountOf(holds, in_window, wanted);
  PAGODA_CHECK(step > 0 || count > 0);
  count += static_cast<uint32_t>(step);
  const bool differs = NeedOf(holds) != before;
  if (holds.empty()) holds_.erase(page.record);
  if (differs) changed.push_back(page);
}

SequenceTable::Sequence* SequenceTable::Find(const SessionId& session, const SequenceId& id) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return nullptr;
  const auto sequence = found->second.find(id);
  return sequence == found->second.end() ? nullptr : &sequence->second;
}

void SequenceTable::Move(const PageRef& page, bool was_in_window, Precision was_wanted,
                         bool in_window, Precision wanted, std::vector<PageRef>& changed) {
  // Added before it is removed: the need never falls to nothing in between.
  std::vector<PageRef> steps;
  const PageNeed before = NeedOf(page.record);
  Count(page, in_window, wanted, 1, steps);
  Count(page, was_in_window, was_wanted, -1, steps);
  if (NeedOf(page.record) != before) changed.push_back(page);
}

absl::StatusOr<SequenceTable::Sequence*> SequenceTable::Add(const SessionId& session,
                                                            const SequenceId& id) {
  const auto found = sessions_.find(session);
  if (found != sessions_.end() && found->second.size() >= limits_.sequences_per_session_max) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "session has %d open sequences, sequences_per_session_max", found->second.size()));
  }
  ++sequence_count_;
  return &sessions_[session][id];
}

absl::Status SequenceTable::Open(const SessionId& session, const SequenceId& id,
                                 const SequenceShape& shape, std::vector<PageRef>& changed) {
  PAGODA_RETURN_IF_ERROR(ValidateShape(shape));
  Sequence* sequence = Find(session, id);
  if (sequence == nullptr) {
    PAGODA_ASSIGN_OR_RETURN(sequence, Add(session, id));
    sequence->shape = shape;
    return absl::OkStatus();
  }
  if (!sequence->early) {
    return absl::AlreadyExistsError(absl::StrCat("sequence ", id.hex(), " is open already"));
  }
  sequence->early = false;
  const Precision was_wanted = sequence->shape.wanted;
  sequence->shape = shape;
  for (const Held& page : sequence->pages) {
    Move({page.record, page.scope}, /*was_in_window=*/true, was_wanted,
         sequence->InWindow(page.end_position), shape.wanted, changed);
  }
  return absl::OkStatus();
}

absl::Status SequenceTable::Advance(const SessionId& session, const SequenceId& id,
                                    uint64_t length_tokens, std::vector<PageRef>& changed) {
  Sequence* sequence = Find(session, id);
  if (sequence == nullptr || sequence->early) return Unknown(id);
  SequenceShape& shape = sequence->shape;
  if (length_tokens < shape.length_tokens || length_tokens > kPositionMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("sequence length %d: expected at least %d, it only grows", length_tokens,
                        shape.length_tokens));
  }
  // Pages that leave end above the old edge of the window and at or below the new one.
  const auto edge = [&](uint64_t length) {
    return length > shape.window_tokens ? length - shape.window_tokens : 0;
  };
  const uint64_t new_edge = edge(length_tokens);
  auto page =
      sequence->pages.lower_bound(Held{edge(shape.length_tokens) + 1, RecordKey{}, ScopeId{}});
  for (; page != sequence->pages.end() && page->end_position <= new_edge; ++page) {
    Move({page->record, page->scope}, /*was_in_window=*/true, shape.wanted, /*in_window=*/false,
         shape.wanted, changed);
  }
  shape.length_tokens = length_tokens;
  return absl::OkStatus();
}

absl::Status SequenceTable::Attach(const SessionId& session, const SequenceId& id,
                                   absl::Span<const SequencePage> pages, absl::Duration now,
                                   std::vector<PageRef>& changed) {
  Sequence* sequence = Find(session, id);
  if (sequence == nullptr) {
    PAGODA_ASSIGN_OR_RETURN(sequence, Add(session, id));
    sequence->early = true;
    sequence->since = now;
  }
  for (const SequencePage& page : pages) {
    // Positions that no window can tell apart: outside bytes may hold anything.
    if (page.end_position == 0 || page.end_position > kPositionMax) continue;
    if (sequence->records.contains(page.page.record)) continue;
    if (sequence->pages.size() >= limits_.pages_per_sequence_max) {
      return absl::ResourceExhaustedError(absl::StrFormat(
          "sequence holds %d pages, pages_per_sequence_max", sequence->pages.size()));
    }
    sequence->records.insert(page.page.record);
    sequence->pages.insert(Held{page.end_position, page.page.record, page.page.scope});
    Count(page.page, sequence->InWindow(page.end_position), sequence->shape.wanted, 1, changed);
  }
  return absl::OkStatus();
}

void SequenceTable::Drop(Sequence& sequence, std::vector<PageRef>& changed) {
  for (const Held& page : sequence.pages) {
    Count(PageRef{page.record, page.scope}, sequence.InWindow(page.end_position),
          sequence.shape.wanted, -1, changed);
  }
  PAGODA_CHECK(sequence_count_ > 0);
  --sequence_count_;
}

absl::Status SequenceTable::Close(const SessionId& session, const SequenceId& id,
                                  std::vector<PageRef>& changed) {
  Sequence* sequence = Find(session, id);
  if (sequence == nullptr) return Unknown(id);
  Drop(*sequence, changed);
  auto& sequences = sessions_[session];
  sequences.erase(id);
  if (sequences.empty()) sessions_.erase(session);
  return absl::OkStatus();
}

void SequenceTable::CloseSession(const SessionId& session, std::vector<PageRef>& changed) {
  const auto found = sessions_.find(session);
  if (found == sessions_.end()) return;
  for (auto& [id, sequence] : found->second) Drop(sequence, changed);
  sessions_.erase(found);
}

void SequenceTable::DropEarly(absl::Duration oldest, std::vector<PageRef>& changed) {
  std::vector<std::pair<SessionId, SequenceId>> late;
  for (const auto& [session, sequences] : sessions_) {
    for (const auto& [id, sequence] : sequences) {
      if (sequence.early && sequence.since < oldest) late.emplace_back(session, id);
    }
  }
  for (const auto& [session, id] : late) (void)Close(session, id, changed);
}

}  // namespace pagoda
