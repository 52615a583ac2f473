// The daemon's device memory: one GPU, and the tier of pages on it. Without a GPU there is none of
// it, the log says why, and everything else works.
//
// Threads    every method from any thread
// Ownership  the store outlives this, pages of the tier go before it
// Errors     of Open: the device was named and cannot be opened; the message has the cause, the
//            value and the remedy. Of Promote as HbmTier: the page is then read from host memory
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "cache-server/hbm_state.h"
#include "cache-server/options.h"
#include "storage/device/runtime.h"
#include "storage/hbm_tier.h"
#include "storage/tiered_store.h"

namespace pagoda {

// Which of these devices `device` of the settings names. NOT_FOUND, INVALID_ARGUMENT: none.
absl::StatusOr<DeviceUuid> ChooseDevice(const std::string& device,
                                        const std::vector<DeviceInfo>& devices);

class Hbm {
 public:
  // Null: the settings want none, or leave it to the daemon and there is none.
  static absl::StatusOr<std::unique_ptr<Hbm>> Open(const HbmSettings& settings, TieredStore& store);
  ~Hbm();
  Hbm(const Hbm&) = delete;
  Hbm& operator=(const Hbm&) = delete;

  // The page in device memory, or on its way there. Of a page that the store has dropped meanwhile
  // the tier keeps nothing.
  absl::StatusOr<DevicePagePtr> Promote(const HostPagePtr& page);
  // OK, or why the device is lost, which is logged once.
  absl::Status health();

  HbmTier& tier() { return *device_->tier; }
  DeviceRuntime& runtime() { return *device_->runtime; }
  const DeviceInfo& info() const { return device_->runtime->info(); }
  HbmState state() const;

 private:
  struct Device {  // in the order of dependence
    std::unique_ptr<DeviceRuntime> runtime;
    std::shared_ptr<HostTier> host;
    std::unique_ptr<HbmTier> tier;
  };
  Hbm(std::shared_ptr<Device> device, TieredStore& store);

  const std::shared_ptr<Device> device_;
  TieredStore& store_;
  std::atomic<bool> told_lost_{false};  // relaxed: who sets it logs
};

}  // namespace pagoda
