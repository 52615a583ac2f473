// Goal: a page costs the directory at most Directory::kBytesPerPageMax bytes, at the worst number
// of pages for tables that double. Method: fill it, in one tier and in both, as chains and as
// single pages, used and not, and ask it; directory_bench asks the allocator too.
#include <gtest/gtest.h>

#include <random>

#include "storage/base/testing/status_matchers.h"
#include "storage/directory.h"
#include "storage/testing/many_pages.h"

namespace pagoda {
namespace {

// Hash tables of 7/8 load have just doubled at this number.
constexpr int kPages = (1 << 16) * 7 / 8 + 1000;

void ExpectSmall(const Directory& directory) {
  EXPECT_EQ(directory.page_count(), kPages);
  EXPECT_LE(directory.memory_bytes(), Directory::kBytesPerPageMax * kPages)
      << static_cast<double>(directory.memory_bytes()) / kPages << " bytes a page";
}

TEST(DirectoryMemoryTest, ChainsOnSsd) {
  Directory directory;
  FillDirectory(directory, {.page_count = kPages, .chain_pages = 20});
  ExpectSmall(directory);
}

TEST(DirectoryMemoryTest, EveryPageALeafInBothTiersAndUsed) {
  Directory directory;
  FillDirectory(directory, {.page_count = kPages, .chain_pages = 1, .in_host = true});
  std::mt19937 rng(1);
  for (int i = 0; i < 4 * kPages; ++i) {
    directory.Touch(1 + static_cast<EntryId>(rng() % kPages), absl::Seconds(i));
  }
  ExpectSmall(directory);
}

TEST(DirectoryMemoryTest, WhatPagesHaveInCommonIsStoredOnceAndGoesWithThem) {
  Directory directory;
  FillDirectory(directory, {.page_count = kPages, .chain_pages = 20});
  const int64_t full = directory.memory_bytes();
  for (EntryId id = directory.slot_count() - 1; id > 0; --id) directory.DropSsd(id);
  EXPECT_EQ(directory.page_count(), 0);
  // Another tenant's arithmetic on every page: as many different traits as pages, one at a time.
  for (int i = 0; i < kPages; ++i) {
    DirectoryRecord record = NumberedRecord(1, kNoEntry);
    record.backend_tag = static_cast<uint64_t>(i);
    const auto id = directory.AddSsd(record, absl::ZeroDuration());
    PAGODA_ASSERT_OK(id);
    directory.DropSsd(*id);
  }
  EXPECT_LE(directory.memory_bytes(), full + 4 * kPages + 65536);  // the list of free slots
}

}  // namespace
}  // namespace pagoda
