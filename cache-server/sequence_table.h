// Which pages the running requests need, and how exactly. A pure state machine: events in, pages
// whose need changed out; no clock, no lock, no I/O.
//
// A sequence is a request that runs: a length, a window and the precision it wants. Its pages are
// attached as they are found or pushed. A page is in the window of a sequence until
// base_position + page_tokens <= length - window. What a page needs is the greatest over all open
// sequences that hold it:
//
//   raw16          while it is in a window
//   wanted         after that, until the sequence closes
//   nothing        once nobody holds it: it may come down its model's ladder (ladder.h)
//
// Pages may be attached before their sequence is opened: lookups and pushes travel beside the
// session's stream. Such an early sequence holds its pages as if all were in a window, until it is
// opened or DropEarly() finds that nobody did.
//
// Threads  one at a time; the owner locks.
// Errors   NOT_FOUND            no such sequence in this session
//          INVALID_ARGUMENT     a length that shrinks
//          RESOURCE_EXHAUSTED   sequences_per_session_max or pages_per_sequence_max
//          ALREADY_EXISTS       the id is open in this session
// Cost     O(log pages) an attached page or a page that leaves a window
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "storage/base/digest.h"
#include "storage/base/page_key.h"
#include "storage/base/precision.h"
#include "storage/base/scope.h"

namespace pagoda {

struct SessionIdTag;
using SessionId = DigestId<SessionIdTag, 16>;
struct SequenceIdTag;
using SequenceId = DigestId<SequenceIdTag, 16>;

struct SequenceShape {
  uint64_t length_tokens = 0;
  uint64_t window_tokens = 0;
  Precision wanted = Precision::kQ4;
};

// A page and the scope it belongs to: what it takes to reach it in the store.
struct PageRef {
  RecordKey record;
  ScopeId scope;
  bool operator==(const PageRef&) const = default;
};

struct SequencePage {
  PageRef page;
  uint64_t end_position = 0;  // base_position + page_tokens
};

struct PageNeed {
  bool in_window = false;
  Precision precision = Precision::kNone;  // kNone: no open sequence holds it
  bool operator==(const PageNeed&) const = default;
};

class SequenceTable {
 public:
  struct Limits {
    uint32_t sequences_per_session_max = 256;
    uint32_t pages_per_sequence_max = 65536;
  };
  explicit SequenceTable(const Limits& limits) : limits_(limits) {}

  // Each event appends to `changed` the pages whose need changed; CloseSession may name one twice.
  absl::Status Open(const SessionId& session, const SequenceId& id, const SequenceShape& shape,
                    std::vector<PageRef>& changed);
  absl::Status Advance(const SessionId& session, const SequenceId& id, uint64_t length_tokens,
                       std::vector<PageRef>& changed);
  // Attaching a page again changes nothing. Stops at the limit; pages before it stay attached.
  // `now` dates an early sequence.
  absl::Status Attach(const SessionId& session, const SequenceId& id,
                      absl::Span<const SequencePage> pages, absl::Duration now,
                      std::vector<PageRef>& changed);
  absl::Status Close(const SessionId& session, const SequenceId& id, std::vector<PageRef>& changed);
  void CloseSession(const SessionId& session, std::vector<PageRef>& changed);
  // Closes the early sequences that began before `oldest`.
  void DropEarly(absl::Duration oldest, std::vector<PageRef>& changed);

  PageNeed NeedOf(const RecordKey& record) const;
  size_t sequence_count() const { return sequence_count_; }
  size_t held_page_count() const { return holds_.size(); }

 private:
  struct Held {  // a page of a sequence, sorted by the position where it ends
    uint64_t end_position = 0;
    RecordKey record;
    ScopeId scope;
    auto operator<=>(const Held&) const = default;
  };
  struct Sequence {
    SequenceShape shape;  // of an early one: length 0, so that every page is in the window
    bool early = false;
    absl::Duration since;  // of an early one
    absl::btree_set<Held> pages;
    absl::flat_hash_set<RecordKey> records;
    bool InWindow(uint64_t end_position) const {
      return end_position + shape.window_tokens > shape.length_tokens;
    }
  };
  // How many sequences hold a page, and how.
  struct Holds {
    uint32_t in_window = 0;
    // Outside the window, by what the sequence wants: as in kStoredPrecisions.
    std::array<uint32_t, kStoredPrecisions.size()> wanted{};
    bool operator==(const Holds&) const = default;
    bool empty() const { return *this == Holds{}; }
  };

  static uint32_t& CountOf(Holds& holds, bool in_window, Precision wanted);
  static PageNeed NeedOf(const Holds& holds);
  // Adds `step` (1 or -1) to one count; appends the page if its need changed.
  void Count(const PageRef& page, bool in_window, Precision wanted, int step,
             std::vector<PageRef>& changed);
  void Drop(Sequence& sequence, std::vector<PageRef>& changed);
  // A page of this sequence goes from one state to another: its need changes at most once.
  void Move(const PageRef& page, bool was_in_window, Precision was_wanted, bool in_window,
            Precision wanted, std::vector<PageRef>& changed);
  absl::StatusOr<Sequence*> Add(const SessionId& session, const SequenceId& id);
  Sequence* Find(const SessionId& session, const SequenceId& id);

  const Limits limits_;
  absl::flat_hash_map<SessionId, absl::flat_hash_map<SequenceId, Sequence>> sessions_;
  absl::flat_hash_map<RecordKey, Holds> holds_;
  size_t sequence_count_ = 0;
};

}  // namespace pagoda
