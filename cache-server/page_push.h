// One page on its way in: checked as its bytes come, committed when the last is verified. Pure of
// gRPC; push_reactor.h feeds it.
//
// A page whose key is stored already is checked all the same, but its bytes go nowhere: no memory
// is taken, and the answer is ALREADY_STORED.
//
// The first error stays: later pieces are then ignored, and the page's answer carries it.
//
// Threads  one at a time.   Ownership  destroying it before Commit() leaves nothing behind
// Errors   FAILED_PRECONDITION  unknown parent, or a model that was never announced
//          INVALID_ARGUMENT     key, shape, sizes or order of pieces wrong
//          PERMISSION_DENIED    no right to write this scope
//          RESOURCE_EXHAUSTED   no room
//          DATA_LOSS            a segment's checksum differs
//          UNIMPLEMENTED        precision, layer group or planes that are not taken yet
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "cache-server/service_context.h"
#include "pagoda/v1/cache.pb.h"
#include "proto/piece_codec.h"

namespace pagoda {

struct PushedPage {
  PageRef page;
  uint64_t end_position = 0;
  CommitOutcome outcome = CommitOutcome::kStored;
};

class PagePush {
 public:
  PagePush(ServiceContext& context, const Caller& caller, const v1::PushPage& page);

  const std::string& key() const { return key_; }
  const absl::Status& status() const { return status_; }
  // Of a page without an error so far.
  const PageRef& page() const { return ref_; }
  uint64_t end_position() const { return header_.base_position + header_.page_tokens; }

  void AddPiece(const PieceView& piece);
  // The next segment as a whole, out of memory that its owner may change meanwhile: what is
  // checked is what was taken.
  void AddSharedSegment(ByteSpan bytes);
  // Of the segments that the page is made of; none of a page with an error.
  const std::vector<SegmentEntry>& segments() const { return header_.segments; }
  // The last call. `need`: of the sequences that hold this page. One that is stored below it gives
  // way, as far as the model's ladder keeps the better one.
  absl::StatusOr<PushedPage> Commit(const PageNeed& need);

 private:
  absl::Status Begin(const v1::PushPage& page);
  absl::Status CheckScope(const v1::PushPage& page, const CallerScope*& scope);
  absl::Status CheckKeys(const v1::PushPage& page, const CallerScope& scope);
  absl::Status BuildHeader(const v1::PushPage& page, const CallerScope& scope);
  absl::Status CheckPlace();
  absl::Status Add(const PieceView& piece);
  absl::Status AddShared(ByteSpan bytes);
  // What is stored under this key in this scope, if anything.
  std::optional<PlacedPage> Stored(const PageKey& key) const;
  // What the ladder keeps while nobody needs more.
  Precision KeptPrecision() const;
  bool KeepsStored(const PlacedPage& stored) const;
  void CompareContent() const;

  ServiceContext& context_;
  const Caller& caller_;
  std::string key_;
  absl::Status status_;
  ModelSpec spec_;
  PageRef ref_;
  PageHeader header_;
  std::optional<StagedPage> staged_;  // absent: the key is stored, bytes are only checked
  // Where the next byte goes.
  size_t segment_ = 0;
  size_t offset_ = 0;
  uint32_t crc_ = 0;  // of the segment so far
  absl::Duration start_;
  bool shared_ = false;  // comes through shared memory
};

}  // namespace pagoda
