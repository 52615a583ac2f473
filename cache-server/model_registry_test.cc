// Goal: models are remembered with their ladders across restarts, and a damaged file harms nobody.
// Method: a registry written, read back, and files broken in turn.
#include "cache-server/model_registry.h"

#include <fstream>
#include <sstream>

#include "cache-server/testing/test_pages.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/base/testing/temp_dir.h"

namespace pagoda {
namespace {

LadderOptions Ladders() {
  LadderOptions ladder;
  ladder.standard = Precision::kQ8;
  ladder.models["small"] = Precision::kRaw16;
  return ladder;
}

TEST(ModelRegistryTest, AnnouncedModelsHaveTheirConfiguredLadder) {
  ModelRegistry registry(Ladders(), 2, "");
  const ModelSpec big = TestModel("big");
  const ModelSpec small = TestModel("small");
  EXPECT_EQ(*registry.Announce(IdentityOf(big), big, 64), Precision::kQ8);
  EXPECT_EQ(*registry.Announce(IdentityOf(small), small, 32), Precision::kRaw16);
  EXPECT_EQ(*registry.Announce(IdentityOf(big), big, 128), Precision::kQ8);
  EXPECT_EQ(registry.Find(IdentityOf(big))->page_tokens, 128u);
  const ModelSpec third = TestModel("third");
  EXPECT_THAT(registry.Announce(IdentityOf(third), third, 64),
              StatusIs(absl::StatusCode::kResourceExhausted, "models_max"));
  EXPECT_FALSE(registry.Find(IdentityOf(third)).has_value());
  EXPECT_EQ(registry.LadderOf(IdentityOf(third)), Precision::kQ8);
  EXPECT_THAT(registry.SetLadder(IdentityOf(third), Precision::kQ4),
              StatusIs(absl::StatusCode::kNotFound));
  PAGODA_EXPECT_OK(registry.SetLadder(IdentityOf(big), Precision::kQ4));
  EXPECT_EQ(registry.LadderOf(IdentityOf(big)), Precision::kQ4);
  EXPECT_EQ(registry.LadderOf(IdentityOf(small)), Precision::kRaw16);
  PAGODA_EXPECT_OK(registry.SetLadder(std::nullopt, Precision::kQ8));
  EXPECT_EQ(registry.LadderOf(IdentityOf(small)), Precision::kQ8);
}

TEST(ModelRegistryTest, SurvivesARestartAndTheConfigurationWins) {
  TempDir dir;
  const std::string path = dir.path() + "/models.json";
  const ModelSpec big = TestModel("big");
  const ModelSpec small = TestModel("small");
  {
    ModelRegistry registry(Ladders(), 8, path);
    registry.Load();  // nothing there yet
    PAGODA_ASSERT_OK(registry.Announce(IdentityOf(big), big, 64));
    PAGODA_ASSERT_OK(registry.Announce(IdentityOf(small), small, 64));
    PAGODA_ASSERT_OK(registry.SetLadder(std::nullopt, Precision::kQ4));
    PAGODA_ASSERT_OK(registry.SaveIfChanged());
  }
  ModelRegistry registry(Ladders(), 8, path);
  registry.Load();
  ASSERT_EQ(registry.All().size(), 2u);
  EXPECT_EQ(registry.Find(IdentityOf(big))->spec, big);
  EXPECT_EQ(registry.LadderOf(IdentityOf(big)), Precision::kQ4);
  EXPECT_EQ(registry.LadderOf(IdentityOf(small)), Precision::kRaw16);
}

TEST(ModelRegistryTest, DamagedFilesAreIgnored) {
  TempDir dir;
  const std::string path = dir.path() + "/models.json";
  {
    ModelRegistry registry(Ladders(), 8, path);
    const ModelSpec spec = TestModel();
    PAGODA_ASSERT_OK(registry.Announce(IdentityOf(spec), spec, 64));
    PAGODA_ASSERT_OK(registry.SaveIfChanged());
  }
  std::stringstream good;
  good << std::ifstream(path).rdbuf();
  const std::string text = good.str();
  for (size_t size = 0; size + 2 < text.size(); size += 7) {
    std::ofstream(path, std::ios::trunc) << text.substr(0, size);
    ModelRegistry registry(Ladders(), 8, path);
    registry.Load();
    EXPECT_TRUE(registry.All().empty()) << size;
  }
  for (const char* bad :
       {"[]", "{}", "{\"version\":2,\"models\":[]}", "{\"version\":1,\"models\":[1]}",
        "{\"version\":1,\"models\":[{\"spec\":5}]}",
        "{\"version\":1,\"models\":[{\"spec\":{},\"ladder\":\"q8\"}]}",
        "{\"version\":1,\"models\":[{\"spec\":{},\"ladder\":8,\"page_tokens\":\"x\"}]}"}) {
    std::ofstream(path, std::ios::trunc) << bad;
    ModelRegistry registry(Ladders(), 8, path);
    registry.Load();
    EXPECT_TRUE(registry.All().empty()) << bad;
  }
}

TEST(ModelRegistryTest, AFileThatCannotBeWrittenIsTriedAgain) {
  TempDir dir;
  ModelRegistry registry(Ladders(), 8, dir.path() + "/sub/models.json");
  PAGODA_EXPECT_OK(registry.SaveIfChanged());
  const ModelSpec spec = TestModel();
  PAGODA_ASSERT_OK(registry.Announce(IdentityOf(spec), spec, 64));
  EXPECT_THAT(registry.SaveIfChanged(), StatusIs(absl::StatusCode::kUnavailable));
  std::filesystem::create_directory(dir.path() + "/sub");
  PAGODA_EXPECT_OK(registry.SaveIfChanged());
  EXPECT_TRUE(std::filesystem::exists(dir.path() + "/sub/models.json"));
}

}  // namespace
}  // namespace pagoda
