// Goal: another process reads device memory by a handle, and its memory is used again when it says
// so or when it is dead, never before. Method: a worker process over a Unix socket, on whatever
// device is linked; killed in the middle.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/check.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/base/testing/temp_dir.h"
#include "storage/device/memory_export.h"
#include "storage/device/testing/host_arena.h"
#include "storage/device/testing/test_device.h"

extern char** environ;

namespace pagoda {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
constexpr int64_t kChunkBytes = int64_t{2} << 20;
constexpr int64_t kSlabBytes = 64 << 10;
const ScopeId kA = ScopeIdOf({ScopeKind::kPrivate, "a"});
const ScopeId kB = ScopeIdOf({ScopeKind::kPrivate, "b"});

// A process and its connection.
class Worker {
 public:
  Worker() {
    const std::string path = folder_.path() + "/device.sock";
    const UniqueFd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path.copy(address.sun_path, sizeof(address.sun_path) - 1);
    PAGODA_CHECK(bind(listener.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    PAGODA_CHECK(listen(listener.get(), 1) == 0);
    // Beside this test: its name ends in worker instead of test.
    std::string program = std::filesystem::read_symlink("/proc/self/exe");
    program.replace(program.rfind("test"), 4, "worker");
    std::string path_argument = path;
    char* arguments[] = {program.data(), path_argument.data(), nullptr};
    PAGODA_CHECK(posix_spawn(&pid_, program.c_str(), nullptr, nullptr, arguments, environ) == 0);
    pollfd polled{listener.get(), POLLIN, 0};
    PAGODA_CHECK(poll(&polled, 1, /*timeout=*/60'000) == 1);
    socket_ = UniqueFd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    PAGODA_CHECK(socket_.valid());
  }
  ~Worker() {
    if (pid_ > 0) Kill();
  }
  void Kill() {
    kill(pid_, SIGKILL);
    waitpid(std::exchange(pid_, 0), nullptr, 0);
  }
  std::string Ask(absl::string_view verb, const DeviceGrant& grant) const {
    const absl::Status sent =
        TrySendPacket(socket_.get(), absl::StrCat(verb, " ", grant.memory_id, " ", grant.offset,
                                                  " ", grant.bytes, " ", grant.ticket));
    if (!sent.ok()) return sent.ToString();
    const absl::StatusOr<Packet> answer = ReceivePacket(socket_.get(), 4096, kLong);
    return answer.ok() ? answer->bytes : answer.status().ToString();
  }
  int socket_fd() const { return socket_.get(); }

 private:
  TempDir folder_;
  UniqueFd socket_;
  pid_t pid_ = 0;
};

class MemoryExportDeviceTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (TestDeviceCount() == 0) GTEST_SKIP() << "no GPU";
    device_ = *OpenTestDevice();
    registration_ = *device_->RegisterHost(host_.data(), host_.bytes());
    stream_ = *device_->NewStream();
    event_ = *device_->NewEvent();
    pool_ =
        *DevicePool::Create(*device_, {.capacity_bytes = kChunkBytes, .chunk_bytes = kChunkBytes});
  }
  DeviceSlab Filled(const ScopeId& scope, uint8_t value) {
    DeviceSlab slab = *pool_->Allocate(scope, kSlabBytes);
    host_.Fill(0, kSlabBytes, value);
    PAGODA_CHECK(
        stream_->CopyBatch(CopyDirection::kHostToDevice, {{slab.data(), host_.data(), kSlabBytes}})
            .ok());
    PAGODA_CHECK(stream_->Record(*event_).ok());
    PAGODA_CHECK(device_->Await(*event_, kLong).ok());
    return slab;
  }
  static std::string Sum(int value) { return absl::StrCat(value * kSlabBytes); }

  HostArena host_{kSlabBytes};
  std::unique_ptr<DeviceRuntime> device_;
  std::unique_ptr<HostRegistration> registration_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceEvent> event_;
  std::shared_ptr<DevicePool> pool_;
};

TEST_F(MemoryExportDeviceTest, AWorkerReadsAndGivesBack) {
  const Worker worker;
  auto exported = DeviceExport::Open(pool_, worker.socket_fd());
  PAGODA_ASSERT_OK(exported);
  for (int value = 1; value <= 5; ++value) {
    DeviceSlab slab = Filled(kA, static_cast<uint8_t>(value));
    const auto grant = (*exported)->Share(slab);
    PAGODA_ASSERT_OK(grant);
    slab.Reset();
    EXPECT_EQ(pool_->usage().limbo_bytes, kSlabBytes);
    EXPECT_EQ(worker.Ask("read", *grant), "sum " + Sum(value));
    EXPECT_TRUE((*exported)->Poll());
    EXPECT_EQ(pool_->usage().limbo_bytes, 0);
  }
  EXPECT_NE(worker.Ask("read", {77, 0, 1, 1}).find("NOT_FOUND"), std::string::npos);
}

TEST_F(MemoryExportDeviceTest, ADeadWorkerHoldsNothing) {
  Worker worker;
  auto exported = *DeviceExport::Open(pool_, worker.socket_fd());
  DeviceSlab slab = Filled(kA, 3);
  const auto grant = exported->Share(slab);
  PAGODA_ASSERT_OK(grant);
  EXPECT_EQ(worker.Ask("hold", *grant), "held " + Sum(3));
  slab.Reset();
  EXPECT_TRUE(exported->Poll());
  EXPECT_EQ(pool_->usage().limbo_bytes, kSlabBytes);
  // Neither its slab nor, for another scope, its chunk.
  EXPECT_THAT(pool_->Allocate(kB, kSlabBytes), StatusIs(absl::StatusCode::kResourceExhausted));
  worker.Kill();
  const absl::Time end = absl::Now() + kLong;
  while (exported->Poll() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_FALSE(exported->Poll());
  EXPECT_EQ(pool_->usage().limbo_bytes, 0);
  EXPECT_THAT(exported->Share(slab = *pool_->Allocate(kA, kSlabBytes)),
              StatusIs(absl::StatusCode::kUnavailable));
  slab.Reset();
  // The next worker, of another scope, sees zeros where the first one's bytes were.
  const Worker next;
  auto other = *DeviceExport::Open(pool_, next.socket_fd());
  DeviceSlab clean = *pool_->Allocate(kB, kSlabBytes);
  const auto again = other->Share(clean);
  PAGODA_ASSERT_OK(again);
  EXPECT_EQ(next.Ask("read", *again), "sum 0");
}

}  // namespace
}  // namespace pagoda
