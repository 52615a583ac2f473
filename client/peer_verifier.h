// Checks bytes that have come to device memory against the checksums of their pages: copies them to
// pinned host memory and takes the checksums there. A GPU would be faster at it; a page that is
// wrong must not be read, whatever carried it and whoever had written to it before.
//
// Threads    one at a time
// Ownership  holds what it was given until the device is done with it, also when that is late
// Errors     DATA_LOSS          a checksum differs: of that page
//            DEADLINE_EXCEEDED, UNAVAILABLE   the device is late, or lost: nothing was checked
// Cost       a copy to the host and one pass over it by one thread
#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "storage/base/page_header.h"
#include "storage/device/runtime.h"

namespace pagoda::client {

class PeerVerifier {
 public:
  struct Landed {
    const PageHeader* header = nullptr;
    std::vector<std::byte*> segments;  // stored_bytes() each
    std::shared_ptr<const void> owner;
  };

  // `bytes`: of all pages of a call, at most.
  static absl::StatusOr<std::unique_ptr<PeerVerifier>> Create(DeviceRuntime& device, int64_t bytes);
  ~PeerVerifier();

  // Of each page whether its bytes are those that were committed.
  absl::StatusOr<std::vector<absl::Status>> Verify(absl::Span<const Landed> pages,
                                                   absl::Duration timeout);

 private:
  struct Free {
    void operator()(std::byte* data) const;
  };
  PeerVerifier(DeviceRuntime& device, int64_t bytes) : device_(device), bytes_(bytes) {}

  DeviceRuntime& device_;
  const int64_t bytes_;
  std::unique_ptr<std::byte, Free> memory_;
  std::unique_ptr<HostRegistration> registration_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> event_;
  std::vector<std::shared_ptr<const void>> copied_;  // of a copy that may still run
};

}  // namespace pagoda::client
