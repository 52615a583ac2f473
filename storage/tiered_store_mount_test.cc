// Goal: what the faked faults promise holds on real file systems: full, read-only, and without a
// descriptor left. Method: a tmpfs of our own that is filled and remounted, an ext4 that turns
// read-only by itself, and the process's own limit of open files. Skips where it may not mount.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "storage/testing/captured_log.h"
#include "storage/testing/store_fixture.h"

namespace pagoda {
namespace {

class TieredStoreMountTest : public StoreTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(mount_point_);
    if (mount("tmpfs", mount_point_.c_str(), "tmpfs", 0, "size=12m") != 0) {
      GTEST_SKIP() << "cannot mount a tmpfs: " << std::strerror(errno);
    }
    mounted_ = true;
    options_.writer_threads = 1;
    options_.ssd.path = mount_point_ + "/ssd";
    options_.ssd.extent_file_bytes = 1 << 20;
  }
  void TearDown() override {
    store_ = nullptr;
    if (mounted_) {
      EXPECT_EQ(umount2(mount_point_.c_str(), MNT_DETACH), 0) << std::strerror(errno);
    }
  }
  void Write(const std::vector<TestPage>& pages) {
    for (const TestPage& page : pages) {
      PAGODA_EXPECT_OK(Push(page));
      store_->PersistAsync(page.record(), page.scope()).IgnoreError();
    }
    store_->Flush().IgnoreError();
  }
  int64_t SsdPages() { return store_->Stats().ssd.page_count; }
  std::vector<TestPage> Large(uint32_t first, uint32_t count) {
    std::vector<TestPage> pages;
    for (uint32_t i = 0; i < count; ++i) {
      pages.push_back(TestRoot(first + i));
      pages.back().segment_bytes = 400000;
    }
    return pages;
  }
  void ExpectReadable(const std::vector<TestPage>& pages) {
    DropFromHost();
    for (const TestPage& page : pages) {
      const auto loaded = Load(page);
      PAGODA_ASSERT_OK(loaded);
      EXPECT_TRUE(IsExactly(**loaded, page));
    }
  }

  const std::string mount_point_ = folder_.Sub("mount");
  bool mounted_ = false;
};

TEST_F(TieredStoreMountTest, AFullFileSystemRefusesWritesAndRecovers) {
  Open();
  const std::vector<TestPage> before = Large(1, 2);
  Write(before);
  ASSERT_EQ(SsdPages(), 2);
  const std::string filler = mount_point_ + "/filler";
  {
    std::ofstream out(filler, std::ios::binary);
    const std::string block(64 << 10, 'x');
    while (out.write(block.data(), static_cast<int64_t>(block.size())).flush()) {
    }
  }
  CapturedLog log;
  const std::vector<TestPage> during = Large(10, 3);
  Write(during);
  EXPECT_EQ(SsdPages(), 2);
  EXPECT_TRUE(log.Has("ssd_write_failed", "No space left"));
  EXPECT_EQ(store_->Stats().ssd_breaker, policy::BreakerState::kClosed);
  std::filesystem::remove(filler);
  PersistAll(during);
  EXPECT_EQ(SsdPages(), 5);
  ExpectReadable(before);
  ExpectReadable(during);
  ExpectExact();
}

TEST_F(TieredStoreMountTest, AReadOnlyRemountIsReadAndRecovers) {
  Open();
  const std::vector<TestPage> before = Large(1, 2);
  Write(before);
  // Files that are open for writing forbid a remount: the store is opened on it instead.
  store_ = nullptr;
  ASSERT_EQ(mount(nullptr, mount_point_.c_str(), nullptr, MS_REMOUNT | MS_RDONLY, nullptr), 0)
      << std::strerror(errno);
  EXPECT_THAT(TieredStore::Open(options_, clock_),
              StatusIs(absl::StatusCode::kUnavailable, "Read-only file system"));
  ASSERT_EQ(mount(nullptr, mount_point_.c_str(), nullptr, MS_REMOUNT, nullptr), 0);
  Open();
  ExpectReadable(before);
}

// ext4 in a file, on a loop device, which turns read-only while the store works, as ext4 does when
// it finds itself damaged.
class ReadOnlyMountTest : public TieredStoreMountTest {
 protected:
  void SetUp() override {
    std::filesystem::create_directories(mount_point_);
    const std::string image = folder_.Sub("image");
    std::ofstream(image).close();
    std::filesystem::resize_file(image, 64 << 20);
    const std::string command = "PATH=$PATH:/usr/sbin:/sbin; mkfs.ext4 -q -F " + image +
                                " && mount -o loop,errors=remount-ro " + image + " " + mount_point_;
    if (std::system((command + " 2> /dev/null").c_str()) != 0) {
      GTEST_SKIP()
          << "SKIPPED: cannot mount ext4 from a file (needs root, mkfs.ext4, a loop device)";
    }
    mounted_ = true;
    options_.writer_threads = 1;
    options_.ssd.path = mount_point_ + "/ssd";
    options_.ssd.extent_file_bytes = 1 << 20;
  }
  // False where the kernel has no such switch.
  bool TurnReadOnly() {
    std::ifstream mounts("/proc/mounts");
    std::string device;
    std::string point;
    std::string rest;
    while (mounts >> device >> point && std::getline(mounts, rest)) {
      if (point != mount_point_) continue;
      const std::string name = std::filesystem::path(device).filename().string();
      std::ofstream trigger("/sys/fs/ext4/" + name + "/trigger_fs_error");
      trigger << "1" << std::flush;
      return trigger.good();
    }
    return false;
  }
};

TEST_F(ReadOnlyMountTest, PagesThatAreThereAreReadAndNewOnesStayInMemory) {
  Open();
  const std::vector<TestPage> before = Large(1, 2);
  Write(before);
  ASSERT_EQ(SsdPages(), 2);
  if (!TurnReadOnly()) GTEST_SKIP() << "SKIPPED: this kernel has no trigger_fs_error";
  CapturedLog log;
  const std::vector<TestPage> during = Large(10, 3);
  Write(during);
  EXPECT_TRUE(log.Has("ssd_write_failed", "Read-only file system"));
  EXPECT_GT(store_->Stats().counters.ssd_write_errors, 0);
  EXPECT_EQ(SsdPages(), 2);
  for (const TestPage& page : during) EXPECT_NE(Get(page), nullptr);
  if (store_->Stats().ssd_breaker == policy::BreakerState::kClosed) ExpectReadable(before);
  // Only a new mount heals that: the store is opened on it.
  store_ = nullptr;
  const std::string remount =
      "umount " + mount_point_ + " && mount -o loop " + folder_.Sub("image") + " " + mount_point_;
  ASSERT_EQ(std::system(remount.c_str()), 0);
  Open();
  ExpectReadable(before);
  for (const TestPage& page : during) PAGODA_EXPECT_OK(Push(page));
  PersistAll(during);
  EXPECT_EQ(SsdPages(), 5);
  ExpectReadable(during);
  ExpectExact();
}

TEST_F(TieredStoreMountTest, WithoutADescriptorLeftWritesAreRefusedAndRecover) {
  Open();
  Write(Large(1, 1));
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(next, 0);
  close(next);
  rlimit none = before;
  none.rlim_cur = static_cast<rlim_t>(next);
  const std::vector<TestPage> during = Large(10, 2);
  for (const TestPage& page : during) PAGODA_ASSERT_OK(Push(page));
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  for (const TestPage& page : during) {
    store_->PersistAsync(page.record(), page.scope()).IgnoreError();
  }
  const absl::Status flushed = store_->Flush();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(SsdPages(), 1);
  EXPECT_EQ(store_->Stats().counters.ssd_write_errors, 2);
  PersistAll(during);
  EXPECT_EQ(SsdPages(), 3);
  ExpectReadable(during);
  ExpectExact();
}

}  // namespace
}  // namespace pagoda
