// Device memory of a client's own, where pages of FetchDevice() land, and what is in it.
//
// Threads    one
// Ownership  the device outlives it
#pragma once

#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "client/client.h"
#include "storage/device/runtime.h"
#include "tests/integration/device_reader.h"

namespace pagoda {

class PeerLanding {
 public:
  explicit PeerLanding(DeviceRuntime& device) : device_(device), reader_(device) {}

  // `on_page` hears of each page that the daemon sends, before its bytes come.
  client::DeviceTargets Targets(std::function<void(uint32_t)> on_page = nullptr) {
    return [this, on_page](uint32_t index, const PageHeader& header) {
      auto buffers = std::make_shared<std::vector<std::unique_ptr<DeviceBuffer>>>();
      client::DeviceTarget target;
      for (const SegmentEntry& segment : header.segments) {
        auto buffer = device_.Allocate(segment.stored_bytes(), DeviceSharing::kPrivate);
        if (!buffer.ok()) return client::DeviceTarget();
        target.segments.push_back((*buffer)->data());
        buffers->push_back(*std::move(buffer));
      }
      target.owner = buffers;
      owners_.push_back(std::move(buffers));
      if (on_page != nullptr) on_page(index);
      return target;
    };
  }
  // Whether that page is there with the bytes that were pushed.
  bool Sees(const absl::StatusOr<client::PageOnDevice>& page, const TestPage& pushed) {
    if (!page.ok() || page->header.record.key != pushed.key) return false;
    for (uint32_t layer = 0; layer < page->header.layer_count; ++layer) {
      if (!reader_.SeesLayer(*page, layer, pushed)) return false;
    }
    return true;
  }
  void Forget() { owners_.clear(); }

 private:
  DeviceRuntime& device_;
  std::vector<std::shared_ptr<const void>> owners_;
  DeviceReader reader_;
};

}  // namespace pagoda
