// What happens in the store, for whoever counts it (metrics). Every method has an empty default.
//
// Threads  called from the store's threads and its callers' threads, several at once; never while
//          the store holds a lock. Must not block and must not call the store.
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "storage/policy/circuit_breaker.h"
#include "storage/tier.h"

namespace pagoda {

enum class CommitOutcome : uint8_t { kStored = 0, kAlreadyStored = 1, kReplaced = 2 };
constexpr int kCommitOutcomeCount = 3;

enum class EvictionReason : uint8_t {
  kWatermark = 0,    // the background loop keeps the tier below its start mark
  kPressure = 1,     // someone needed memory at once
  kRequest = 2,      // Evict or Remove
  kIntegrity = 3,    // the bytes were broken
  kSsdFailed = 4,    // the page could not be written to SSD, or not kept there
  kOrphan = 5,       // found at start without its parent
  kNotAdmitted = 6,  // not worth a write to SSD, says the admission
  kPrefetch = 7,     // made way for a page that is about to be asked for
};
constexpr int kEvictionReasonCount = 8;

enum class EvictionAction : uint8_t {
  kDrop = 0,    // gone from this tier, and the copy was the last one
  kDemote = 1,  // gone from this tier, kept in a lower one
};
constexpr int kEvictionActionCount = 2;

enum class IntegrityKind : uint8_t {
  kHeader = 0,      // header checksum, or a header of another page
  kSegment = 1,     // segment checksum or length
  kRecord = 2,      // directory record
  kMissing = 3,     // a record without its bytes
  kContent = 4,     // equal recipe and backend, other content: counted, not an error
  kUnreadable = 5,  // the disk cannot read the bytes (EIO)
  kUnsynced = 6,    // the disk failed to keep what was written (fsync)
  kIndex = 7,       // the index as a whole: every page on SSD
};
constexpr int kIntegrityKindCount = 8;

constexpr absl::string_view EvictionReasonName(EvictionReason reason) {
  constexpr absl::string_view kNames[] = {"watermark",  "pressure", "request",      "integrity",
                                          "ssd_failed", "orphan",   "not_admitted", "prefetch"};
  return kNames[static_cast<int>(reason)];
}
constexpr absl::string_view EvictionActionName(EvictionAction action) {
  return action == EvictionAction::kDrop ? "drop" : "demote";
}
constexpr absl::string_view CommitOutcomeName(CommitOutcome outcome) {
  constexpr absl::string_view kNames[] = {"stored", "already_stored", "replaced"};
  return kNames[static_cast<int>(outcome)];
}
constexpr absl::string_view IntegrityKindName(IntegrityKind kind) {
  constexpr absl::string_view kNames[] = {"header",  "segment",    "record",   "missing",
                                          "content", "unreadable", "unsynced", "index"};
  return kNames[static_cast<int>(kind)];
}

class StoreObserver {
 public:
  virtual ~StoreObserver() = default;
  virtual void OnCommit(CommitOutcome /*outcome*/, int64_t /*bytes*/) {}
  virtual void OnEvicted(TierKind /*tier*/, EvictionReason /*reason*/, EvictionAction /*action*/,
                         int64_t /*bytes*/) {}
  virtual void OnPromoted(int64_t /*bytes*/) {}  // SSD to host
  virtual void OnIntegrityFailure(TierKind /*tier*/, IntegrityKind /*kind*/) {}
  virtual void OnSsdRead(absl::Duration /*took*/, int64_t /*bytes*/, bool /*ok*/) {}
  virtual void OnSsdWrite(absl::Duration /*took*/, int64_t /*bytes*/, bool /*ok*/) {}
  virtual void OnWriteQueueFull() {}
  virtual void OnSsdBreaker(policy::BreakerState /*state*/, policy::BreakerReason /*why*/) {}
  virtual void OnLoadsLate(int64_t /*count*/) {}  // answered before their read had ended
  virtual void OnLeasesExpired(int64_t /*count*/) {}
};

}  // namespace pagoda
