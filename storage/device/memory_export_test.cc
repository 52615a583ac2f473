// Goal: nothing but a whole packet of ours brings memory into a process, and a grant never points
// beyond it. Method: all truncations, all flipped bits of the part that has a meaning, descriptors
// that are missing, short or not sealed; faults of the device on either end.
#include "storage/device/memory_export.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include <utility>

#include "storage/base/check.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/device/host_runtime.h"

namespace pagoda {
namespace {

constexpr int64_t kChunkBytes = int64_t{2} << 20;
const ScopeId kA = ScopeIdOf({ScopeKind::kPrivate, "a"});
const ScopeId kB = ScopeIdOf({ScopeKind::kPrivate, "b"});

UniqueFd Memfd(int64_t bytes, int seals) {
  UniqueFd fd(memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  PAGODA_CHECK(ftruncate(fd.get(), bytes) == 0);
  PAGODA_CHECK(seals == 0 || fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

UniqueFd Dup(const UniqueFd& fd) { return UniqueFd(fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

class MemoryExportTest : public ::testing::Test {
 protected:
  MemoryExportTest() {
    int fds[2];
    PAGODA_CHECK(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    daemon_socket_ = UniqueFd(fds[0]);
    worker_socket_ = UniqueFd(fds[1]);
    pool_ =
        *DevicePool::Create(daemon_, {.capacity_bytes = kChunkBytes, .chunk_bytes = kChunkBytes});
    exported_ = *DeviceExport::Open(pool_, daemon_socket_.get());
    imported_ = *DeviceImport::Open(worker_, worker_socket_.get(), absl::Seconds(60));
  }
  absl::Status ReceiveOne() {
    absl::StatusOr<Packet> packet =
        ReceivePacket(worker_socket_.get(), kExportPacketBytes, absl::Seconds(60));
    return packet.ok() ? imported_->Receive(*std::move(packet)) : packet.status();
  }

  HostRuntime daemon_{{.schedule = HostRuntimeOptions::Schedule::kManual}};
  HostRuntime worker_{{.schedule = HostRuntimeOptions::Schedule::kManual}};
  UniqueFd daemon_socket_;
  UniqueFd worker_socket_;
  std::shared_ptr<DevicePool> pool_;
  std::unique_ptr<DeviceExport> exported_;
  std::unique_ptr<DeviceImport> imported_;
};

TEST_F(MemoryExportTest, AChunkIsSentOnceAndAGrantHoldsUntilItIsFinished) {
  auto slab = *pool_->Allocate(kA, 4096);
  auto other = *pool_->Allocate(kA, 4096);
  const DeviceGrant first = *exported_->Share(slab);
  const DeviceGrant second = *exported_->Share(other);
  EXPECT_EQ(first.memory_id, second.memory_id);
  EXPECT_THAT(imported_->Find(first), StatusIs(absl::StatusCode::kNotFound));
  PAGODA_ASSERT_OK(ReceiveOne());
  std::memset(other.data(), 0x77, 4096);
  EXPECT_EQ((*imported_->Find(second))[4095], std::byte{0x77});  // the same memory
  slab.Reset();
  other.Reset();
  auto stream = *worker_.NewStream();
  PAGODA_ASSERT_OK(imported_->Finish(*stream, first.ticket));
  EXPECT_TRUE(exported_->Poll());
  EXPECT_EQ(pool_->usage().limbo_bytes, 8192);
  worker_.RunUntilIdle();
  EXPECT_TRUE(exported_->Poll());
  EXPECT_EQ(pool_->usage().limbo_bytes, 4096);
  PAGODA_ASSERT_OK(imported_->Finish(*stream, second.ticket));
  worker_.RunUntilIdle();
  EXPECT_TRUE(exported_->Poll());
  EXPECT_EQ(pool_->usage().limbo_bytes, 0);
  // The worker is this process and lives on: its chunk stays with the scope.
  exported_.reset();
  EXPECT_FALSE(pool_->Allocate(kB, 4096).ok());
  PAGODA_EXPECT_OK(pool_->Allocate(kA, 8192));
}

// Where nobody can tell whether the worker lives, its slabs go with its connection: it must see
// that after its last read.
TEST_F(MemoryExportTest, AWorkerThatIsCutOffIsToldBeforeItsSlabsAreUsedAgain) {
  const UniqueFd nobodys(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));  // without a peer's pid
  auto exported = *DeviceExport::Open(pool_, nobodys.get(),
                                      [](absl::string_view, int) { return absl::OkStatus(); });
  const uint64_t* lost = exported->flags().word(static_cast<int>(ExportWord::kLost));
  auto slab = *pool_->Allocate(kA, 4096);
  PAGODA_ASSERT_OK(exported->Share(slab));
  slab.Reset();
  EXPECT_TRUE(exported->Poll());
  EXPECT_EQ(LoadFlag(lost), 0u);
  EXPECT_EQ(pool_->usage().limbo_bytes, 4096);
  ASSERT_EQ(shutdown(nobodys.get(), SHUT_RD), 0);
  EXPECT_FALSE(exported->Poll());
  EXPECT_EQ(LoadFlag(lost), 1u);
  EXPECT_EQ(pool_->usage().limbo_bytes, 0);
}

TEST_F(MemoryExportTest, AWorkerThatWasGivenNothingLeavesNothing) {
  const size_t before = pool_->timeline_count();
  const auto open = [this](absl::Status sent) {
    return *DeviceExport::Open(
        pool_, daemon_socket_.get(),
        [sent, first = true](absl::string_view, int) mutable {  // the flag page comes through
          return std::exchange(first, false) ? absl::OkStatus() : sent;
        });
  };
  open(absl::OkStatus());
  auto slab = *pool_->Allocate(kA, 4096);
  daemon_.FailNext(HostCall::kExport, absl::UnimplementedError("no descriptors"));
  EXPECT_FALSE(open(absl::OkStatus())->Share(slab).ok());
  EXPECT_FALSE(open(absl::ResourceExhaustedError("full"))->Share(slab).ok());
  EXPECT_EQ(pool_->timeline_count(), before);
  slab.Reset();
  slab = *pool_->Allocate(kB, 4096);  // nobody maps the chunk
  // Here it may have got the packet.
  auto cut = open(absl::UnavailableError("cut"));
  EXPECT_FALSE(cut->Share(slab).ok());
  EXPECT_EQ(cut->memory_count(), 1u);
  slab.Reset();
  cut.reset();
  EXPECT_FALSE(pool_->Allocate(kA, 4096).ok());
}

TEST_F(MemoryExportTest, GrantsThatPointOutsideAreRefused) {
  auto slab = *pool_->Allocate(kA, 4096);
  const DeviceGrant good = *exported_->Share(slab);
  PAGODA_ASSERT_OK(ReceiveOne());
  PAGODA_EXPECT_OK(imported_->Find({good.memory_id, kChunkBytes - 1, 1, 1}));
  for (const DeviceGrant& bad :
       {DeviceGrant{good.memory_id, kChunkBytes, 1, 1}, DeviceGrant{good.memory_id, -1, 1, 1},
        DeviceGrant{good.memory_id, 0, 0, 1}, DeviceGrant{good.memory_id, 1, kChunkBytes, 1},
        DeviceGrant{good.memory_id, 1, INT64_MAX, 1}}) {
    EXPECT_THAT(imported_->Find(bad), StatusIs(absl::StatusCode::kInvalidArgument));
  }
}

TEST_F(MemoryExportTest, FaultsOnEitherEnd) {
  auto slab = *pool_->Allocate(kA, 4096);
  daemon_.FailNext(HostCall::kExport, absl::UnimplementedError("no descriptors"));
  EXPECT_THAT(exported_->Share(slab), StatusIs(absl::StatusCode::kUnimplemented));
  PAGODA_ASSERT_OK(exported_->Share(slab));  // another try sends it
  worker_.FailNext(HostCall::kImport, absl::UnavailableError("cannot map"));
  EXPECT_THAT(ReceiveOne(), StatusIs(absl::StatusCode::kUnavailable, "cannot map"));
  worker_socket_ = UniqueFd();
  EXPECT_THAT(ReceiveOne(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(MemoryExportTest, MemoryOfAnotherGpuIsRefused) {
  HostRuntimeOptions options;
  options.uuid.bytes[15] = 9;
  HostRuntime other(options);
  auto buffer = *other.Allocate(4096, DeviceSharing::kExportable);
  EXPECT_THAT(worker_.Import(*other.Export(*buffer)),
              StatusIs(absl::StatusCode::kInvalidArgument, "GPU-70616"));
}

TEST_F(MemoryExportTest, OnlyWholePacketsBringMemory) {
  ExportedMemory memory;
  memory.memory_id = 3;
  memory.handle.kind = MemoryHandle::Kind::kMemfd;
  memory.handle.uuid = worker_.info().uuid;
  memory.handle.bytes = 8192;
  const std::string good = EncodeExport(memory);
  ASSERT_EQ(good.size(), kExportPacketBytes);
  const UniqueFd fd = Memfd(8192, F_SEAL_SHRINK | F_SEAL_GROW);
  for (size_t size = 0; size <= good.size() + 1; ++size) {
    std::string cut = good;
    cut.resize(size);
    EXPECT_EQ(DecodeExport({cut, Dup(fd)}).ok(), size == good.size()) << size;
  }
  for (size_t bit = 0; bit < 48 * 8; ++bit) {  // the legacy handle has no meaning here
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    auto decoded = DecodeExport({bad, Dup(fd)});
    if (!decoded.ok()) continue;
    // What decodes is another number, GPU or size: only a shorter one of this GPU is mapped.
    const bool same_gpu = decoded->handle.uuid == worker_.info().uuid;
    const bool fits = decoded->handle.bytes <= 8192;
    const bool known = decoded->handle.kind == MemoryHandle::Kind::kMemfd;
    EXPECT_EQ(worker_.Import(std::move(decoded->handle)).ok(), same_gpu && fits && known) << bit;
  }
  EXPECT_THAT(DecodeExport({good, UniqueFd()}), StatusIs(absl::StatusCode::kInvalidArgument));
  auto unsealed = DecodeExport({good, Memfd(8192, 0)});
  PAGODA_ASSERT_OK(unsealed);
  EXPECT_THAT(worker_.Import(std::move(unsealed->handle)),
              StatusIs(absl::StatusCode::kInvalidArgument, "sealed"));
}

TEST(FlagPageTest, OnlyASealedPageIsMapped) {
  auto made = FlagPage::Create();
  PAGODA_ASSERT_OK(made);
  auto mapped = FlagPage::Map(UniqueFd(fcntl(made->fd(), F_DUPFD_CLOEXEC, 0)));
  PAGODA_ASSERT_OK(mapped);
  StoreFlag(made->word(511), 4);
  EXPECT_EQ(LoadFlag(mapped->word(511)), 4u);
  EXPECT_NE(ftruncate(made->fd(), 0), 0);
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  EXPECT_THAT(FlagPage::Map(UniqueFd()), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(FlagPage::Map(Memfd(2048, seals)), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(FlagPage::Map(Memfd(4096, F_SEAL_GROW)),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace pagoda
