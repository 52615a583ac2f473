// Goal: device memory is handed out once, comes back after its fences, never shows another scope's
// bytes, and a fault of the device costs a status. Method: the host as a device, stepped by hand,
// with misuse fatal but where it is meant.
#include "storage/device/device_pool.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/base/testing/status_matchers.h"
#include "storage/device/host_runtime.h"
#include "storage/device/testing/host_arena.h"

namespace pagoda {
namespace {

constexpr int64_t kChunkBytes = int64_t{2} << 20;
const ScopeId kA = ScopeIdOf({ScopeKind::kPrivate, "a"});
const ScopeId kB = ScopeIdOf({ScopeKind::kPrivate, "b"});
const ScopeId kC = ScopeIdOf({ScopeKind::kPrivate, "c"});

class DevicePoolTest : public ::testing::Test {
 protected:
  void Open(bool abort_on_misuse = true) {
    pool_.reset();
    runtime_ = std::make_unique<HostRuntime>(HostRuntimeOptions{
        .schedule = HostRuntimeOptions::Schedule::kManual, .abort_on_misuse = abort_on_misuse});
    auto pool = DevicePool::Create(*runtime_,
                                   {.capacity_bytes = 2 * kChunkBytes, .chunk_bytes = kChunkBytes});
    PAGODA_ASSERT_OK(pool);
    pool_ = *pool;
  }
  void SetUp() override { Open(); }
  void TearDown() override { PAGODA_EXPECT_OK(pool_->CheckAccounting()); }

  std::unique_ptr<HostRuntime> runtime_;
  std::shared_ptr<DevicePool> pool_;
};

TEST_F(DevicePoolTest, ExactSizesAndAFullPool) {
  std::vector<DeviceSlab> slabs;
  for (int i = 0; i < 2; ++i) slabs.push_back(*pool_->Allocate(kA, kChunkBytes));
  EXPECT_EQ(pool_->usage().used_bytes, 2 * kChunkBytes);
  EXPECT_THAT(pool_->Allocate(kA, 1),
              StatusIs(absl::StatusCode::kResourceExhausted, "asked 4096 bytes, 0 of 4194304"));
  EXPECT_THAT(pool_->Allocate(kA, kChunkBytes + 1), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(pool_->Allocate(kA, 0), StatusIs(absl::StatusCode::kInvalidArgument));
  slabs.clear();
  EXPECT_EQ(pool_->usage().reserved_bytes, 0);
  EXPECT_EQ(pool_->Allocate(kA, 4097)->bytes(), 8192);
}

TEST_F(DevicePoolTest, AScopeNeverSeesAnothersBytes) {
  for (const ScopeId& scope : {kA, kB}) {
    std::vector<DeviceSlab> slabs;
    for (int i = 0; i < 2; ++i) {
      slabs.push_back(*pool_->Allocate(scope, kChunkBytes));
      for (int64_t at = 0; at < kChunkBytes; at += 512) {
        ASSERT_EQ(slabs.back().data()[at], std::byte{0});
      }
      std::memset(slabs.back().data(), 0xab, kChunkBytes);
    }
  }
}

// A process that got the chunk's handle may have passed it on to one that lives, and still writes.
TEST_F(DevicePoolTest, MemoryThatOthersHadAHandleOfGoesToNoOtherScope) {
  HostRuntime reader({.schedule = HostRuntimeOptions::Schedule::kManual});
  std::vector<std::unique_ptr<DeviceBuffer>> mapped;
  const TimelineId worker = pool_->AddTimeline();
  for (int i = 0; i < 2; ++i) {
    auto slab = *pool_->Allocate(kA, kChunkBytes);
    auto handle = pool_->Export(slab);
    PAGODA_ASSERT_OK(handle);
    pool_->AddImporter(slab, worker, handle->kind);
    mapped.push_back(*reader.Import(*std::move(handle)));
    for (auto& earlier : mapped) std::memset(earlier->data(), 0xab, kChunkBytes);
  }
  pool_->EndTimeline(worker);
  const int64_t used = runtime_->used_bytes();
  // Without memory for it the chunk stays what it is.
  runtime_->FailNext(HostCall::kAllocate, absl::ResourceExhaustedError("no memory"));
  EXPECT_THAT(pool_->Allocate(kB, 4096), StatusIs(absl::StatusCode::kAborted, "no memory"));
  EXPECT_EQ(pool_->Allocate(kA, 4096)->data()[0], std::byte{0xab});
  std::vector<DeviceSlab> slabs;
  for (int i = 0; i < 2; ++i) slabs.push_back(*pool_->Allocate(kB, kChunkBytes));
  for (auto& buffer : mapped) std::memset(buffer->data(), 0xcd, kChunkBytes);
  for (const DeviceSlab& slab : slabs) {
    for (int64_t at = 0; at < kChunkBytes; at += 512) ASSERT_EQ(slab.data()[at], std::byte{0});
  }
  EXPECT_EQ(runtime_->used_bytes(), used);
}

TEST_F(DevicePoolTest, ComesBackAfterItsFences) {
  const TimelineId stream = pool_->AddTimeline();
  auto slab = *pool_->Allocate(kA, kChunkBytes);
  slab.KeepUntil({stream, 2});
  slab.KeepUntil({stream, 1});  // the later counts
  slab.Reset();
  pool_->Advance(stream, 1);
  EXPECT_EQ(pool_->usage().limbo_bytes, kChunkBytes);
  pool_->Advance(stream, 2);
  EXPECT_EQ(pool_->usage().limbo_bytes, 0);
}

TEST_F(DevicePoolTest, ASlabFreedBeforeItsCopyFinishedIsFound) {
  Open(/*abort_on_misuse=*/false);
  HostArena host(4096);
  auto stream = *runtime_->NewStream();
  const TimelineId timeline = pool_->AddTimeline();
  // Right: a fence holds the slab until the copy is done.
  auto slab = *pool_->Allocate(kA, 4096);
  PAGODA_ASSERT_OK(
      stream->CopyBatch(CopyDirection::kHostToDevice, {{slab.data(), host.data(), 4096}}));
  slab.KeepUntil({timeline, 1});
  slab.Reset();
  EXPECT_THAT(runtime_->misuses(), ::testing::IsEmpty());
  runtime_->RunUntilIdle();
  pool_->Advance(timeline, 1);
  EXPECT_THAT(runtime_->misuses(), ::testing::IsEmpty());
  // Wrong: none.
  slab = *pool_->Allocate(kA, 4096);
  PAGODA_ASSERT_OK(
      stream->CopyBatch(CopyDirection::kHostToDevice, {{slab.data(), host.data(), 4096}}));
  slab.Reset();
  EXPECT_THAT(
      runtime_->misuses(),
      ::testing::ElementsAre(::testing::HasSubstr("noted as free while an unfinished h2d")));
  // Wrong: a copy into what is nobody's.
  auto gone = *pool_->Allocate(kA, 4096);
  std::byte* data = gone.data();
  gone.Reset();
  EXPECT_THAT(stream->CopyBatch(CopyDirection::kHostToDevice, {{data, host.data(), 4096}}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  runtime_->RunUntilIdle();
}

TEST_F(DevicePoolTest, FaultsOfTheDevice) {
  auto slab = *pool_->Allocate(kA, 4096);
  slab.Reset();
  auto other = *pool_->Allocate(kA, 8192);  // the other chunk stays A's
  auto first = pool_->Allocate(kB, 4096);
  PAGODA_ASSERT_OK(first);
  first->Reset();
  other.Reset();
  runtime_->FailNext(HostCall::kCopy, absl::InternalError("injected"));
  EXPECT_THAT(pool_->Allocate(kC, kChunkBytes), StatusIs(absl::StatusCode::kInternal, "injected"));
  auto both = pool_->Allocate(kB, kChunkBytes);
  PAGODA_ASSERT_OK(both);
  PAGODA_EXPECT_OK(pool_->Allocate(kB, kChunkBytes));  // nothing was lost

  HostRuntime small({.memory_bytes = kChunkBytes});
  EXPECT_THAT(
      DevicePool::Create(small, {.capacity_bytes = 2 * kChunkBytes, .chunk_bytes = kChunkBytes}),
      StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(small.used_bytes(), 0);
  EXPECT_THAT(DevicePool::Create(small, {.capacity_bytes = kChunkBytes, .chunk_bytes = 4096}),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace pagoda
