// One request for pages over a link to another GPU: which pages of the lease are in device memory,
// or can come there, as far as they fit the link's staging buffer; what is answered about them; and
// the half of the transfer that sends them.
//
// Threads    one at a time
// Ownership  holds the pages until it goes; Half() shares them with whoever moves them
// Errors     of one page: in the answer, and counted. Of Gather(): the request has no pages
// Limits     256 pages and 2 MiB of headers an answer: the client asks again for the rest
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cache-server/service_context.h"
#include "pagoda/v1/cache.pb.h"
#include "storage/device/peer_link.h"

namespace pagoda {

class PeerPageRequest {
 public:
  // `end`: on the monotonic clock, of all of it.
  PeerPageRequest(ServiceContext& context, v1::PeerFetch wanted, absl::Duration now);

  // Asks for the pages, at most `bytes_max` of them; they may still be on their way then.
  absl::Status Gather(const Caller& caller, const SessionId& session, int64_t bytes_max);
  // Whether there is nothing to wait for: all are there or do not come, or half of the time is over
  // and the rest goes without those that are late.
  bool Settled(absl::Duration now) const;
  // Once settled. Of a request that failed as a whole, its status.
  v1::PeerPages Answer(const absl::Status& status, absl::Duration now);
  // What Answer() has promised, and its bytes; 0: nothing moves.
  PeerRequest Half(absl::Duration now) const;
  int64_t bytes() const { return bytes_; }

  absl::Duration start() const { return start_; }
  absl::Duration end() const { return end_; }

 private:
  struct Asked {
    absl::Status status;
    DevicePagePtr page;  // null: refused
  };
  absl::StatusOr<DevicePagePtr> Promote(const HostPagePtr& page);
  void Refuse(v1::PeerPage& answer, const absl::Status& why, DeviceFallback reason);

  ServiceContext& context_;
  const v1::PeerFetch wanted_;
  const absl::Duration start_;
  const absl::Duration end_;
  std::vector<Asked> asked_;         // from wanted_.page_begin() on, in order
  std::vector<DevicePagePtr> sent_;  // of the answer
  int64_t bytes_ = 0;
};

}  // namespace pagoda
