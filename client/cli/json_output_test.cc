// Goal: JSON arrives whole or not at all, and a path that cannot work is refused before the work.
// Method: real files in a temporary folder; each kind of bad path.
#include "client/cli/json_output.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

class JsonOutputTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/json_output_XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static std::string Read(const std::string& path) {
    std::ifstream file(path);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  size_t FileCount() const {
    size_t count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator(folder_)) ++count;
    return count;
  }

  std::string folder_;
};

TEST_F(JsonOutputTest, WritesInOrderAndReplaces) {
  const JsonOptions options{folder_ + "/out.json"};
  PAGODA_ASSERT_OK(CheckJsonPath(options));
  PAGODA_ASSERT_OK(WriteJson(options, {{"z", 1}, {"a", "x"}}));
  EXPECT_EQ(Read(options.path), "{\n  \"z\": 1,\n  \"a\": \"x\"\n}\n");
  PAGODA_ASSERT_OK(CheckJsonPath(options));
  PAGODA_ASSERT_OK(WriteJson(options, Json::object()));
  EXPECT_EQ(Read(options.path), "{}\n");
  EXPECT_EQ(FileCount(), 1u);  // no temporary file stays
}

TEST_F(JsonOutputTest, BytesThatAreNotUtf8AreReplacedNotThrown) {
  const JsonOptions options{folder_ + "/out.json"};
  PAGODA_ASSERT_OK(WriteJson(options, {{"name", "\xff\xfe"}}));
  EXPECT_FALSE(Json::parse(Read(options.path), nullptr, false).is_discarded());
}

TEST_F(JsonOutputTest, NoPathIsNothingToDo) {
  PAGODA_EXPECT_OK(CheckJsonPath({}));
  PAGODA_EXPECT_OK(WriteJson({}, {{"a", 1}}));
  EXPECT_EQ(TextStream({}), stdout);
  EXPECT_EQ(TextStream({"-"}), stderr);
}

TEST_F(JsonOutputTest, AFolderThatIsNotThere) {
  const JsonOptions options{folder_ + "/none/out.json"};
  EXPECT_THAT(CheckJsonPath(options), StatusIs(absl::StatusCode::kNotFound, "/none/out.json"));
  EXPECT_THAT(WriteJson(options, {}), StatusIs(absl::StatusCode::kNotFound, "cannot write"));
}

TEST_F(JsonOutputTest, AFileInPlaceOfAFolderAndAFolderInPlaceOfAFile) {
  std::ofstream(folder_ + "/file") << "x";
  EXPECT_THAT(CheckJsonPath({folder_ + "/file/out.json"}), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(CheckJsonPath({folder_}), StatusIs(absl::StatusCode::kInternal, "Is a directory"));
}

TEST_F(JsonOutputTest, ADeviceIsWrittenInPlace) {
  PAGODA_EXPECT_OK(CheckJsonPath({"/dev/null"}));
  PAGODA_EXPECT_OK(WriteJson({"/dev/null"}, {{"a", 1}}));
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
}

TEST_F(JsonOutputTest, AReadOnlyFolder) {
  if (geteuid() == 0) GTEST_SKIP() << "root may write everywhere";
  ASSERT_EQ(chmod(folder_.c_str(), 0500), 0);
  EXPECT_THAT(CheckJsonPath({folder_ + "/out.json"}),
              StatusIs(absl::StatusCode::kPermissionDenied));
  EXPECT_THAT(WriteJson({folder_ + "/out.json"}, {}),
              StatusIs(absl::StatusCode::kPermissionDenied));
  ASSERT_EQ(chmod(folder_.c_str(), 0700), 0);
}

}  // namespace
}  // namespace pagoda::cli
