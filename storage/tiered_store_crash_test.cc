// Goal: kill -9 at any moment loses at most the last pages; what is left is exact, whole and
// counted. Method: a child process pushes, re-encodes and removes pages, and is killed after a
// seeded delay; a second child opens the folder, compares every byte and says so by its exit code.
// Children, so that the parent of the next fork never has RocksDB's threads.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <random>

#include "storage/testing/store_fixture.h"
#include "storage/tiered_store.h"

namespace pagoda {
namespace {

constexpr int kRounds = 6;
constexpr int kChains = 8;
constexpr int kPages = 8;

TieredStoreOptions Options(const std::string& path) {
  TieredStoreOptions options;
  options.host.capacity_bytes = 16 << 20;
  options.ssd.path = path;
  options.ssd.capacity_bytes = 64 << 20;
  options.ssd.flush_period = absl::Milliseconds(15);
  options.ssd.index_buffer_bytes = 64 << 10;  // RocksDB flushes by itself too
  options.ssd.extent_file_bytes = 1 << 20;
  return options;
}

std::vector<TestPage> Chain(uint32_t number) {
  TestPage like;
  like.segment_bytes = 20000;
  return TestChain(kPages, 100 * number + 1, like);
}

// Never returns: it works until it is killed.
void Work(const std::string& path, uint32_t seed) {
  auto store = TieredStore::Open(Options(path));
  if (!store.ok()) _exit(2);
  std::mt19937 rng(seed);
  while (true) {
    const std::vector<TestPage> chain = Chain(rng() % kChains);
    for (TestPage page : chain) {
      page.precision = Precision::kRaw16;
      auto staged = (*store)->Stage(page.scope(), HeaderOf(page));
      if (!staged.ok()) break;
      Fill(page, *staged);
      if (!(*store)->Commit(*std::move(staged)).ok()) break;
      (*store)->PersistAsync(page.record(), page.scope()).IgnoreError();
      const HostPagePtr host = (*store)->GetResident(page.record(), page.scope());
      if (rng() % 3 != 0 || host == nullptr || host->precision() != Precision::kRaw16) continue;
      page.precision = rng() % 2 == 0 ? Precision::kQ8 : Precision::kQ4;
      auto encoded = (*store)->Stage(page.scope(), HeaderOf(page));
      if (!encoded.ok()) continue;
      Fill(page, *encoded);
      (*store)->ReplaceEncoding(host, *std::move(encoded)).IgnoreError();
    }
    if (rng() % 4 == 0) {
      const TestPage& victim = chain[rng() % chain.size()];
      (*store)->Remove(victim.record(), victim.scope()).IgnoreError();
    }
  }
}

// The number of the first thing that is wrong, or 0.
int Verify(const std::string& path, int& page_count) {
  auto opened = TieredStore::Open(Options(path));
  if (!opened.ok()) return 10;
  TieredStore& store = **opened;
  int64_t bytes = 0;
  store.ForEachPage([&](const PageInfo& page) { bytes += page.ssd_bytes, ++page_count; });
  const StoreStats stats = store.Stats();
  if (stats.ssd.used_bytes != bytes || stats.ssd.page_bytes != bytes) return 11;
  int found = 0;
  for (uint32_t number = 0; number < kChains; ++number) {
    for (TestPage page : Chain(number)) {
      absl::Notification done;
      absl::StatusOr<HostPagePtr> loaded = absl::UnknownError("no answer");
      store.LoadAsync(page.record(), page.scope(), [&](absl::StatusOr<HostPagePtr> answer) {
        loaded = std::move(answer);
        done.Notify();
      });
      done.WaitForNotification();
      if (loaded.status().code() == absl::StatusCode::kNotFound) continue;
      if (!loaded.ok()) return 12;
      page.precision = (*loaded)->precision();
      if (!IsExactly(**loaded, page)) return 13;
      ++found;
    }
  }
  return found == page_count ? 0 : 14;
}

TEST(TieredStoreCrashTest, KilledAtAnyMomentNothingWrongIsLeft) {
  const TempFolder folder;
  std::mt19937 rng(17);
  int rounds_with_pages = 0;
  for (int round = 0; round < kRounds; ++round) {
    const auto seed = static_cast<uint32_t>(rng());
    const auto delay = absl::Milliseconds(60 + rng() % 250);
    const pid_t worker = fork();
    ASSERT_GE(worker, 0);
    if (worker == 0) Work(folder.Sub("ssd"), seed);
    absl::SleepFor(delay);
    ASSERT_EQ(kill(worker, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(worker, &status, 0), worker);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the worker ended by itself with " << WEXITSTATUS(status);

    const pid_t judge = fork();
    ASSERT_GE(judge, 0);
    if (judge == 0) {
      int page_count = 0;
      const int wrong = Verify(folder.Sub("ssd"), page_count);
      _exit(wrong != 0 ? wrong : (page_count > 0 ? 1 : 0));
    }
    ASSERT_EQ(waitpid(judge, &status, 0), judge);
    ASSERT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
    EXPECT_LE(WEXITSTATUS(status), 1) << "round " << round << " seed " << seed;
    if (WEXITSTATUS(status) == 1) ++rounds_with_pages;
  }
  EXPECT_GT(rounds_with_pages, 0);  // else nothing was tested
}

}  // namespace
}  // namespace pagoda
