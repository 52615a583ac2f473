// Goal: what comes back from SSD is what was put there, or DATA_LOSS; and every way in which a
// folder cannot be used has one clear error. Method: round trips over closing and opening, and
// damage done to the index and the extent files behind the tier's back.
#include "storage/ssd_tier.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "absl/strings/match.h"
#include "rocksdb/status.h"
#include "storage/base/crc32c.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/ssd_index.h"
#include "storage/testing/captured_log.h"
#include "storage/testing/raw_ssd.h"
#include "storage/testing/temp_folder.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

constexpr auto kLoss = absl::StatusCode::kDataLoss;
constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;

// A page's bytes without a host tier.
struct Encoded {
  PageHeader header;
  std::string header_bytes;
  std::vector<std::string> segments;
};

Encoded Encode(const TestPage& page) {
  Encoded e;
  e.header = HeaderOf(page);
  for (size_t i = 0; i < e.header.segments.size(); ++i) {
    e.segments.push_back(SegmentBytes(page, e.header, i));
    e.header.segments[i].crc32c = Crc32c(AsBytes(e.segments[i]));
  }
  e.header_bytes = EncodePageHeader(e.header);
  return e;
}

class SsdTierTest : public ::testing::Test {
 protected:
  SsdTierTest() {
    options_.path = folder_.Sub("ssd");
    options_.flush_period = absl::ZeroDuration();
    Reopen();
  }
  void Reopen() {
    tier_ = nullptr;
    auto tier = SsdTier::Open(options_);
    PAGODA_EXPECT_OK(tier);
    if (tier.ok()) tier_ = *std::move(tier);
  }
  void Close() { tier_ = nullptr; }
  absl::Status Put(const TestPage& page) {
    const Encoded e = Encode(page);
    SsdPageWrite write{DirectoryRecordOf(e.header), AsBytes(e.header_bytes), {}};
    for (const std::string& segment : e.segments) write.segments.push_back(AsBytes(segment));
    return tier_->Put(write);
  }
  absl::StatusOr<SsdTier::Reader> Open(const TestPage& page) {
    return tier_->ReadPage(page.record(), page.scope(), HeaderOf(page).identity);
  }
  // Reads everything and compares it.
  absl::Status Read(const TestPage& page) {
    auto reader = Open(page);
    if (!reader.ok()) return reader.status();
    const Encoded e = Encode(page);
    if (reader->header() != e.header) return absl::InternalError("another header");
    for (uint32_t i = 0; i < e.segments.size(); ++i) {
      std::string bytes(e.segments[i].size(), '\0');
      const absl::Status status = reader->ReadSegment(
          i, MutableByteSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size()));
      if (!status.ok()) return status;
      if (bytes != e.segments[i]) return absl::InternalError("other bytes");
    }
    return absl::OkStatus();
  }

  TempFolder folder_;
  SsdOptions options_;
  std::unique_ptr<SsdTier> tier_;
};

TEST_F(SsdTierTest, PagesSurviveClosingAndAreCountedExactly) {
  const std::vector<TestPage> chain = TestChain(5);
  int64_t bytes = 0;
  for (const TestPage& page : chain) {
    PAGODA_ASSERT_OK(Put(page));
    bytes += HeaderOf(page).stored_bytes();
  }
  EXPECT_EQ(tier_->used_bytes(), bytes);
  EXPECT_EQ(tier_->unflushed_count(), 5);
  const std::string instance = tier_->instance_id();
  EXPECT_EQ(instance.size(), 32u);
  Reopen();
  EXPECT_EQ(tier_->used_bytes(), bytes);
  EXPECT_EQ(tier_->page_count(), 5);
  EXPECT_EQ(tier_->unflushed_count(), 0);
  EXPECT_EQ(tier_->instance_id(), instance);
  for (const TestPage& page : chain) PAGODA_EXPECT_OK(Read(page));
  EXPECT_THAT(Open(TestRoot(99)), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SsdTierTest, ReplacingAndDeletingLeaveNothingBehind) {
  TestPage page = TestRoot(1);
  page.precision = Precision::kQ8;  // eight segments
  PAGODA_ASSERT_OK(Put(page));
  TestPage coarser = page;
  coarser.precision = Precision::kQ4;  // four
  PAGODA_ASSERT_OK(Put(coarser));
  PAGODA_EXPECT_OK(Read(coarser));
  EXPECT_EQ(tier_->used_bytes(), HeaderOf(coarser).stored_bytes());
  EXPECT_EQ(tier_->page_count(), 1);
  PAGODA_ASSERT_OK(tier_->Delete(page.record()));
  PAGODA_ASSERT_OK(tier_->Delete(page.record()));  // not there: fine
  EXPECT_EQ(tier_->used_bytes(), 0);
  EXPECT_EQ(tier_->page_count(), 0);
  EXPECT_THAT(Read(coarser), StatusIs(absl::StatusCode::kNotFound));
  Close();
  RawSsd raw(options_.path);
  // Only the format record is left.
  EXPECT_FALSE(raw.GetFormat().empty());
}

TEST_F(SsdTierTest, AReaderSeesOnePageWhateverIsWrittenMeanwhile) {
  const TestPage page = TestRoot(1);
  TestPage other = page;
  other.content = 1;
  PAGODA_ASSERT_OK(Put(page));
  {
    const auto reader = Open(page);
    PAGODA_ASSERT_OK(reader);
    PAGODA_ASSERT_OK(Put(other));
    PAGODA_ASSERT_OK(tier_->Flush());
    const Encoded e = Encode(page);
    std::string bytes(e.segments[1].size(), '\0');
    PAGODA_EXPECT_OK(reader->ReadSegment(
        1, MutableByteSpan(reinterpret_cast<std::byte*>(bytes.data()), bytes.size())));
    EXPECT_EQ(bytes, e.segments[1]);
  }
  PAGODA_EXPECT_OK(Read(other));
}

TEST_F(SsdTierTest, AnotherScopeOrModelDoesNotReadThePage) {
  const TestPage page = TestRoot(1);
  PAGODA_ASSERT_OK(Put(page));
  EXPECT_THAT(tier_->ReadPage(page.record(), ScopeIdOf({ScopeKind::kPrivate, "other"}),
                              HeaderOf(page).identity),
              StatusIs(kLoss, "scope"));
  EXPECT_THAT(tier_->ReadPage(page.record(), page.scope(), Identity{}), StatusIs(kLoss, "model"));
}

TEST_F(SsdTierTest, EveryDamagedValueIsFound) {
  const std::vector<TestPage> chain = TestChain(7);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Put(page));
  Close();
  {
    RawSsd raw(options_.path);
    raw.FlipBit(chain[0].record(), 1, 20000);
    // Torn: the second half of a segment was never written.
    std::string value = raw.GetBytes(chain[1].record(), 0);
    std::fill(value.begin() + 4096, value.end(), '\0');
    raw.PutBytes(chain[1].record(), 0, value);
    raw.PutBytes(chain[2].record(), 1, raw.GetBytes(chain[3].record(), 1));  // misdirected
    raw.FlipBit(chain[3].record(), kRawHeader, 800);
    raw.PutBytes(chain[4].record(), kRawHeader, std::string(4096, '\0'));
    // Two valid pages swapped, headers and all.
    for (const int index : {0, 1, kRawHeader}) {
      const std::string five = raw.GetBytes(chain[5].record(), index);
      raw.PutBytes(chain[5].record(), index, raw.GetBytes(chain[6].record(), index));
      raw.PutBytes(chain[6].record(), index, five);
    }
  }
  Reopen();
  EXPECT_EQ(tier_->page_count(), 7);
  const IntegrityKind kinds[] = {IntegrityKind::kSegment, IntegrityKind::kSegment,
                                 IntegrityKind::kSegment, IntegrityKind::kHeader,
                                 IntegrityKind::kHeader,  IntegrityKind::kHeader,
                                 IntegrityKind::kHeader};
  for (int i = 0; i < 7; ++i) {
    const absl::Status status = Read(chain[i]);
    EXPECT_THAT(status, StatusIs(kLoss)) << i;
    EXPECT_EQ(IntegrityKindOf(status), kinds[i]) << i;
    PAGODA_EXPECT_OK(tier_->Delete(chain[i].record()));
  }
  EXPECT_EQ(tier_->used_bytes(), 0);
}

TEST_F(SsdTierTest, SwappedSegmentsOfOnePageAreFound) {
  const TestPage page = TestRoot(1);
  PAGODA_ASSERT_OK(Put(page));
  Close();
  {
    RawSsd raw(options_.path);
    const std::string first = raw.GetBytes(page.record(), 0);
    raw.PutBytes(page.record(), 0, raw.GetBytes(page.record(), 1));
    raw.PutBytes(page.record(), 1, first);
  }
  Reopen();
  EXPECT_THAT(Read(page), StatusIs(kLoss));
}

TEST_F(SsdTierTest, DamagedRecordsAreReportedAndCanBeDeletedOrReplaced) {
  const std::vector<TestPage> chain = TestChain(4);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Put(page));
  Close();
  {
    RawSsd raw(options_.path);
    std::string value = raw.GetMeta(chain[1].record().Encode());
    value[20] = static_cast<char>(value[20] ^ 1);
    raw.PutMeta(chain[1].record().Encode(), value);
    // A record under another page's key, and one under no key at all.
    raw.PutMeta(chain[2].record().Encode(), raw.GetMeta(chain[3].record().Encode()));
    raw.PutMeta("short", "junk");
  }
  Reopen();
  const int64_t one = HeaderOf(chain[0]).stored_bytes();
  EXPECT_EQ(tier_->used_bytes(), 2 * one);
  std::vector<std::string> damaged;
  int good = 0;
  PAGODA_ASSERT_OK(tier_->ForEachRecord([&](const DirectoryRecord&) { ++good; },
                                        [&](absl::string_view key, const absl::Status& status) {
                                          EXPECT_THAT(status, StatusIs(kLoss));
                                          damaged.emplace_back(key);
                                        }));
  EXPECT_EQ(good, 2);
  EXPECT_EQ(damaged.size(), 3u);
  EXPECT_THAT(Open(chain[1]), StatusIs(kLoss));
  PAGODA_ASSERT_OK(Put(chain[1]));  // replaces what was broken
  PAGODA_EXPECT_OK(Read(chain[1]));
  EXPECT_EQ(tier_->used_bytes(), 3 * one);
  PAGODA_ASSERT_OK(tier_->DeleteDamaged("short"));
  PAGODA_ASSERT_OK(tier_->DeleteDamaged(chain[2].record().Encode()));
  Reopen();
  EXPECT_EQ(tier_->used_bytes(), 3 * one);
  PAGODA_EXPECT_OK(Read(chain[0]));  // no neighbour was hit
  PAGODA_EXPECT_OK(Read(chain[3]));
  EXPECT_THAT(Open(chain[2]), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SsdTierTest, AnotherFormatVersionIsRefusedWithARemedy) {
  PAGODA_ASSERT_OK(Put(TestRoot(1)));
  Close();
  std::string good;
  {
    RawSsd raw(options_.path);
    good = raw.GetFormat();
    std::string value = good;
    value[8] = 3;
    raw.PutFormat(value);
  }
  EXPECT_THAT(SsdTier::Open(options_),
              StatusIs(kRefused, "format version 3, this build reads 2; move"));
  { RawSsd(options_.path).DeleteFormat(); }
  EXPECT_THAT(SsdTier::Open(options_), StatusIs(kRefused, "no format record"));
  { RawSsd(options_.path).PutFormat(good); }
  PAGODA_EXPECT_OK(SsdTier::Open(options_));
}

// Each of RocksDB's files is damaged in turn, and the format record: nobody has to mend it by hand.
TEST_F(SsdTierTest, ADamagedIndexIsSetAsideAndTheTierStartsEmpty) {
  namespace fs = std::filesystem;
  const auto damage = [&](absl::string_view prefix, absl::string_view suffix, auto how) {
    for (const fs::directory_entry& entry : fs::directory_iterator(options_.path)) {
      const std::string name = entry.path().filename().string();
      if (absl::StartsWith(name, prefix) && absl::EndsWith(name, suffix)) how(entry.path());
    }
  };
  const auto cut = [](const fs::path& file) { fs::resize_file(file, 5); };
  const auto remove = [](const fs::path& file) { fs::remove(file); };
  const auto flip = [](const fs::path& file) {
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    char byte = 0;
    stream.seekg(20).read(&byte, 1);
    byte = static_cast<char>(byte ^ 4);
    stream.seekp(20).write(&byte, 1);
  };
  const std::function<void()> damages[] = {
      [&] { damage("MANIFEST", "", cut); },
      [&] { damage("MANIFEST", "", flip); },
      [&] { damage("MANIFEST", "", remove); },
      [&] { damage("CURRENT", "", cut); },
      [&] { damage("", ".sst", cut); },
      [&] { damage("", ".sst", flip); },
      [&] { damage("", ".sst", remove); },
      [&] {
        RawSsd raw(options_.path);
        std::string value = raw.GetFormat();
        value[15] = static_cast<char>(value[15] ^ 1);
        raw.PutFormat(value);
      },
  };
  for (const std::function<void()>& one : damages) {
    SCOPED_TRACE(&one - damages);
    PAGODA_ASSERT_OK(Put(TestRoot(1)));
    PAGODA_ASSERT_OK(Put(TestRoot(2)));
    Close();
    one();
    CapturedLog log;
    auto tier = SsdTier::Open(options_);
    PAGODA_ASSERT_OK(tier.status());
    tier_ = *std::move(tier);
    EXPECT_TRUE(tier_->open_damage().index_lost);
    EXPECT_TRUE(log.Has("ssd_index_damaged", options_.path + "/damaged"));
    EXPECT_EQ(tier_->page_count(), 0);
    EXPECT_EQ(tier_->used_bytes(), 0);
    EXPECT_EQ(tier_->file_count(), 0);
    EXPECT_FALSE(fs::is_empty(options_.path + "/damaged"));
    PAGODA_ASSERT_OK(Put(TestRoot(3)));
    Reopen();
    EXPECT_FALSE(tier_->open_damage().index_lost);
    PAGODA_EXPECT_OK(Read(TestRoot(3)));
  }
}

TEST_F(SsdTierTest, ASecondOpenFailsWithOneClearError) {
  EXPECT_THAT(SsdTier::Open(options_), StatusIs(kRefused, "in use by another process"));
}

TEST_F(SsdTierTest, AFolderThatCannotBeUsedIsNamedWithItsCause) {
  const auto kUnavailable = absl::StatusCode::kUnavailable;
  std::ofstream(folder_.Sub("file")) << "not a folder";
  SsdOptions options = options_;
  options.path = folder_.Sub("file");
  EXPECT_THAT(SsdTier::Open(options), StatusIs(kUnavailable, options.path));
  EXPECT_THAT(SsdTier::Open(options), StatusIs(kUnavailable, "directory"));
  options.path = folder_.Sub("file/below");
  EXPECT_THAT(SsdTier::Open(options), StatusIs(kUnavailable, "Not a directory"));
  options.path = "/proc/pagoda";
  EXPECT_THAT(SsdTier::Open(options), StatusIs(kUnavailable, "/proc/pagoda"));
}

TEST_F(SsdTierTest, BufferedIoReadsWhatDirectIoWroteAndBack) {
  PAGODA_ASSERT_OK(Put(TestRoot(1)));
  options_.direct_io = false;
  Reopen();
  EXPECT_FALSE(tier_->uses_direct_io());
  PAGODA_EXPECT_OK(Read(TestRoot(1)));
  PAGODA_EXPECT_OK(Put(TestRoot(2)));
  options_.direct_io = true;
  Reopen();
  PAGODA_EXPECT_OK(Read(TestRoot(2)));
}

TEST_F(SsdTierTest, WorksOnTmpfsWhetherItTakesDirectIoOrNot) {
  if (!std::filesystem::is_directory("/dev/shm")) GTEST_SKIP() << "no tmpfs at /dev/shm";
  options_.path = "/dev/shm/pagoda-ssd-tier-test-" + std::to_string(getpid());
  Reopen();
  PAGODA_EXPECT_OK(Put(TestRoot(1)));
  Reopen();
  PAGODA_EXPECT_OK(Read(TestRoot(1)));
  Close();
  std::filesystem::remove_all(options_.path);
}

TEST_F(SsdTierTest, RefusesBadOptionsByName) {
  const auto kInvalid = absl::StatusCode::kInvalidArgument;
  PAGODA_EXPECT_OK(options_.Validate());
  const auto with = [&](auto change) {
    SsdOptions options = options_;
    change(options);
    return options.Validate();
  };
  EXPECT_THAT(with([](SsdOptions& o) { o.path = ""; }), StatusIs(kInvalid, "path"));
  EXPECT_THAT(with([](SsdOptions& o) { o.capacity_bytes = 1; }), StatusIs(kInvalid, "capacity"));
  EXPECT_THAT(with([](SsdOptions& o) { o.flush_period = -absl::Seconds(1); }),
              StatusIs(kInvalid, "flush_period"));
  EXPECT_THAT(with([](SsdOptions& o) { o.extent_file_bytes = 1; }),
              StatusIs(kInvalid, "extent_file_bytes"));
  EXPECT_THAT(with([](SsdOptions& o) { o.index_buffer_bytes = 1; }),
              StatusIs(kInvalid, "index_buffer_bytes"));
  EXPECT_THAT(with([](SsdOptions& o) { o.background_jobs = 1; }),
              StatusIs(kInvalid, "background_jobs"));
}

TEST_F(SsdTierTest, FlushesByItself) {
  Close();
  options_.flush_period = absl::Milliseconds(20);
  Reopen();
  PAGODA_ASSERT_OK(Put(TestRoot(1)));
  for (int i = 0; i < 500 && tier_->unflushed_count() > 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(tier_->unflushed_count(), 0);
}

TEST_F(SsdTierTest, RandomRunsCountExactly) {
  const std::vector<TestPage> chain = TestChain(12);
  std::mt19937 rng(11);
  std::map<int, TestPage> stored;
  for (int step = 0; step < 400; ++step) {
    const int at = static_cast<int>(rng() % chain.size());
    TestPage page = chain[at];
    const Precision precisions[] = {Precision::kRaw16, Precision::kQ8, Precision::kQ4};
    page.precision = precisions[rng() % 3];
    page.content = rng() % 4;
    if (rng() % 3 != 0) {
      PAGODA_ASSERT_OK(Put(page));
      stored[at] = page;
    } else {
      PAGODA_ASSERT_OK(tier_->Delete(page.record()));
      stored.erase(at);
    }
    if (step % 100 == 99) Reopen();
    if (step % 40 == 0) {
      PAGODA_ASSERT_OK(tier_->Flush());
    }
    int64_t bytes = 0;
    for (const auto& [index, known] : stored) bytes += HeaderOf(known).stored_bytes();
    ASSERT_EQ(tier_->used_bytes(), bytes) << step;
    ASSERT_EQ(tier_->page_count(), static_cast<int64_t>(stored.size()));
  }
  for (const auto& [index, page] : stored) PAGODA_EXPECT_OK(Read(page));
}

TEST(FromRocksDbTest, EveryKindOfErrorHasItsCode) {
  using absl::StatusCode;
  using rocksdb::Status;
  PAGODA_EXPECT_OK(FromRocksDb(Status::OK(), "x"));
  const std::pair<Status, StatusCode> cases[] = {
      {Status::NotFound(), StatusCode::kNotFound},
      {Status::Corruption("bad block"), StatusCode::kDataLoss},
      {Status::NoSpace(), StatusCode::kResourceExhausted},
      {Status::IOError("EIO"), StatusCode::kUnavailable},
      {Status::IOError("While lock file: /x/LOCK"), StatusCode::kFailedPrecondition},
      {Status::TimedOut(), StatusCode::kUnavailable},
      {Status::InvalidArgument("x"), StatusCode::kInternal},
  };
  for (const auto& [status, code] : cases) {
    EXPECT_THAT(FromRocksDb(status, "read page"), StatusIs(code, "read page")) << status.ToString();
  }
}

}  // namespace
}  // namespace pagoda
