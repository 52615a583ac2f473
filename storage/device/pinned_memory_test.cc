// Goal: memory is made by many threads without a change of its bytes, registered once and when it
// is needed, and plain with a reason where it cannot be. Method: maps whose resident pages the
// system counts; a device that refuses.
#include "storage/device/pinned_memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <atomic>
#include <thread>

#include "storage/base/testing/status_matchers.h"
#include "storage/device/host_runtime.h"
#include "storage/device/pretouch.h"
#include "storage/device/testing/host_arena.h"

namespace pagoda {
namespace {

constexpr int64_t kPage = 4096;

int64_t ResidentPages(const HostArena& arena) {
  std::vector<unsigned char> pages(static_cast<size_t>(arena.bytes() / kPage));
  PAGODA_CHECK(mincore(arena.data(), static_cast<size_t>(arena.bytes()), pages.data()) == 0);
  int64_t count = 0;
  for (const unsigned char page : pages) count += page & 1;
  return count;
}

MutableByteSpan All(const HostArena& arena) {
  return {arena.data(), static_cast<size_t>(arena.bytes())};
}

TEST(PretouchTest, MakesEveryPageAndChangesNone) {
  for (const int threads : {0, 1, 3, 100}) {
    const HostArena a(37 * kPage);
    const HostArena b(kPage);
    a.Fill(5 * kPage, 1, 0x42);
    EXPECT_EQ(ResidentPages(a), 1);
    PAGODA_ASSERT_OK(
        Pretouch({All(a), All(b), {}}, {.threads = threads, .slice_bytes = 3 * kPage}));
    EXPECT_EQ(ResidentPages(a), 37);
    EXPECT_EQ(ResidentPages(b), 1);
    EXPECT_TRUE(a.Is(5 * kPage, 1, 0x42));
    EXPECT_TRUE(a.Is(6 * kPage, 31 * kPage, 0));
  }
  PAGODA_EXPECT_OK(Pretouch({}, {}));
}

TEST(PretouchTest, AMapThatIsGoneIsAStatus) {
  std::byte* gone = HostArena(4 * kPage).data();
  EXPECT_THAT(Pretouch({{gone, 4 * kPage}}, {.threads = 1, .slice_bytes = kPage}),
              StatusIs(absl::StatusCode::kUnavailable, "of 4096 bytes"));
}

TEST(PretouchTest, HugePagesOrAReason) {
  const HostArena arena(int64_t{4} << 20);
  const absl::Status advised = AdviseHugePages(All(arena));
  EXPECT_TRUE(advised.ok() || absl::IsUnavailable(advised)) << advised;
  const auto fd = HugeMemfd("test", int64_t{2} << 20);
  if (fd.ok()) {
    EXPECT_EQ(fcntl(fd->get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW), 0);
  } else {
    EXPECT_THAT(fd, StatusIs(absl::StatusCode::kUnavailable));
  }
  EXPECT_THAT(HugeMemfd("test", kPage), StatusIs(absl::StatusCode::kInvalidArgument));
  // More than any machine has reserved.
  EXPECT_THAT(HugeMemfd("test", int64_t{1} << 50), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(PinnedMemoryTest, RegistersOnceAndWhenAsked) {
  HostRuntime runtime;
  const HostArena a(8 * kPage);
  const HostArena b(8 * kPage);
  PinnedMemory pinned(runtime, 8 * kPage);
  EXPECT_EQ(pinned.report().pinned_bytes, 0);
  EXPECT_TRUE(pinned.Pin(All(a)));
  EXPECT_TRUE(pinned.Pin(All(a)));
  EXPECT_EQ(pinned.report().pinned_bytes, 8 * kPage);
  EXPECT_FALSE(pinned.Pin(All(b)));  // the budget
  EXPECT_THAT(pinned.report().refusal, StatusIs(absl::StatusCode::kResourceExhausted,
                                                "32768 bytes are pinned, at most 32768"));
  pinned.Forget(a.data());
  pinned.Forget(a.data());
  EXPECT_FALSE(pinned.Pin(All(b)));  // its answer stays until it is forgotten
  pinned.Forget(b.data());
  EXPECT_EQ(pinned.report().plain_bytes, 0);
  EXPECT_TRUE(pinned.Pin(All(b)));
}

TEST(PinnedMemoryTest, ARefusalIsPlainMemory) {
  HostRuntime runtime;
  const HostArena a(kPage);
  PinnedMemory pinned(runtime, INT64_MAX / 2);
  runtime.FailNext(HostCall::kRegister, absl::ResourceExhaustedError("memlock"));
  EXPECT_FALSE(pinned.Pin(All(a)));
  EXPECT_FALSE(pinned.Pin(All(a)));
  EXPECT_EQ(pinned.report().pinned_bytes, 0);
  EXPECT_EQ(pinned.report().plain_bytes, kPage);
  EXPECT_EQ(pinned.report().refusal.message(), "memlock");
}

TEST(PinnedMemoryTest, ManyThreadsRegisterAChunkOnce) {
  HostRuntime runtime;
  const HostArena arena(16 * kPage);
  PinnedMemory pinned(runtime, 16 * kPage);
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int64_t at = 0; at < arena.bytes(); at += kPage) {
        good += pinned.Pin({arena.data() + at, kPage}) ? 1 : 0;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(good.load(), 16);  // whoever registered a chunk had it
  EXPECT_LE(good.load(), 4 * 16);
  EXPECT_EQ(pinned.report().pinned_bytes, 16 * kPage);
}

}  // namespace
}  // namespace pagoda
