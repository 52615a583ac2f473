// Goal: ratios are medians of pairs, JSON has the promised keys and only those that were measured,
// and the parts that need no real disk work. Method: reports made by hand; small real measures in a
// temporary folder, judged by plausibility, never by speed.
#include "client/cli/storage_bench.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "client/cli/disk_probe.h"
#include "client/cli/store_pages.h"
#include "client/cli/temp_folder.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const BenchProgress kSilent = [](const std::string&) {};

TEST(StorageBenchTest, RatiosAreOfPairs) {
  // The second round ran on a busy machine, the third was disturbed on one side only.
  const RatePairs pairs{{70, 35, 7}, {100, 50, 100}};
  EXPECT_DOUBLE_EQ(pairs.ratio(), 0.7);
  const BusyResult busy{{1e-3, 2e-3, 1e-3}, {1.5e-3, 3e-3, 9e-3}, 2e8};
  EXPECT_DOUBLE_EQ(busy.ratio(), 1.5);
}

TEST(StorageBenchTest, JsonHasEveryKeyAndOmitsWhatWasNotMeasured) {
  StorageBenchReport report;
  report.folder = "/disk";
  EXPECT_EQ(StorageBenchJson(report).size(), 1u);
  report.disk = DiskResult{"fio-3.33", true, 2, {{70}, {100}}, {{60}, {100}}};
  report.restart = RestartResult{1000, 1.5, 200};
  report.directory = DirectoryResult{1000, 180.5};
  report.lookup = LookupResult{1000, 5e6};
  report.busy = BusyResult{{1e-3}, {1.5e-3}, 2e8};
  const Json json = StorageBenchJson(report);
  EXPECT_DOUBLE_EQ(json["ssd_read_ratio_fio"], 0.7);
  EXPECT_DOUBLE_EQ(json["ssd_write_ratio_fio"], 0.6);
  EXPECT_DOUBLE_EQ(json["restart_seconds"], 1.5);
  EXPECT_EQ(json["restart_rss_bytes"], 200);
  EXPECT_DOUBLE_EQ(json["directory_bytes_per_page"], 180.5);
  EXPECT_DOUBLE_EQ(json["lookup_keys_per_second"], 5e6);
  EXPECT_DOUBLE_EQ(json["host_p99_ratio_busy"], 1.5);
  const std::string text = StorageBenchText(report);
  for (const char* part : {"0.70", "0.60", "fio-3.33", "180 B", "5.0 M", "1.50", "direct"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST(StorageBenchTest, ProbeReadsAndWritesAndLeavesNothing) {
  const auto folder = TempFolder::Make("pagoda-probe-");
  PAGODA_ASSERT_OK(folder);
  {
    ProbeLoad load;
    load.block_bytes = 1 << 20;
    load.file_bytes = 4 << 20;
    load.read_bytes = 4 << 20;
    DiskProbe probe(folder->path(), load);
    EXPECT_FALSE(probe.tool().empty());
    const auto written = probe.SequentialWrite();
    const auto read = probe.RandomRead();
    if (absl::IsUnavailable(written.status())) GTEST_SKIP() << written.status();
    PAGODA_ASSERT_OK(read);
    EXPECT_GT(*written, 0);
    EXPECT_GT(*read, 0);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder->path()));
}

TEST(StorageBenchTest, MemoryMeasuresArePlausible) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer's allocator does not count";
#endif
  StorageBenchOptions options = StorageBenchOptions::Quick();
  options.restart_pages = 20'000;
  const auto directory = MeasureDirectory(options, kSilent);
  PAGODA_ASSERT_OK(directory);
  EXPECT_EQ(directory->pages, 20'000);
  EXPECT_GT(directory->bytes_per_page, 100);
  EXPECT_LT(directory->bytes_per_page, 1000);
}

TEST(StorePagesTest, PagesAreOneChainAndFetchable) {
  TieredStoreOptions options;
  options.host.capacity_bytes = 16 << 20;
  const auto store = TieredStore::Open(options);
  PAGODA_ASSERT_OK(store);
  const StorePages pages(kTinyPage, /*chain_length=*/3);
  std::vector<RecordKey> keys;
  for (uint64_t i = 0; i < 4; ++i) {
    PAGODA_ASSERT_OK(pages.Push(**store, i));
    keys.push_back(pages.Key(i));
  }
  LookupQuery query;
  query.scope = pages.scope();
  query.keys = absl::MakeConstSpan(keys).subspan(0, 3);
  EXPECT_EQ((*store)->LookupPrefix(query)->pages.size(), 3u);
  EXPECT_TRUE(pages.Header(3).parent_is_root);  // the next chain
  EXPECT_FALSE(pages.Header(2).parent_is_root);
  EXPECT_EQ(pages.Header(2).parent, keys[1].key);
}

}  // namespace
}  // namespace pagoda::cli
