// Goal: a worker's flag word says layer by layer what has come, its streams wait for that and for
// nothing else, and what it was granted is used again when it says so. Method: daemon and worker as
// two devices of the host, stepped by hand, over a pair of sockets.
#include "storage/hbm_export.h"

#include <gtest/gtest.h>
#include <sys/socket.h>

#include "storage/base/check.h"
#include "storage/base/packet_socket.h"
#include "storage/base/testing/fake_clock.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/device/host_runtime.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr absl::Duration kLong = absl::Seconds(60);
constexpr HostRuntimeOptions kByHand = {.schedule = HostRuntimeOptions::Schedule::kManual};

class HbmExportTest : public ::testing::Test {
 protected:
  HbmExportTest() {
    int fds[2];
    PAGODA_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    daemon_socket_ = UniqueFd(fds[0]);
    worker_socket_ = UniqueFd(fds[1]);
    HbmTierOptions options;
    options.pool.capacity_bytes = 4 * kMiB;
    options.pool.chunk_bytes = 2 * kMiB;
    options.mover.own_thread = false;
    tier_ = *HbmTier::Create(daemon_, *host_, clock_, options);
    exported_ = *HbmExport::Open(*tier_, daemon_socket_.get(), nullptr);
    imported_ = *DeviceImport::Open(worker_, worker_socket_.get(), kLong);
  }
  ~HbmExportTest() override { Finish(); }

  DevicePagePtr Promoted(uint32_t token) {
    TestPage page = TestRoot(token);
    page.segment_bytes = 5000;
    StagedPage staged = *StagedPage::Create(host_, HeaderOf(page));
    Fill(page, staged);
    return *tier_->Promote(*StagedPage::Freeze(std::move(staged)));
  }
  void Finish() {
    for (int i = 0; i < 3; ++i) {
      daemon_.RunUntilIdle();
      tier_->Poll();
    }
  }
  uint64_t Word(ExportWord which) const { return LoadFlag(imported_->word(which)); }
  int64_t UsedBytes() const {
    const DeviceUsage usage = tier_->pool().usage();
    return usage.used_bytes + usage.limbo_bytes;
  }

  FakeClock clock_;
  HostRuntime daemon_{kByHand};
  HostRuntime worker_{kByHand};
  const std::shared_ptr<HostTier> host_ = *HostTier::Create({.capacity_bytes = 4 * kMiB});
  UniqueFd daemon_socket_;
  UniqueFd worker_socket_;
  std::unique_ptr<HbmTier> tier_;
  std::unique_ptr<HbmExport> exported_;
  std::unique_ptr<DeviceImport> imported_;
};

TEST_F(HbmExportTest, TheWordRisesLayerByLayerAndStreamsWaitForIt) {
  const DevicePagePtr page = Promoted(1);
  const auto shared = exported_->Share(*page);
  PAGODA_ASSERT_OK(shared);
  ASSERT_EQ(shared->segments.size(), page->segment_count());
  ASSERT_GT(shared->arrival, 0u);
  EXPECT_EQ(Word(ExportWord::kArrived), 0u);
  const uint64_t last = shared->arrival + page->group_count() - 1;
  const auto stream = *worker_.NewStream();
  PAGODA_ASSERT_OK(stream->WaitFlag(imported_->word(ExportWord::kArrived), last));
  worker_.RunUntilIdle();
  EXPECT_EQ(worker_.unfinished_count(), 1);
  uint64_t seen = 0;
  while (daemon_.Step()) {
    EXPECT_GE(Word(ExportWord::kArrived), seen);
    seen = Word(ExportWord::kArrived);
  }
  EXPECT_EQ(seen, last);
  worker_.RunUntilIdle();
  EXPECT_EQ(worker_.unfinished_count(), 0);
  Finish();
  // There is nothing to wait for any more; the next page's numbers go on.
  EXPECT_EQ(exported_->Share(*page)->arrival, 0u);
  const DevicePagePtr next = Promoted(2);
  EXPECT_EQ(exported_->Share(*next)->arrival, last + 1);
}

TEST_F(HbmExportTest, WhatWasGrantedWaitsForItsTicket) {
  DevicePagePtr page = Promoted(1);
  Finish();
  PAGODA_ASSERT_OK(exported_->Share(*page));
  EXPECT_EQ(exported_->memory_count(), 1u);
  EXPECT_EQ(exported_->NewMemoryCount(*page), 0u);
  tier_->DropAll();
  page.reset();
  EXPECT_TRUE(exported_->Poll());
  EXPECT_GT(UsedBytes(), 0);
  const auto stream = *worker_.NewStream();
  PAGODA_ASSERT_OK(imported_->Finish(*stream, exported_->last_ticket()));
  worker_.RunUntilIdle();
  EXPECT_TRUE(exported_->Poll());
  EXPECT_EQ(UsedBytes(), 0);
}

// What was put on the stream before a failure is awaited, too: it writes into the flag page.
TEST_F(HbmExportTest, AFailureHalfWayLeavesNoWorkBehind) {
  const DevicePagePtr page = Promoted(1);
  ASSERT_GE(page->group_count(), 2u);
  daemon_.FailNext(HostCall::kFlag, absl::InternalError("injected"), /*skipped=*/1);
  daemon_.FailNext(HostCall::kRecord, absl::InternalError("injected"));
  EXPECT_THAT(exported_->Share(*page), StatusIs(absl::StatusCode::kInternal, "injected"));
  EXPECT_EQ(exported_->memory_count(), 0u);
  exported_.reset();
  EXPECT_EQ(daemon_.unfinished_count(), 0);
}

TEST_F(HbmExportTest, ALostDeviceHoldsUpNoStream) {
  const DevicePagePtr page = Promoted(1);
  const auto shared = exported_->Share(*page);
  PAGODA_ASSERT_OK(shared);
  const auto stream = *worker_.NewStream();
  PAGODA_ASSERT_OK(stream->WaitFlag(imported_->word(ExportWord::kArrived), shared->arrival));
  daemon_.Lose("a test");
  Finish();
  EXPECT_TRUE(exported_->Poll());
  EXPECT_EQ(Word(ExportWord::kLost), 1u);
  worker_.RunUntilIdle();
  EXPECT_EQ(worker_.unfinished_count(), 0);
  EXPECT_THAT(HbmExport::Open(*tier_, daemon_socket_.get(), nullptr),
              StatusIs(absl::StatusCode::kUnavailable));
  // A page that does not come is not granted.
  EXPECT_FALSE(exported_->Share(*page).ok());
}

TEST_F(HbmExportTest, AWorkerThatDoesNotReadIsToldSo) {
  const DevicePagePtr page = Promoted(1);
  Finish();
  auto deaf = HbmExport::Open(
      *tier_, daemon_socket_.get(), [calls = 0](absl::string_view, int) mutable -> absl::Status {
        return calls++ == 0 ? absl::OkStatus() : absl::ResourceExhaustedError("full");
      });
  PAGODA_ASSERT_OK(deaf);
  EXPECT_THAT((*deaf)->Share(*page), StatusIs(absl::StatusCode::kResourceExhausted, "full"));
}

}  // namespace
}  // namespace pagoda
