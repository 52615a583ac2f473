// Goal: packets and descriptors arrive whole or not at all, and nothing blocks beyond its deadline.
// Method: socket pairs and a listening socket; each failure once.
#include "storage/base/packet_socket.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include "storage/base/check.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

struct Pair {
  Pair() {
    int fds[2];
    PAGODA_CHECK(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) == 0);
    a = UniqueFd(fds[0]);
    b = UniqueFd(fds[1]);
  }
  UniqueFd a;
  UniqueFd b;
};

TEST(PacketSocketTest, PacketsAndDescriptorsArriveTogether) {
  Pair pair;
  int pipe_fds[2];
  ASSERT_EQ(::pipe(pipe_fds), 0);
  const UniqueFd out(pipe_fds[1]);
  {
    const UniqueFd in(pipe_fds[0]);
    PAGODA_ASSERT_OK(TrySendPacket(pair.a.get(), "one"));
    PAGODA_ASSERT_OK(TrySendPacket(pair.a.get(), "two", in.get()));
  }
  absl::StatusOr<Packet> packet = ReceivePacket(pair.b.get(), 64, absl::Seconds(1));
  PAGODA_ASSERT_OK(packet);
  EXPECT_EQ(packet->bytes, "one");
  EXPECT_FALSE(packet->fd.valid());
  packet = ReceivePacket(pair.b.get(), 64, absl::Seconds(1));
  PAGODA_ASSERT_OK(packet);
  EXPECT_EQ(packet->bytes, "two");
  ASSERT_TRUE(packet->fd.valid());
  EXPECT_NE(::fcntl(packet->fd.get(), F_GETFD) & FD_CLOEXEC, 0);
  ASSERT_EQ(::write(out.get(), "x", 1), 1);
  char byte = 0;
  EXPECT_EQ(::read(packet->fd.get(), &byte, 1), 1);  // it is the pipe's other end
  EXPECT_EQ(byte, 'x');
}

TEST(PacketSocketTest, NothingBlocks) {
  Pair pair;
  const auto none = TryReceivePacket(pair.b.get(), 64);
  PAGODA_ASSERT_OK(none);
  EXPECT_FALSE(none->has_value());
  EXPECT_THAT(ReceivePacket(pair.b.get(), 64, absl::Milliseconds(20)),
              StatusIs(absl::StatusCode::kDeadlineExceeded));
  absl::Status status;
  for (int i = 0; i < 10000 && status.ok(); ++i) {
    status = TrySendPacket(pair.a.get(), std::string(1000, 'x'));
  }
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kResourceExhausted, "does not read"));
}

TEST(PacketSocketTest, EndsAreSeen) {
  Pair pair;
  PAGODA_ASSERT_OK(TrySendPacket(pair.a.get(), std::string(65, 'x')));
  EXPECT_THAT(TryReceivePacket(pair.b.get(), 64),
              StatusIs(absl::StatusCode::kResourceExhausted, "more than 64"));
  pair.a = UniqueFd();
  const absl::StatusOr<Packet> end = ReceivePacket(pair.b.get(), 64, absl::Seconds(1));
  PAGODA_ASSERT_OK(end);
  EXPECT_TRUE(end->bytes.empty());
  EXPECT_THAT(TrySendPacket(pair.b.get(), "x"), StatusIs(absl::StatusCode::kUnavailable));
}

TEST(PacketSocketTest, WrongPathsAreNamed) {
  EXPECT_THAT(ConnectPackets("/nowhere/shm.sock"),
              StatusIs(absl::StatusCode::kUnavailable, "/nowhere/shm.sock"));
  EXPECT_THAT(ConnectPackets(std::string(200, 'x')),
              StatusIs(absl::StatusCode::kInvalidArgument, "200 bytes"));
}

}  // namespace
}  // namespace pagoda
