// Goal: a daemon that runs out of file descriptors or memory hurts nobody for longer than that
// lasts. Method: a real daemon whose limit on descriptors is lowered while it runs; another one in
// a memory cgroup that is too small for it.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "storage/base/testing/status_matchers.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/synthetic_pages.h"

namespace pagoda {
namespace {

constexpr kernels::PageShape kShape{8, 2, 64, 64};  // 256 KiB a page
constexpr absl::Duration kLong = absl::Seconds(60);

std::unique_ptr<client::Client> Connect(const std::string& target,
                                        const SyntheticDocument& document,
                                        absl::Duration patience) {
  client::ClientOptions options;
  options.target = target;
  options.model = document.model();
  options.reconnect_interval = absl::Milliseconds(50);
  options.control_timeout = absl::Seconds(5);
  auto made = client::Client::Create(options);
  if (!made.ok() || !(*made)->WaitConnected(patience).ok()) return nullptr;
  return *std::move(made);
}

// Pushes the pages [begin, end) as far as the daemon takes them; how many it acknowledged.
int Push(client::Client& client, const SyntheticDocument& document, int begin, int end) {
  const auto scope = client.FindScope({ScopeKind::kPrivate, ""});
  if (!scope.has_value()) return 0;
  const std::vector<PageKey> keys = document.KeysFrom(scope->root);
  std::atomic<int> stored{0};
  auto pusher = client.OpenPusher({}, [&](const PageKey&, const auto& how) { stored += how.ok(); });
  if (!pusher.ok()) return 0;
  for (int i = begin; i < end; ++i) {
    if (!(*pusher)->Push(document.Item(*scope, keys, i)).ok()) break;
  }
  (*pusher)->Flush(kLong).IgnoreError();
  pusher->reset();
  return stored;
}

// Pages found and right; a wrong one is a failure.
int Check(client::Client& client, const SyntheticDocument& document) {
  const auto scope = client.FindScope({ScopeKind::kPrivate, ""});
  if (!scope.has_value()) return 0;
  const std::vector<PageKey> keys = document.KeysFrom(scope->root);
  client::LookupQuery query;
  query.chains = {{scope->id, keys}};
  const auto hit = client.Lookup(query);
  if (!hit.ok() || hit->pages.empty()) return 0;
  const auto fetched = client.Fetch(*hit, keys, {});
  client.Release(hit->lease);
  if (!fetched.ok()) return 0;
  for (size_t i = 0; i < fetched->pages.size(); ++i) {
    EXPECT_TRUE(document.Matches(fetched->pages[i], static_cast<int>(i))) << i;
  }
  return static_cast<int>(fetched->pages.size());
}

int OpenDescriptors(pid_t pid) {
  const std::filesystem::directory_iterator files(absl::StrCat("/proc/", pid, "/fd"));
  return static_cast<int>(std::distance(begin(files), end(files)));
}

void LimitDescriptors(pid_t pid, rlim_t most) {
  rlimit limit{};
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, nullptr, &limit), 0);
  limit.rlim_cur = most == 0 ? limit.rlim_max : most;
  ASSERT_EQ(prlimit(pid, RLIMIT_NOFILE, &limit, nullptr), 0);
}

// Connects as often as asked without saying a word.
std::vector<int> Knock(const std::string& socket_path, int count) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  socket_path.copy(address.sun_path, sizeof(address.sun_path) - 1);
  std::vector<int> sockets;
  for (int i = 0; i < count; ++i) {
    sockets.push_back(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    (void)connect(sockets.back(), reinterpret_cast<sockaddr*>(&address), sizeof(address));
  }
  return sockets;
}

TEST(ExhaustionTest, OutOfFileDescriptors) {
  constexpr int kPages = 32;
  const SyntheticDocument document(kShape, kPages, 1);
  DaemonProcess daemon({"--ladder", "raw16"});
  PAGODA_ASSERT_OK(daemon.Start());
  const auto client = Connect(daemon.target(), document, kLong);
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(Push(*client, document, 0, kPages / 2), kPages / 2);
  ASSERT_TRUE(daemon.Eventually(
      [](const auto& s) { return s.persist_queue_pages() == 0 && s.unflushed_pages() == 0; }));

  LimitDescriptors(daemon.pid(), static_cast<rlim_t>(OpenDescriptors(daemon.pid()) + 4));
  const std::vector<int> sockets = Knock(daemon.target().substr(5), 32);
  // Who is connected goes on; pages that cannot go to SSD now stay in memory.
  EXPECT_EQ(Check(*client, document), kPages / 2);
  EXPECT_EQ(Push(*client, document, kPages / 2, kPages), kPages / 2);
  EXPECT_EQ(Check(*client, document), kPages);
  EXPECT_EQ(Connect(daemon.target(), document, absl::Seconds(2)), nullptr);
  EXPECT_LT(daemon.AwaitExit(absl::ZeroDuration()), 0) << daemon.Log();
  EXPECT_NE(daemon.Log().find("Too many open files"), std::string::npos) << daemon.Log();

  LimitDescriptors(daemon.pid(), 0);
  for (const int socket : sockets) close(socket);
  EXPECT_EQ(Check(*client, document), kPages);
  // New workers come in again, and the pages that waited reach the SSD.
  const auto later = Connect(daemon.target(), document, kLong);
  ASSERT_NE(later, nullptr) << daemon.Log();
  EXPECT_EQ(Check(*later, document), kPages);
  EXPECT_NE(daemon.Log().find("connections_accepted_again"), std::string::npos) << daemon.Log();
  const auto status = daemon.Status();
  PAGODA_ASSERT_OK(status.status());
  EXPECT_GT(status->counters().at(R"(pagoda_connections_refused_total{reason="descriptors"})"), 0u);
  EXPECT_TRUE(daemon.Eventually([](const auto& s) {
    return s.persist_queue_pages() == 0 && s.unflushed_pages() == 0;
  })) << daemon.Log();
  EXPECT_EQ(daemon.Terminate(kLong), 0) << daemon.Log();
  PAGODA_ASSERT_OK(daemon.Start());
  PAGODA_ASSERT_OK(client->WaitConnected(kLong));
  EXPECT_EQ(Check(*client, document), kPages) << daemon.Log();
}

// A memory cgroup of version 1 or 2 that we may make; empty where there is none.
class MemoryCgroup {
 public:
  explicit MemoryCgroup(int64_t bytes) {
    for (const auto& [root, file] : {std::pair{"/sys/fs/cgroup/memory", "memory.limit_in_bytes"},
                                     std::pair{"/sys/fs/cgroup", "memory.max"}}) {
      const std::string path = absl::StrCat(root, "/pagoda-test-", getpid());
      std::error_code error;
      if (!std::filesystem::create_directory(path, error)) continue;
      path_ = path;
      if (Write(file, absl::StrCat(bytes))) return;
      Remove();
    }
  }
  ~MemoryCgroup() { Remove(); }
  bool present() const { return !path_.empty(); }
  bool Take(pid_t pid) const { return Write("cgroup.procs", absl::StrCat(pid)); }

 private:
  bool Write(const std::string& file, const std::string& text) const {
    std::ofstream out(path_ + "/" + file);
    out << text << std::flush;
    return out.good();
  }
  void Remove() {
    if (!path_.empty()) rmdir(path_.c_str());
    path_.clear();
  }
  std::string path_;
};

TEST(ExhaustionTest, OutOfMemoryInACgroup) {
  constexpr int kPages = 800;  // 200 MiB
  MemoryCgroup cgroup(int64_t{96} << 20);
  if (!cgroup.present()) {
    GTEST_SKIP() << "SKIPPED: no memory cgroup can be made here (needs root and the controller)";
  }
  const SyntheticDocument document(kShape, kPages, 2);
  DaemonProcess daemon({"--ladder", "raw16", "--host-capacity", "1GiB"});
  PAGODA_ASSERT_OK(daemon.Start());
  const auto client = Connect(daemon.target(), document, kLong);
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(Push(*client, document, 0, 16), 16);
  ASSERT_TRUE(daemon.Eventually(
      [](const auto& s) { return s.persist_queue_pages() == 0 && s.unflushed_pages() == 0; }));
  if (!cgroup.Take(daemon.pid())) GTEST_SKIP() << "SKIPPED: cannot move a process to a cgroup";
  Push(*client, document, 16, kPages);  // comes back, whatever it says
  EXPECT_EQ(daemon.AwaitExit(kLong), 128 + SIGKILL) << daemon.Log();
  // Outside of it, what was flushed before is there, exact.
  PAGODA_ASSERT_OK(daemon.Start());
  PAGODA_ASSERT_OK(client->WaitConnected(kLong));
  EXPECT_GE(Check(*client, document), 16);
}

}  // namespace
}  // namespace pagoda
