// Goal: whatever the disk does, a cache forgets pages but never lies, stalls or needs a restart.
// Method: each fault injected at the system call or in RocksDB's files; then the log line, the
// counter with its reason, what a client sees, and that all is well once the cause is gone.
#include <fcntl.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <filesystem>

#include "storage/testing/fault_fixture.h"
#include "storage/testing/raw_ssd.h"

namespace pagoda {
namespace {

using absl::StatusCode;

class TieredStoreFaultTest : public FaultTest {
 protected:
  // The chain is on SSD and flushed, the fault comes, and another chain is pushed.
  void WriteUnder(Call call, int error) {
    Open();
    PushAndWrite(before_);
    files_.Fail(call, error);
    PushAndWrite(during_);
  }
  // What was there is still read, what came meanwhile is served from memory and not on SSD.
  void ExpectServing() {
    for (const TestPage& page : during_) EXPECT_FALSE(OnSsd(page));
    EXPECT_EQ(Lookup(during_).pages.size(), during_.size());
    ExpectWhole(during_);
    EXPECT_GT(store_->Stats().counters.ssd_write_errors, 0);
    EXPECT_EQ(store_->Stats().dirty_page_count, static_cast<int64_t>(during_.size()));
  }
  void ExpectRecovered() {
    files_.Heal();
    PersistAll(during_);
    DropFromHost();
    ExpectWhole(before_);
    ExpectWhole(during_);
    ExpectExact();
    Open();
    ExpectWhole(before_);
    ExpectWhole(during_);
    ExpectExact();
  }
  const std::vector<TestPage> before_ = TestChain(3, 1);
  // Two, so that the circuit breaker stays closed: it has a test of its own.
  const std::vector<TestPage> during_ = TestChain(2, 100);
};

// ---- Disk full ----------------------------------------------------------------------------------

TEST_F(TieredStoreFaultTest, DiskFullWhenAFileIsAdded) {
  Open();
  PushAndWrite(before_);
  // More than the first file holds.
  TestPage large = TestRoot(100);
  large.segment_bytes = 500000;
  TestPage larger = TestRoot(101);
  larger.segment_bytes = 500000;
  CapturedLog log;
  files_.Fail(Call::kAllocate, ENOSPC);
  PushAndWrite({large, larger});
  EXPECT_FALSE(OnSsd(large));
  EXPECT_TRUE(log.Has("ssd_write_failed", "free space on that disk"));
  EXPECT_EQ(store_->Stats().ssd_breaker, policy::BreakerState::kClosed);
  ExpectWhole({large, larger});
  const int64_t file_bytes = store_->Stats().ssd_file_bytes;
  files_.Heal();
  PersistAll({large, larger});
  EXPECT_GT(store_->Stats().ssd_file_bytes, file_bytes);
  DropFromHost();
  ExpectWhole(before_);
  ExpectWhole({large, larger});
  ExpectExact();
}

TEST_F(TieredStoreFaultTest, DiskFullInAWrite) {
  CapturedLog log;
  WriteUnder(Call::kWrite, ENOSPC);
  EXPECT_TRUE(log.Has("ssd_write_failed", "No space left"));
  ExpectServing();
  DropFromHost();
  ExpectWhole(before_);  // reads go on
  PushAndWrite(during_);
  ExpectRecovered();
}

TEST_F(TieredStoreFaultTest, DiskFullInTheIndex) {
  Open();
  PushAndWrite(before_);
  env_.FailWrites(rocksdb::IOStatus::NoSpace("No space left on device"));
  for (const TestPage& page : during_) PAGODA_ASSERT_OK(Push(page));
  for (const TestPage& page : during_) {
    PAGODA_EXPECT_OK(store_->PersistAsync(page.record(), page.scope()));
  }
  EXPECT_THAT(store_->Flush(), StatusIs(StatusCode::kResourceExhausted));
  EXPECT_GT(env_.fault_count(), 0);
  EXPECT_GT(store_->Stats().unflushed_count, 0);
  DropFromHost();
  ExpectWhole(before_);
  ExpectWhole(during_);  // written, but not yet safe from a kill
  env_.Heal();
  PAGODA_EXPECT_OK(store_->Flush());
  EXPECT_EQ(store_->Stats().unflushed_count, 0);
  ExpectRecovered();
}

// RocksDB merges the tables of four flushes in the background; here that fails, and no flush does.
TEST_F(TieredStoreFaultTest, DiskFullWhileTheIndexCompacts) {
  for (const auto& error : {rocksdb::IOStatus::NoSpace("No space left on device"),
                            rocksdb::IOStatus::IOError("Input/output error")}) {
    SCOPED_TRACE(error.ToString());
    Open();
    store_->Evict({});
    PushAndWrite(before_);
    std::vector<TestPage> more;
    const auto write_one = [&] {
      more.push_back(TestRoot(500 + static_cast<uint32_t>(more.size())));
      PushAndWrite({more.back()});
    };
    // Flushes go well until a compaction begins a table of its own.
    const int64_t faults = env_.fault_count();
    for (int i = 0; i < 20 && env_.fault_count() == faults; ++i) {
      env_.FailWritesAfterTables(2, error);
      write_one();
      absl::SleepFor(absl::Milliseconds(50));
    }
    ASSERT_GT(env_.fault_count(), faults);
    const std::vector<TestPage> during = TestChain(2, 700);
    PushAndWrite(during);
    EXPECT_FALSE(store_->Flush().ok());
    ExpectWhole(during);
    const auto closed = [&] {
      return store_->Stats().ssd_breaker == policy::BreakerState::kClosed;
    };
    if (error.IsNoSpace()) {
      ExpectWhole(before_);
      ExpectWhole(more);
    } else {
      EXPECT_TRUE(Eventually([&] { return !closed(); }));  // a failing disk is set aside
    }
    env_.Heal();
    clock_.Advance(absl::Seconds(6));
    EXPECT_TRUE(Eventually(closed));
    PersistAll(during);
    EXPECT_EQ(store_->Stats().unflushed_count, 0);
    DropFromHost();
    ExpectWhole(before_);
    ExpectWhole(more);
    ExpectWhole(during);
    ExpectExact();
    Open();
    ExpectWhole(before_);
    ExpectWhole(more);
    ExpectWhole(during);
  }
}

// A start that fails, at whatever read, must leave every page where it is.
TEST_F(TieredStoreFaultTest, EioAtTheStartLosesNothing) {
  std::vector<TestPage> pages;
  for (uint32_t i = 1; i <= 5; ++i) {
    pages.push_back(TestRoot(i));
    pages.back().segment_bytes = 500000;  // a file for each two of them
  }
  Open();
  PushAndWrite(pages);
  store_ = nullptr;
  int failed = 0;
  for (int64_t reads = 0;; ++reads) {
    env_.FailReadsAfter(reads, rocksdb::IOStatus::IOError("Input/output error"));
    const auto opened = TieredStore::Open(options_, clock_);
    if (opened.ok()) break;
    EXPECT_THAT(opened, StatusIs(StatusCode::kUnavailable, "Input/output"));
    ++failed;
  }
  EXPECT_GT(failed, 1);
  env_.Heal();
  Open();
  ExpectWhole(pages);
  ExpectExact();
}

// ---- Errors of the disk -------------------------------------------------------------------------

TEST_F(TieredStoreFaultTest, ErrorInTheIndex) {
  Open();
  PushAndWrite(before_);
  CapturedLog log;
  env_.FailWrites(rocksdb::IOStatus::IOError("Input/output error"));
  for (const TestPage& page : during_) PAGODA_ASSERT_OK(Push(page));
  for (const TestPage& page : during_) {
    PAGODA_EXPECT_OK(store_->PersistAsync(page.record(), page.scope()));
  }
  EXPECT_THAT(store_->Flush(), StatusIs(StatusCode::kUnavailable, "flush"));
  ExpectWhole(before_);
  env_.Heal();
  PAGODA_EXPECT_OK(store_->Flush());
  ExpectRecovered();
}

TEST_F(TieredStoreFaultTest, ErrorInAWrite) {
  CapturedLog log;
  WriteUnder(Call::kWrite, EIO);
  EXPECT_TRUE(log.Has("ssd_write_failed", "Input/output error"));
  ExpectServing();
  ExpectRecovered();
}

TEST_F(TieredStoreFaultTest, ErrorInAReadForgetsThatPageOnly) {
  Open();
  PushAndWrite(before_);
  DropFromHost();
  CapturedLog log;
  files_.Fail(Call::kRead, EIO);
  EXPECT_THAT(Load(before_[2]), StatusIs(StatusCode::kDataLoss));
  EXPECT_TRUE(log.Has("ssd_page_broken", "kind=unreadable"));
  EXPECT_EQ(IntegrityCount(IntegrityKind::kUnreadable), 1);
  files_.Heal();
  EXPECT_EQ(Lookup(before_).pages.size(), 2u);
  EXPECT_EQ(*Push(before_[2]), CommitOutcome::kStored);
  PersistAll(before_);
  DropFromHost();
  ExpectWhole(before_);
  ExpectExact();
}

TEST_F(TieredStoreFaultTest, AFailedSyncLosesWhatItCoveredAndNothingElse) {
  Open();
  PushAndWrite(before_);
  CapturedLog log;
  files_.Fail(Call::kSync, EIO);
  PushAndWrite(during_);
  EXPECT_TRUE(log.Has("ssd_sync_failed", "pages_lost=2"));
  EXPECT_TRUE(Eventually([&] { return IntegrityCount(IntegrityKind::kUnsynced) == 2; }));
  EXPECT_EQ(store_->Stats().counters.ssd_pages_lost, 2);
  for (const TestPage& page : before_) EXPECT_TRUE(OnSsd(page));
  EXPECT_EQ(store_->Stats().dirty_page_count, 2);
  ExpectWhole(during_);
  files_.Heal();
  PersistAll(during_);  // into another file: the one that failed is never written again
  EXPECT_EQ(store_->Stats().ssd_file_bytes, 2 << 20);
  ExpectRecovered();
}

TEST_F(TieredStoreFaultTest, ShortWritesAndReadsGoOnWhereTheyStopped) {
  files_.Shorten(5000);  // not even aligned
  Open();
  PushAndWrite(before_);
  DropFromHost();
  ExpectWhole(before_);
  ExpectExact();
  files_.Shorten(100);  // no progress that direct I/O could go on from
  PushAndWrite(during_);
  EXPECT_FALSE(OnSsd(during_[0]));
  ExpectRecovered();
}

TEST_F(TieredStoreFaultTest, ReadOnlyRemount) {
  CapturedLog log;
  WriteUnder(Call::kWrite, EROFS);
  EXPECT_TRUE(log.Has("ssd_write_failed", "remount it writable"));
  ExpectServing();
  ExpectRecovered();
}

TEST_F(TieredStoreFaultTest, OutOfFileDescriptors) {
  CapturedLog log;
  Open();
  files_.Fail(Call::kOpen, EMFILE);
  PushAndWrite(during_);  // would need its first file
  EXPECT_TRUE(log.Has("ssd_write_failed", "raise the limit of open files"));
  ExpectServing();
  files_.Heal();
  PushAndWrite(before_);
  ExpectRecovered();
}

// ---- Damage between two runs --------------------------------------------------------------------

TEST_F(TieredStoreFaultTest, DeletedAndTruncatedFilesAreMissesCountedAtStart) {
  for (const bool deleted : {true, false}) {
    std::filesystem::remove_all(options_.ssd.path);
    Open();
    PushAndWrite(before_);
    store_ = nullptr;
    const std::string file = ExtentFilePath(options_.ssd.path, 1);
    if (deleted) {
      std::filesystem::remove(file);
    } else {
      std::filesystem::resize_file(file, 20480);  // the first page is still whole
    }
    CapturedLog log;
    Open();
    EXPECT_TRUE(log.Has("ssd_records_dropped", deleted ? "missing=3" : "missing=2"));
    EXPECT_EQ(IntegrityCount(IntegrityKind::kMissing), deleted ? 3 : 2);
    EXPECT_EQ(Lookup(before_).pages.size(), deleted ? 0u : 1u);
    ExpectExact();
    PushAndWrite(before_);
    DropFromHost();
    ExpectWhole(before_);
    ExpectExact();
  }
}

TEST_F(TieredStoreFaultTest, AFileThatIsCutWhileItIsUsedIsMissing) {
  Open();
  PushAndWrite(before_);
  DropFromHost();
  std::filesystem::resize_file(ExtentFilePath(options_.ssd.path, 1), 0);
  EXPECT_THAT(Load(before_[0]), StatusIs(StatusCode::kDataLoss));
  EXPECT_EQ(IntegrityCount(IntegrityKind::kMissing), 1);
  EXPECT_TRUE(Lookup(before_).pages.empty());
}

TEST_F(TieredStoreFaultTest, RecordsThatClaimTheSameBytesAreBothDropped) {
  Open();
  PushAndWrite(before_);
  store_ = nullptr;
  {
    RawSsd raw(options_.ssd.path);
    DirectoryRecord record = raw.GetRecord(before_[2].record());
    record.extent = raw.GetRecord(before_[1].record()).extent;
    raw.PutRecord(record);
  }
  CapturedLog log;
  Open();
  EXPECT_TRUE(log.Has("ssd_records_dropped", "overlapping=2"));
  EXPECT_EQ(IntegrityCount(IntegrityKind::kRecord), 2);
  EXPECT_EQ(Lookup(before_).pages.size(), 1u);
  ExpectExact();
  PushAndWrite(before_);
  PushAndWrite(during_);
  ExpectRecovered();
}

TEST_F(TieredStoreFaultTest, FilesOfAnotherFolderAreNotBelieved) {
  Open();
  PushAndWrite(before_);
  store_ = nullptr;
  const std::string first = options_.ssd.path;
  options_.ssd.path = folder_.Sub("second");
  Open();
  PushAndWrite(during_);
  store_ = nullptr;
  std::filesystem::copy_file(ExtentFilePath(options_.ssd.path, 1), ExtentFilePath(first, 1),
                             std::filesystem::copy_options::overwrite_existing);
  options_.ssd.path = first;
  Open();
  EXPECT_THAT(Load(before_[0]), StatusIs(StatusCode::kDataLoss));
  EXPECT_EQ(IntegrityCount(IntegrityKind::kHeader), 1);
}

}  // namespace
}  // namespace pagoda
