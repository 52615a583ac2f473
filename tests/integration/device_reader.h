// Reads pages in device memory by a stream of one's own, as attention would, and compares them with
// what was pushed.
#pragma once

#include <cstring>
#include <memory>
#include <string>

#include "cache-server/testing/test_pages.h"
#include "client/client.h"
#include "storage/base/check.h"
#include "storage/device/runtime.h"
#include "storage/device/testing/host_arena.h"

namespace pagoda {

class DeviceReader {
 public:
  explicit DeviceReader(DeviceRuntime& device)
      : device_(device),
        registration_(*device.RegisterHost(host_.data(), host_.bytes())),
        stream_(*device.NewStream()),
        event_(*device.NewEvent()) {}
  ~DeviceReader() { Drain(); }

  // Everything that is there, layer by layer.
  bool SeesAll(client::DevicePages& pages, const std::vector<TestPage>& chain) {
    for (uint32_t layer = 0; layer < 4; ++layer) {
      if (!pages.WaitLayer(*stream_, layer).ok()) return false;
      for (size_t i = 0; i < pages.size(); ++i) {
        if (pages.Page(i).ok() && !SeesLayer(*pages.Page(i), layer, chain[i])) return false;
      }
    }
    return pages.StillValid();
  }
  bool SeesLayer(const client::PageOnDevice& page, uint32_t layer, const TestPage& pushed) {
    for (size_t s = 0; s < page.segments.size(); ++s) {
      if (page.header.segments[s].layer_begin != layer) continue;
      const std::string& wanted = pushed.segments[s];
      const auto bytes = static_cast<int64_t>(wanted.size());
      PAGODA_CHECK(bytes <= host_.bytes());
      const absl::Status copied = stream_->CopyBatch(CopyDirection::kDeviceToHost,
                                                     {{host_.data(), page.segments[s], bytes}});
      if (!copied.ok() || !Drain()) return false;
      if (std::memcmp(host_.data(), wanted.data(), wanted.size()) != 0) return false;
    }
    return true;
  }
  bool Drain() {
    return stream_->Record(*event_).ok() && device_.Await(*event_, absl::Seconds(60)).ok();
  }
  DeviceStream& stream() { return *stream_; }

 private:
  DeviceRuntime& device_;
  const HostArena host_{1 << 20};
  const std::unique_ptr<HostRegistration> registration_;
  const std::unique_ptr<DeviceStream> stream_;
  const std::unique_ptr<DeviceEvent> event_;
};

}  // namespace pagoda
