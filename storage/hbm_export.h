// Pages of device memory for one worker of this machine: their slabs by handle, and a flag word by
// which its streams wait for layers that are still on their way. Which pages it may have is for the
// caller to know.
//
//   Share(page)   slabs --------------------------------------> worker (device/memory_export.h)
//                 stream: [layer 0 there] n | [next group there] n + 1 | ... -->
//                 ExportWord::kArrived
//
// Threads    one at a time
// Ownership  the tier outlives this, and so does the socket. Pages are not held: a slab that was
//            granted waits for its ticket, a page that shall stay in the tier is kept by the caller
// Errors     as DeviceExport; of Share also those of the page's arrival. The worker then has
// nothing
//            of the page
// Cost       Share: one event wait and one flag write for each group of layers that is not there
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "storage/device/memory_export.h"
#include "storage/hbm_tier.h"

namespace pagoda {

struct SharedDevicePage {
  std::vector<DeviceGrant> segments;
  // Group g of its layers, in the order of their first layer, is there once the word is at least
  // arrival + g. 0: all of it is.
  uint64_t arrival = 0;
};

class HbmExport {
 public:
  static absl::StatusOr<std::unique_ptr<HbmExport>> Open(HbmTier& tier, int socket,
                                                         SendPacket send);
  // Waits a moment for its own stream, if Drain() has not.
  ~HbmExport();
  // Waits for its own stream, and leaks it where that does not end. The last call.
  void Drain(absl::Duration timeout);

  absl::StatusOr<SharedDevicePage> Share(const DevicePage& page);
  // As DeviceExport::Poll. Where the device is lost it also tells the worker, whose streams then
  // wait for nothing.
  bool Poll();

  // Everything that was granted so far is finished by this one.
  uint64_t last_ticket() const { return export_->last_ticket(); }
  size_t memory_count() const { return export_->memory_count(); }
  // Pieces of memory that would be new to the worker with this page.
  size_t NewMemoryCount(const DevicePage& page) const;

 private:
  explicit HbmExport(DeviceRuntime& runtime) : runtime_(runtime) {}
  absl::Status Announce(const DevicePage& page, uint64_t& arrival);
  absl::Status Enqueue(const DevicePage& page, uint64_t first);
  absl::Status Record();
  uint64_t* word(ExportWord which) const { return export_->flags().word(static_cast<int>(which)); }

  DeviceRuntime& runtime_;
  std::unique_ptr<DeviceExport> export_;
  std::unique_ptr<HostRegistration> registration_;  // of its flag page
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> told_;  // behind all work of the stream, unless
  bool unrecorded_ = false;            // some was put there after it
  bool recorded_ = false;
  bool drained_ = false;
  uint64_t next_arrival_ = 1;
};

}  // namespace pagoda
