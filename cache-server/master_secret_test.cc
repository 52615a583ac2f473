// Goal: the secret is made once, kept private, and never guessed around a damaged file.
// Method: real files in a temporary folder, each error path made to happen.
#include "cache-server/master_secret.h"

#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "storage/base/testing/status_matchers.h"
#include "storage/base/testing/temp_dir.h"

namespace pagoda {
namespace {

void WriteFile(const std::string& path, size_t size, mode_t mode) {
  std::ofstream(path, std::ios::binary) << std::string(size, 'x');
  ASSERT_EQ(::chmod(path.c_str(), mode), 0);
}

TEST(MasterSecretTest, IsMadeOnceAndPrivate) {
  TempDir dir;
  const std::string path = dir.path() + "/master.secret";
  const auto first = ReadOrMakeMasterSecret(path);
  PAGODA_ASSERT_OK(first);
  EXPECT_EQ(first->size(), kMasterSecretBytes);
  struct stat info {};
  ASSERT_EQ(::stat(path.c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  const auto again = ReadOrMakeMasterSecret(path);
  PAGODA_ASSERT_OK(again);
  EXPECT_EQ(*first, *again);
  TempDir other;
  const auto elsewhere = ReadOrMakeMasterSecret(other.path() + "/master.secret");
  PAGODA_ASSERT_OK(elsewhere);
  EXPECT_NE(*first, *elsewhere);
}

TEST(MasterSecretTest, RefusesWrongLengthsAndOpenModes) {
  TempDir dir;
  const std::string path = dir.path() + "/s";
  for (const size_t size : {size_t{0}, size_t{31}, size_t{33}, size_t{4096}}) {
    WriteFile(path, size, 0600);
    EXPECT_THAT(ReadMasterSecret(path),
                StatusIs(absl::StatusCode::kFailedPrecondition, "exactly 32 bytes"))
        << size;
  }
  WriteFile(path, 32, 0640);
  EXPECT_THAT(ReadMasterSecret(path), StatusIs(absl::StatusCode::kFailedPrecondition, "chmod 600"));
  WriteFile(path, 32, 0600);
  PAGODA_EXPECT_OK(ReadMasterSecret(path));
}

TEST(MasterSecretTest, SaysWhatIsMissing) {
  TempDir dir;
  EXPECT_THAT(ReadMasterSecret(dir.path() + "/none"),
              StatusIs(absl::StatusCode::kNotFound, "make it"));
  EXPECT_THAT(ReadOrMakeMasterSecret(dir.path() + "/no/such/folder"),
              StatusIs(absl::StatusCode::kUnavailable, "cannot make"));
}

}  // namespace
}  // namespace pagoda
