// Goal: a daemon that is killed under busy clients costs them misses: no crash, no wrong byte, and
// all of them are back on shared memory within five seconds. Method: a real pagodad, killed by
// SIGKILL again and again; eight clients that push, fetch, map and check every byte meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "absl/time/clock.h"
#include "client/client.h"
#include "storage/base/clock.h"
#include "storage/base/testing/status_matchers.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/synthetic_pages.h"

namespace pagoda {
namespace {

constexpr kernels::PageShape kShape{8, 4, 64, 64};
constexpr int kClients = 8;
constexpr int kPages = 6;
constexpr int kKills = 3;
constexpr absl::Duration kBack = absl::Seconds(5);

// One client's life, on a thread of its own.
class Busy {
 public:
  Busy(const std::string& target, uint32_t seed) : document_(kShape, kPages, seed) {
    client::ClientOptions options;
    options.target = target;
    options.model = document_.model();
    options.reconnect_interval = absl::Milliseconds(100);
    options.connect_timeout = absl::Seconds(2);
    options.control_timeout = absl::Seconds(2);
    auto made = client::Client::Create(options);
    PAGODA_CHECK(made.ok());
    client_ = *std::move(made);
    thread_ = std::thread([this] { Run(); });
  }
  ~Busy() {
    stopping_ = true;
    thread_.join();
  }

  int64_t wrong() const { return wrong_; }
  int64_t rounds() const { return rounds_; }
  // Pages that came, or went, through shared memory.
  int64_t shm_pages() const {
    const client::ClientStats stats = client_->stats();
    return stats.shm_pages + stats.mapped_pages;
  }
  int64_t shm_pushed() const { return client_->stats().shm_pushed_pages; }

 private:
  void Run() {
    while (!stopping_) {
      if (!Round().ok()) absl::SleepFor(absl::Milliseconds(5));
      ++rounds_;
    }
  }

  absl::Status Round() {
    const auto scope = client_->FindScope({ScopeKind::kPrivate, ""});
    if (!scope.has_value()) return absl::UnavailableError("not connected yet");
    const std::vector<PageKey> keys = document_.KeysFrom(scope->root);
    client::LookupQuery query;
    query.chains = {{scope->id, keys}};
    query.precision_min = Precision::kQ2;
    query.fidelity_min = Precision::kQ2;
    auto hit = client_->Lookup(query);
    if (!hit.ok()) return hit.status();
    if (hit->pages.size() < keys.size()) {
      client_->Release(hit->lease);
      return Push(*scope, keys);
    }
    const bool map = rounds_ % 3 == 0;
    const absl::Status status = map ? CheckMapped(*hit, keys) : CheckFetched(*hit, keys);
    client_->Release(hit->lease);
    return status;
  }

  absl::Status Push(const client::ScopeInfo& scope, absl::Span<const PageKey> keys) {
    auto pusher = client_->OpenPusher({}, nullptr);
    if (!pusher.ok()) return pusher.status();
    for (int i = 0; i < kPages; ++i) {
      const absl::Status pushed = (*pusher)->Push(document_.Item(scope, keys, i));
      if (!pushed.ok()) return pushed;
    }
    return (*pusher)->Flush(absl::Seconds(5));
  }

  absl::Status CheckFetched(const client::LookupResult& hit, absl::Span<const PageKey> keys) {
    const auto fetched = client_->Fetch(hit, keys, {});
    if (!fetched.ok()) return fetched.status();
    for (size_t i = 0; i < fetched->pages.size(); ++i) {
      if (!document_.Matches(fetched->pages[i], static_cast<int>(i))) ++wrong_;
    }
    return fetched->status;
  }

  absl::Status CheckMapped(const client::LookupResult& hit, absl::Span<const PageKey> keys) {
    const auto mapped = client_->Map(hit, keys, {});
    if (!mapped.ok()) return mapped.status();
    std::vector<client::FetchedPage> pages;
    for (size_t i = 0; i < (*mapped)->size(); ++i) {
      const auto page = (*mapped)->Page(i);
      if (!page.ok()) return page.status();
      client::FetchedPage& copy = pages.emplace_back();
      copy.header = page->header;
      for (size_t s = 0; s < page->segments.size(); ++s) {
        copy.segments.emplace_back(page->header.segments[s].stored_bytes());
        std::memcpy(copy.segments.back().data(), page->segments[s].data(),
                    page->segments[s].size());
      }
    }
    if (!(*mapped)->StillValid()) return absl::AbortedError("given back meanwhile");
    for (size_t i = 0; i < pages.size(); ++i) {
      if (!document_.Matches(pages[i], static_cast<int>(i))) ++wrong_;
    }
    return (*mapped)->status();
  }

  const SyntheticDocument document_;
  std::unique_ptr<client::Client> client_;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> wrong_{0};
  std::atomic<int64_t> rounds_{0};
  std::thread thread_;
};

TEST(BusyRestartTest, EightClientsComeBack) {
  DaemonProcess daemon;
  PAGODA_ASSERT_OK(daemon.Start());
  std::vector<std::unique_ptr<Busy>> clients;
  for (uint32_t i = 0; i < kClients; ++i) {
    clients.push_back(std::make_unique<Busy>(daemon.target(), i + 1));
  }
  const auto all_on_shm = [&](const std::vector<int64_t>& before) {
    const absl::Duration end = SystemClock().Monotonic() + kBack;
    while (SystemClock().Monotonic() < end) {
      int back = 0;
      for (size_t i = 0; i < clients.size(); ++i) back += clients[i]->shm_pages() > before[i];
      if (back == kClients) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  };
  EXPECT_TRUE(all_on_shm(std::vector<int64_t>(kClients, 0)));
  for (int kill = 0; kill < kKills; ++kill) {
    daemon.Kill();
    absl::SleepFor(absl::Milliseconds(200));
    std::vector<int64_t> before;
    for (const auto& client : clients) before.push_back(client->shm_pages());
    PAGODA_ASSERT_OK(daemon.Start());
    EXPECT_TRUE(all_on_shm(before)) << "kill " << kill;
  }
  for (const auto& client : clients) {
    EXPECT_EQ(client->wrong(), 0);
    EXPECT_GT(client->rounds(), 10);
    EXPECT_GT(client->shm_pushed(), 0);
  }
  EXPECT_EQ(daemon.Terminate(absl::Seconds(20)), 0);
}

}  // namespace
}  // namespace pagoda
