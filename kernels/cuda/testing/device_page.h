// A page in the device's memory, read through PageView as on the host: views of q4 and above never
// follow their pointers, so their spans may lie anywhere. Poorer pages are widened on the host.
#pragma once

#include <vector>

#include "kernels/cuda/testing/device.h"
#include "kernels/testing/random_page.h"

namespace pagoda::kernels::cuda {

class DevicePage {
 public:
  explicit DevicePage(const TestPage& page) : shape_(page.shape), header_(page.header) {
    PAGODA_CHECK(PrecisionOf(page.header.planes) >= Precision::kQ4);
    for (const AlignedBuffer& segment : page.segments) {
      const std::byte* bytes = segment.data();
      segments_.emplace_back(std::vector<std::byte>(bytes, bytes + segment.size()));
    }
  }

  PageView view() const {
    std::vector<ByteSpan> spans;
    for (const auto& segment : segments_) spans.emplace_back(segment.data(), segment.size());
    auto view = PageView::Make(shape_, header_, spans, Precision::kRaw16);
    PAGODA_CHECK(view.ok());
    return *std::move(view);
  }

 private:
  PageShape shape_;
  PageHeader header_;
  std::vector<DeviceVector<std::byte>> segments_;
};

}  // namespace pagoda::kernels::cuda
