// Goal: whatever a daemon says over shared memory, the client hands out no byte that was not the
// page's, comes to an end in time, and lives. Method: a daemon of our own at the other end of the
// socket, with memory of its own, that is wrong in one way at a time.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <thread>

#include "client/shm_channel.h"
#include "client/shm_fetch.h"
#include "kernels/page_layout.h"
#include "proto/shm_protocol.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/packet_socket.h"
#include "storage/base/slab_generation.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/base/testing/temp_dir.h"

namespace pagoda::client {
namespace {

constexpr int64_t kChunkBytes = 1 << 20;
constexpr int64_t kMemfdBytes = kChunkBytes + 4096;
constexpr int64_t kHeaderAt = 0;
constexpr int64_t kSegmentAt = 64 << 10;
constexpr uint64_t kMemfd = 7;

// Answers one client; `locate` and `open` change what it says.
class FakeDaemon {
 public:
  FakeDaemon() : path_(dir_.path() + "/shm") {
    memfd_ = UniqueFd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    PAGODA_CHECK(::ftruncate(memfd_.get(), kMemfdBytes) == 0);
    data_ = static_cast<char*>(
        ::mmap(nullptr, kMemfdBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memfd_.get(), 0));
    PAGODA_CHECK(data_ != MAP_FAILED);
    listener_ = UniqueFd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    PAGODA_CHECK(
        ::bind(listener_.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0);
    PAGODA_CHECK(::listen(listener_.get(), 1) == 0);
    MakePage();
  }
  ~FakeDaemon() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    if (thread_.joinable()) thread_.join();
    ::munmap(data_, kMemfdBytes);
  }

  void Run() {
    thread_ = std::thread([this] { Serve(); });
  }
  void Seal() { PAGODA_CHECK(::fcntl(memfd_.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0); }
  uint64_t* generation(int64_t offset) {
    return reinterpret_cast<uint64_t*>(data_ + GenerationOffset(kChunkBytes, offset));
  }
  const std::string& path() const { return path_; }
  const PageHeader& header() const { return header_; }

  // Of every answer; the page's slabs, and how often an answer that is not the last one comes
  // first.
  std::vector<shm::Slab> slabs = {{kMemfd, kHeaderAt, 0}, {kMemfd, kSegmentAt, 0}};
  shm::Memory memory = {kMemfdBytes, kChunkBytes};
  int empty_answers = 0;
  uint32_t tag_step = 0;
  bool silent = false;

 private:
  void MakePage() {
    header_.identity.bytes[0] = 1;
    header_.record.key.bytes[0] = 2;
    header_.record.head_count = 1;
    header_.layer_count = 1;
    header_.head_dim = 64;
    header_.page_tokens = 64;
    kernels::AppendPlanes(Precision::kRaw16, {1, 1, 64, 64}, header_);
    PAGODA_CHECK(header_.segments.size() == 1);
    const std::string bytes = EncodePageHeader(header_);
    std::memcpy(data_ + kHeaderAt, bytes.data(), bytes.size());
    std::memset(data_ + kSegmentAt, 'p', header_.segments[0].length);
  }

  void Serve() {
    const UniqueFd client(::accept(listener_.get(), nullptr, nullptr));
    while (client.valid()) {
      const absl::StatusOr<Packet> packet = ReceivePacket(client.get(), 256, absl::Seconds(10));
      if (!packet.ok() || packet->bytes.empty()) return;
      shm::Request request;
      if (packet->bytes.size() != sizeof(request) || silent) continue;  // the hello
      std::memcpy(&request, packet->bytes.data(), sizeof(request));
      shm::Reply reply;
      reply.op = request.op;
      reply.tag = request.tag + tag_step;
      if (request.op == shm::Op::kLocate) {
        for (int i = 0; i < empty_answers; ++i) {
          while (absl::IsResourceExhausted(Send(client, reply, "", -1))) {
            ::usleep(1000);
          }
        }
        reply.pages = 1;
      }
      reply.last = 1;
      std::string body;
      if (request.op == shm::Op::kLocate) {
        const shm::Page page{static_cast<uint32_t>(slabs.size()), 2};
        body.append(reinterpret_cast<const char*>(&page), sizeof(page));
        body.append(reinterpret_cast<const char*>(slabs.data()), slabs.size() * sizeof(slabs[0]));
      } else {
        body.append(reinterpret_cast<const char*>(&memory), sizeof(memory));
      }
      if (!Send(client, reply, body, request.op == shm::Op::kOpen ? memfd_.get() : -1).ok()) return;
    }
  }
  static absl::Status Send(const UniqueFd& to, const shm::Reply& reply, const std::string& body,
                           int fd) {
    std::string bytes(reinterpret_cast<const char*>(&reply), sizeof(reply));
    return TrySendPacket(to.get(), bytes + body, fd);
  }

  TempDir dir_;
  const std::string path_;
  UniqueFd memfd_;
  char* data_ = nullptr;
  UniqueFd listener_;
  PageHeader header_;
  std::thread thread_;
};

struct Outcome {
  FetchResult result;
  bool broken = false;
};

Outcome FetchFrom(FakeDaemon& daemon, absl::Duration timeout = absl::Seconds(5)) {
  daemon.Run();
  auto channel = ShmChannel::Connect(daemon.path(), std::string(16, 's'));
  PAGODA_CHECK(channel.ok());
  Outcome outcome;
  const RecordKey record = daemon.header().record;
  absl::StatusOr<std::unique_ptr<ShmPages>> pages =
      (*channel)->Locate({.lease = LeaseId(),
                          .lease_until = SystemClock().Monotonic() + absl::Minutes(1),
                          .page_begin = 0,
                          .records = absl::MakeConstSpan(&record, 1),
                          .identity = daemon.header().identity,
                          .timeout = timeout});
  outcome.result.status = pages.status();
  if (pages.ok()) {
    auto view = std::make_unique<ShmView>(*std::move(pages), 0, 1);
    outcome.result = FetchFromShm(std::move(view), {})->Wait();
  }
  outcome.broken = (*channel)->broken();
  return outcome;
}

TEST(ShmDaemonTest, AnHonestOneIsBelieved) {
  FakeDaemon daemon;
  daemon.Seal();
  const Outcome outcome = FetchFrom(daemon);
  PAGODA_EXPECT_OK(outcome.result.status);
  ASSERT_EQ(outcome.result.pages.size(), 1u);
  EXPECT_EQ(outcome.result.pages[0].header, daemon.header());
  EXPECT_EQ(outcome.result.pages[0].segments[0].span()[0], std::byte{'p'});
}

TEST(ShmDaemonTest, SlabsThatWereGivenBackAreNoPage) {
  for (const int64_t slab : {kHeaderAt, kSegmentAt}) {
    FakeDaemon daemon;
    daemon.Seal();
    *daemon.generation(slab) = 1;  // told of at 0
    const Outcome outcome = FetchFrom(daemon);
    EXPECT_THAT(outcome.result.status, StatusIs(absl::StatusCode::kAborted, "given back"));
    EXPECT_TRUE(outcome.result.pages.empty());
    EXPECT_FALSE(outcome.broken);
  }
}

TEST(ShmDaemonTest, WrongMemoryIsRefused) {
  const auto status_of = [](const std::function<void(FakeDaemon&)>& change) {
    FakeDaemon daemon;
    change(daemon);
    const Outcome outcome = FetchFrom(daemon);
    EXPECT_TRUE(outcome.result.pages.empty());
    return outcome.result.status;
  };
  const auto kLoss = absl::StatusCode::kDataLoss;
  EXPECT_THAT(status_of([](FakeDaemon&) {}), StatusIs(kLoss, "shm: memory"));  // may shrink
  const auto sealed = [&](const std::function<void(FakeDaemon&)>& change) {
    return status_of([&](FakeDaemon& daemon) {
      daemon.Seal();
      change(daemon);
    });
  };
  EXPECT_THAT(sealed([](FakeDaemon& d) { d.memory.memfd_bytes += 4096; }), StatusIs(kLoss));
  EXPECT_THAT(sealed([](FakeDaemon& d) { d.memory.chunk_bytes = kMemfdBytes; }), StatusIs(kLoss));
  EXPECT_THAT(sealed([](FakeDaemon& d) { d.memory.memfd_bytes = ~uint64_t{0}; }), StatusIs(kLoss));
  EXPECT_THAT(sealed([](FakeDaemon& d) { d.slabs[1].offset = kChunkBytes; }),
              StatusIs(kLoss, "beyond its memory"));
  EXPECT_THAT(sealed([](FakeDaemon& d) { d.slabs[1].offset = kChunkBytes - 4096; }),
              StatusIs(kLoss, "beyond its memory"));
  EXPECT_THAT(sealed([](FakeDaemon& d) { d.slabs[0].offset = 1; }), StatusIs(kLoss));
  EXPECT_THAT(sealed([](FakeDaemon& d) { d.slabs[0].offset = 128 << 10; }),  // zeros
              StatusIs(kLoss));
  EXPECT_THAT(sealed([](FakeDaemon& d) { d.slabs.pop_back(); }), StatusIs(kLoss, "1 slabs"));
  EXPECT_THAT(sealed([](FakeDaemon& d) { d.slabs.clear(); }), StatusIs(kLoss, "does not fit"));
}

TEST(ShmDaemonTest, AnswersToSomethingElseBreakIt) {
  FakeDaemon daemon;
  daemon.Seal();
  daemon.tag_step = 1;
  const Outcome outcome = FetchFrom(daemon);
  EXPECT_THAT(outcome.result.status, StatusIs(absl::StatusCode::kDataLoss, "something else"));
  EXPECT_TRUE(outcome.broken);
}

// Neither silence nor endless talk holds a fetch beyond its time; the channel is good afterwards.
TEST(ShmDaemonTest, TheTimeIsKept) {
  for (const bool silent : {true, false}) {
    FakeDaemon daemon;
    daemon.Seal();
    daemon.silent = silent;
    daemon.empty_answers = silent ? 0 : 1000000;
    const Outcome outcome = FetchFrom(daemon, absl::Milliseconds(100));
    EXPECT_THAT(outcome.result.status, StatusIs(absl::StatusCode::kDeadlineExceeded));
    EXPECT_FALSE(outcome.broken);
  }
}

}  // namespace
}  // namespace pagoda::client
