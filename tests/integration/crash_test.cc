// Goal: whoever is killed, the survivor goes on, nothing leaks and no wrong byte is served. Method:
// real processes killed with SIGKILL at seeded moments in the middle of pushes and fetches; bytes
// and counts must come back to the level before.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <random>
#include <thread>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "storage/base/testing/status_matchers.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/synthetic_pages.h"

namespace pagoda {
namespace {

using client::Client;

constexpr kernels::PageShape kShape{8, 2, 64, 64};  // 256 KiB a page
constexpr int kPages = 64;
constexpr absl::Duration kLong = absl::Seconds(60);

std::unique_ptr<Client> ConnectTo(const std::string& target, const SyntheticDocument& document) {
  client::ClientOptions options;
  options.target = target;
  options.model = document.model();
  options.reconnect_interval = absl::Milliseconds(50);
  options.control_timeout = absl::Seconds(5);
  auto made = Client::Create(options);
  if (!made.ok() || !(*made)->WaitConnected(kLong).ok()) return nullptr;
  return *std::move(made);
}

// Pushes what the daemon lacks, all pages or until the stream ends.
absl::Status PushAll(Client& client, const SyntheticDocument& document) {
  const auto scope = client.FindScope({ScopeKind::kPrivate, ""});
  if (!scope.has_value()) return absl::UnavailableError("no scope");
  const std::vector<PageKey> keys = document.KeysFrom(scope->root);
  auto pusher = client.OpenPusher({}, nullptr);
  if (!pusher.ok()) return pusher.status();
  for (int i = 0; i < kPages; ++i) {
    if (absl::Status status = (*pusher)->Push(document.Item(*scope, keys, i)); !status.ok()) {
      return status;
    }
  }
  return (*pusher)->Flush(kLong);
}

// Looks up and fetches everything; every page that arrives must be right. Pages got, or -1.
int FetchAndCheck(Client& client, const SyntheticDocument& document) {
  const auto scope = client.FindScope({ScopeKind::kPrivate, ""});
  if (!scope.has_value()) return -1;
  const std::vector<PageKey> keys = document.KeysFrom(scope->root);
  client::LookupQuery query;
  query.chains = {{scope->id, keys}};
  const auto hit = client.Lookup(query);
  if (!hit.ok()) return -1;
  if (hit->pages.empty()) return 0;
  const auto fetched = client.Fetch(*hit, keys, {});
  client.Release(hit->lease);
  if (!fetched.ok()) return -1;
  for (size_t i = 0; i < fetched->pages.size(); ++i) {
    EXPECT_TRUE(document.Matches(fetched->pages[i], static_cast<int>(i))) << "page " << i;
  }
  return static_cast<int>(fetched->pages.size());
}

bool Idle(const v1::StatusResponse& s) {
  return s.sessions() == 0 && s.sequences() == 0 && s.leases() == 0 && s.leased_pages() == 0 &&
         s.staged_pages() == 0 && s.staged_bytes() == 0;
}

TEST(CrashTest, DaemonKilledWhilePushing) {
  std::mt19937 rng(1);
  const SyntheticDocument document(kShape, kPages, 1);
  for (int round = 0; round < 3; ++round) {
    DaemonProcess daemon({"--ladder", "raw16"});
    PAGODA_ASSERT_OK(daemon.Start());
    auto client = ConnectTo(daemon.target(), document);
    ASSERT_NE(client, nullptr);
    absl::Status pushed;
    std::thread pusher([&] { pushed = PushAll(*client, document); });
    absl::SleepFor(absl::Milliseconds(rng() % 60));
    daemon.Kill();
    pusher.join();  // Whatever it says, it comes back.
    PAGODA_ASSERT_OK(daemon.Start()) << daemon.Log();
    PAGODA_ASSERT_OK(client->WaitConnected(kLong));
    EXPECT_GE(FetchAndCheck(*client, document), 0);
    PAGODA_ASSERT_OK(PushAll(*client, document));
    EXPECT_EQ(FetchAndCheck(*client, document), kPages);
    client.reset();
    EXPECT_TRUE(daemon.Eventually(Idle)) << Level(*daemon.Status());
  }
}

TEST(CrashTest, DaemonKilledWhileFetching) {
  std::mt19937 rng(2);
  const SyntheticDocument document(kShape, kPages, 2);
  DaemonProcess daemon({"--ladder", "raw16"});
  PAGODA_ASSERT_OK(daemon.Start());
  auto client = ConnectTo(daemon.target(), document);
  ASSERT_NE(client, nullptr);
  PAGODA_ASSERT_OK(PushAll(*client, document));
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(daemon.Eventually([](const v1::StatusResponse& s) {
      return s.persist_queue_pages() == 0 && s.unflushed_pages() == 0;
    }));
    std::thread fetcher([&] {
      for (int i = 0; i < 50; ++i) {
        if (FetchAndCheck(*client, document) < 0) return;
      }
    });
    absl::SleepFor(absl::Milliseconds(5 + rng() % 100));
    daemon.Kill();
    fetcher.join();
    PAGODA_ASSERT_OK(daemon.Start()) << daemon.Log();
    PAGODA_ASSERT_OK(client->WaitConnected(kLong));
    // What was flushed before the kill is there, from SSD, exact.
    EXPECT_EQ(FetchAndCheck(*client, document), kPages) << "round " << round;
  }
}

// A worker as a process of its own, which does `work` until it is killed.
pid_t ForkWorker(const std::string& self_argument, const std::string& target) {
  return Spawn({BinaryPath("crash_test"), self_argument, target}, "/dev/null");
}

TEST(CrashTest, WorkerKilledWhilePushingAndWhileFetching) {
  std::mt19937 rng(3);
  const SyntheticDocument document(kShape, kPages, 3);
  DaemonProcess daemon({"--ladder", "raw16"});
  PAGODA_ASSERT_OK(daemon.Start());
  ASSERT_TRUE(daemon.Eventually(Idle));
  auto survivor = ConnectTo(daemon.target(), document);
  ASSERT_NE(survivor, nullptr);
  for (const std::string work : {"--push-forever", "--push-forever", "--fetch-forever"}) {
    const pid_t worker = ForkWorker(work, daemon.target());
    ASSERT_GT(worker, 0);
    EXPECT_TRUE(daemon.Eventually([](const auto& s) { return s.sessions() >= 2; }, kLong));
    absl::SleepFor(absl::Milliseconds(20 + rng() % 100));
    kill(worker, SIGKILL);
    WaitFor(worker, kLong);
    EXPECT_TRUE(daemon.Eventually([](const v1::StatusResponse& s) {
      return s.sessions() == 1 && s.leases() == 0 && s.leased_pages() == 0 &&
             s.staged_pages() == 0 && s.staged_bytes() == 0;
    })) << Level(*daemon.Status());
    PAGODA_ASSERT_OK(PushAll(*survivor, document));
    EXPECT_EQ(FetchAndCheck(*survivor, document), kPages);
  }
  // All pages gone: bytes are back at nothing.
  survivor.reset();
  ASSERT_TRUE(daemon.Eventually(Idle)) << Level(*daemon.Status());
  grpc::ClientContext context;
  v1::EvictResponse evicted;
  ASSERT_TRUE(daemon.admin().Evict(&context, v1::EvictRequest(), &evicted).ok());
  EXPECT_TRUE(daemon.Eventually([](const v1::StatusResponse& s) {
    uint64_t bytes = s.pages();
    for (const v1::TierStatus& tier : s.tiers()) bytes += tier.used_bytes();
    return bytes == 0;
  })) << Level(*daemon.Status());
  EXPECT_EQ(daemon.Terminate(kLong), 0) << daemon.Log();
}

TEST(CrashTest, TerminationKeepsEverything) {
  const SyntheticDocument document(kShape, kPages, 4);
  DaemonProcess daemon({"--ladder", "raw16"});
  PAGODA_ASSERT_OK(daemon.Start());
  {
    auto client = ConnectTo(daemon.target(), document);
    ASSERT_NE(client, nullptr);
    PAGODA_ASSERT_OK(PushAll(*client, document));
  }
  EXPECT_EQ(daemon.Terminate(kLong), 0) << daemon.Log();
  PAGODA_ASSERT_OK(daemon.Start());
  auto client = ConnectTo(daemon.target(), document);
  ASSERT_NE(client, nullptr);
  EXPECT_EQ(FetchAndCheck(*client, document), kPages);
}

[[noreturn]] void WorkForever(const std::string& work, const std::string& target) {
  // A document of its own, so that every push has bytes to send.
  for (uint32_t seed = 100;; ++seed) {
    const SyntheticDocument document(kShape, kPages, work == "--push-forever" ? seed : 3);
    auto client = ConnectTo(target, document);
    if (client == nullptr) continue;
    for (int i = 0; i < 20; ++i) {
      if (work == "--push-forever") {
        (void)PushAll(*client, document);
        break;
      }
      FetchAndCheck(*client, document);
    }
  }
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  if (argc == 3 &&
      (std::string(argv[1]) == "--push-forever" || std::string(argv[1]) == "--fetch-forever")) {
    pagoda::WorkForever(argv[1], argv[2]);
  }
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
