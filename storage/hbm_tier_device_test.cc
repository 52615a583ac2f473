// Goal: pages of a real host tier, in its sealed memfds, come into the memory of whatever device is
// linked, and a compute stream reads each layer as soon as it is there. Method: more pages than the
// device has room for, by several threads; what a stream reads back is compared with the page.
#include <gtest/gtest.h>

#include <thread>

#include "storage/base/clock.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/device/testing/host_arena.h"
#include "storage/device/testing/test_device.h"
#include "storage/hbm_tier.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr uint32_t kSegmentBytes = 200'000;
constexpr uint32_t kPages = 24;
constexpr int kThreads = 3;
constexpr int kRounds = 40;
constexpr absl::Duration kLong = absl::Seconds(60);

TestPage Page(uint32_t token) {
  TestPage page = TestRoot(token);
  page.segment_bytes = kSegmentBytes;
  return page;
}

class Reader {
 public:
  explicit Reader(DeviceRuntime& device)
      : device_(device),
        registration_(*device.RegisterHost(host_.data(), host_.bytes())),
        stream_(*device.NewStream()),
        event_(*device.NewEvent()) {}

  // Through a stream that waits for the layers, as attention would.
  bool Sees(const DevicePage& page, const TestPage& wanted) {
    for (size_t i = 0; i < page.segment_count(); ++i) {
      const std::string bytes = SegmentBytes(wanted, page.header(), i);
      PAGODA_CHECK(page.WaitLayer(*stream_, page.header().segments[i].layer_begin).ok());
      PAGODA_CHECK(
          stream_
              ->CopyBatch(CopyDirection::kDeviceToHost, {{host_.data(), page.segment(i).data(),
                                                          static_cast<int64_t>(bytes.size())}})
              .ok());
      PAGODA_CHECK(stream_->Record(*event_).ok());
      PAGODA_CHECK(device_.Await(*event_, kLong).ok());
      if (std::memcmp(host_.data(), bytes.data(), bytes.size()) != 0) return false;
    }
    return true;
  }

 private:
  DeviceRuntime& device_;
  const HostArena host_{kMiB};
  const std::unique_ptr<HostRegistration> registration_;
  const std::unique_ptr<DeviceStream> stream_;
  const std::unique_ptr<DeviceEvent> event_;
};

TEST(HbmTierDeviceTest, StreamsReadLayersOfPromotedPages) {
  if (TestDeviceCount() == 0) GTEST_SKIP() << "no GPU";
  const auto device = *OpenTestDevice();
  const auto host = *HostTier::Create({.capacity_bytes = 32 * kMiB, .touch_threads = 2});
  HbmTierOptions options;
  options.pool.capacity_bytes = 6 * kMiB;
  options.pool.chunk_bytes = 2 * kMiB;
  const auto tier = *HbmTier::Create(*device, *host, SystemClock(), options);
  std::vector<HostPagePtr> pages;
  for (uint32_t token = 0; token < kPages; ++token) {
    StagedPage staged = *StagedPage::Create(host, HeaderOf(Page(token)));
    Fill(Page(token), staged);
    pages.push_back(*StagedPage::Freeze(std::move(staged)));
  }
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      Reader reader(*device);
      for (uint32_t round = 0; round < kRounds; ++round) {
        const uint32_t token = (round * 5 + t * 11) % kPages;
        const auto page = tier->Promote(pages[token]);
        if (absl::IsResourceExhausted(page.status())) continue;  // all are in use, or just copied
        PAGODA_ASSERT_OK(page);
        ASSERT_TRUE(reader.Sees(**page, Page(token))) << "thread " << t << " round " << round;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(tier->stats().evicted_count, 0);
  EXPECT_EQ(tier->stats().failed_count, 0);
  PAGODA_EXPECT_OK(tier->pinned().refusal);
  PAGODA_EXPECT_OK(tier->pool().CheckAccounting());
}

}  // namespace
}  // namespace pagoda
