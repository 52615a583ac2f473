// Goal: every command finds the model by one rule, and a missing one is one clear error. Method:
// set the three variables in turn.
#include "client/worker/model_path.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

class ModelPathTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"PAGODA_CACHE_DIR", "XDG_CACHE_HOME", "HOME"}) unsetenv(name);
  }
};

TEST_F(ModelPathTest, TheFirstVariableWins) {
  EXPECT_THAT(CacheFolder(), StatusIs(absl::StatusCode::kFailedPrecondition, "PAGODA_CACHE_DIR"));
  setenv("HOME", "/h", 1);
  EXPECT_EQ(*CacheFolder(), "/h/.cache/pagoda");
  setenv("XDG_CACHE_HOME", "/x", 1);
  EXPECT_EQ(*CacheFolder(), "/x/pagoda");
  setenv("PAGODA_CACHE_DIR", "/p", 1);
  EXPECT_EQ(*CacheFolder(), "/p");
  setenv("PAGODA_CACHE_DIR", "", 1);  // empty counts as unset
  EXPECT_EQ(*CacheFolder(), "/x/pagoda");
}

TEST_F(ModelPathTest, FindsTheModelOrSaysWhatToDo) {
  const std::string folder = ::testing::TempDir() + "/model_path_test";
  std::filesystem::remove_all(folder);
  setenv("PAGODA_CACHE_DIR", folder.c_str(), 1);
  const std::string expected = folder + "/models/SmolLM2-135M-Instruct.Q4_1.gguf";
  EXPECT_THAT(ResolveModelPath(), StatusIs(absl::StatusCode::kNotFound, expected));
  EXPECT_THAT(ResolveModelPath(), StatusIs(absl::StatusCode::kNotFound, "deploy/quickstart.sh"));
  EXPECT_THAT(ResolveModelPath("/no/such"), StatusIs(absl::StatusCode::kNotFound, "/no/such"));

  std::filesystem::create_directories(folder + "/models");
  std::ofstream(expected) << "x";
  EXPECT_EQ(*ResolveModelPath(), expected);
  EXPECT_EQ(*ResolveModelPath(expected), expected);
  std::filesystem::remove_all(folder);
}

TEST_F(ModelPathTest, AnExplicitFileNeedsNoFolder) {
  EXPECT_EQ(*ResolveModelPath("/dev/null"), "/dev/null");
  EXPECT_THAT(ResolveModelPath(), StatusIs(absl::StatusCode::kFailedPrecondition, "--model FILE"));
}

}  // namespace
}  // namespace pagoda
