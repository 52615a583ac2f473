// Goal: connections are taken again as soon as the process can, whatever made accept() fail.
// Method: real sockets; this process runs out of descriptors.
#include "cache-server/acceptor.h"

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "cache-server/listen_address.h"
#include "storage/base/log.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/base/testing/temp_dir.h"

namespace pagoda {
namespace {

using absl::StatusCode;

ListenAddress AddressOf(const std::string& text) { return *ParseListenAddress(text); }

UniqueFd TcpSocket() { return UniqueFd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)); }

int Connect(const UniqueFd& fd, uint16_t port) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(port);
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to));
}

// What an acceptor did.
struct Seen {
  absl::Mutex mutex;
  std::vector<UniqueFd> taken ABSL_GUARDED_BY(mutex);
  std::vector<std::string> refused ABSL_GUARDED_BY(mutex);

  bool Await(size_t taken_min, size_t refused_min) {
    const auto enough = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex) {
      return taken.size() >= taken_min && refused.size() >= refused_min;
    };
    const absl::MutexLock lock(&mutex);
    return mutex.AwaitWithTimeout(absl::Condition(&enough), absl::Seconds(30));
  }
};

std::unique_ptr<Acceptor> StartAcceptor(ListenAddress& address, Seen& seen) {
  absl::StatusOr<std::vector<UniqueFd>> sockets = Listen(address, 0600);
  PAGODA_EXPECT_OK(sockets.status());
  auto acceptor = Acceptor::Start(
      *std::move(sockets),
      [&seen](int, UniqueFd connection) {
        const absl::MutexLock lock(&seen.mutex);
        seen.taken.push_back(std::move(connection));
      },
      [&seen](absl::string_view reason) {
        const absl::MutexLock lock(&seen.mutex);
        seen.refused.emplace_back(reason);
      });
  PAGODA_EXPECT_OK(acceptor.status());
  return *std::move(acceptor);
}

// Lets the process open `more` descriptors and no other, until it goes.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(int more) {
    // UndefinedBehaviorSanitizer needs descriptors for a look at a type that it does not know yet.
    LogInfo("descriptors_run_out");
    LogWarning("descriptors_run_out");
    ::getrlimit(RLIMIT_NOFILE, &before_);
    std::vector<UniqueFd> next;  // the lowest free ones, which need not be the last
    for (int i = 0; i <= more; ++i) next.emplace_back(::dup(0));
    rlimit limit = before_;
    limit.rlim_cur = static_cast<rlim_t>(next.back().get());
    ::setrlimit(RLIMIT_NOFILE, &limit);
  }
  ~DescriptorLimit() { ::setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_{};
};

TEST(AcceptorTest, TakesConnectionsUntilItIsStopped) {
  ListenAddress address = AddressOf("127.0.0.1:0");
  Seen seen;
  const auto acceptor = StartAcceptor(address, seen);
  std::vector<UniqueFd> clients(3);
  for (UniqueFd& client : clients) {
    client = TcpSocket();
    EXPECT_EQ(Connect(client, address.port), 0);
  }
  EXPECT_TRUE(seen.Await(3, 0));
  acceptor->Stop();
  acceptor->Stop();
  EXPECT_NE(Connect(TcpSocket(), address.port), 0);
}

TEST(AcceptorTest, OutOfDescriptorsAndBack) {
  ListenAddress address = AddressOf("127.0.0.1:0");
  Seen seen;
  const auto acceptor = StartAcceptor(address, seen);
  const UniqueFd first = TcpSocket();
  const UniqueFd second = TcpSocket();
  {
    const DescriptorLimit limit(1);
    EXPECT_EQ(Connect(first, address.port), 0);  // the kernel's queue answers
    EXPECT_EQ(Connect(second, address.port), 0);
    EXPECT_TRUE(seen.Await(1, 3));  // tries again and again, and does not spin
    const absl::MutexLock lock(&seen.mutex);
    EXPECT_EQ(seen.taken.size(), 1u);
    for (const std::string& reason : seen.refused) EXPECT_EQ(reason, "descriptors");
  }
  EXPECT_TRUE(seen.Await(2, 3));
}

TEST(AcceptorTest, StopsWhileOutOfDescriptors) {
  ListenAddress address = AddressOf("127.0.0.1:0");
  Seen seen;
  const auto acceptor = StartAcceptor(address, seen);
  const UniqueFd client = TcpSocket();
  const DescriptorLimit limit(0);
  EXPECT_EQ(Connect(client, address.port), 0);
  EXPECT_TRUE(seen.Await(0, 1));
  acceptor->Stop();
}

TEST(ListenTest, APortIsTakenOnce) {
  ListenAddress address = AddressOf("localhost:0");
  const auto sockets = Listen(address, 0600);
  PAGODA_ASSERT_OK(sockets.status());
  EXPECT_NE(address.port, 0);
  ListenAddress again = address;
  EXPECT_THAT(Listen(again, 0600), StatusIs(StatusCode::kUnavailable, "in use; stop the other"));
  EXPECT_THAT(CheckCanListen(address), StatusIs(StatusCode::kUnavailable, address.ToString()));
}

TEST(ListenTest, NotOursOrUnknown) {
  ListenAddress not_ours = AddressOf("192.0.2.1:0");
  EXPECT_THAT(Listen(not_ours, 0600), StatusIs(StatusCode::kUnavailable, "192.0.2.1:0"));
  ListenAddress unknown = AddressOf("no.such.host.invalid:0");
  EXPECT_THAT(Listen(unknown, 0600), StatusIs(StatusCode::kUnavailable, "cannot resolve"));
}

TEST(ListenTest, UnixSocketFile) {
  const TempDir dir;
  const std::string path = dir.path() + "/s";
  ListenAddress address = AddressOf("unix:" + path);
  {
    const auto sockets = Listen(address, 0600);
    PAGODA_ASSERT_OK(sockets.status());
    struct stat info {};
    ASSERT_EQ(::stat(path.c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 0777, 0600u);
    EXPECT_THAT(CheckCanListen(address), StatusIs(StatusCode::kUnavailable, "in use"));
  }
  // The file outlived its owner, as after a kill.
  EXPECT_TRUE(std::filesystem::exists(path));
  PAGODA_EXPECT_OK(Listen(address, 0666).status());
  std::filesystem::remove(path);
  std::ofstream(path) << "mine";
  EXPECT_THAT(Listen(address, 0600), StatusIs(StatusCode::kUnavailable, "not a socket"));
  ListenAddress nowhere = AddressOf("unix:" + dir.path() + "/no/such");
  EXPECT_THAT(Listen(nowhere, 0600), StatusIs(StatusCode::kUnavailable, "No such file"));
}

}  // namespace
}  // namespace pagoda
