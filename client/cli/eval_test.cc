// Goal: eval ppl runs on the installed model and q8 is nearer to raw16 than q4. Method: the real
// binary on a short text; skipped where model or texts are missing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "client/cli/eval_texts.h"
#include "client/cli/temp_folder.h"
#include "client/cli/testing/run_program.h"
#include "client/worker/model_path.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

using Json = nlohmann::ordered_json;

TEST(EvalTest, ShortText) {
  const absl::StatusOr<std::string> model = ResolveModelPath();
  if (!model.ok()) GTEST_SKIP() << "SKIPPED, no model: " << model.status().message();
  const absl::StatusOr<std::string> text = EvalTextPath("legal");
  if (!text.ok() || access(text->c_str(), R_OK) != 0) {
    GTEST_SKIP() << "SKIPPED, no texts: run deploy/fetch_texts.sh";
  }
  const ProgramResult result =
      RunProgram("pagoda", {"eval", "ppl", "--text", "legal", "--tokens", "768", "--json", "-"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const Json json = Json::parse(result.output);
  ASSERT_EQ(json["texts"].size(), 1u);
  const Json& row = json["texts"][0];
  EXPECT_EQ(row["name"], "legal");
  EXPECT_EQ(row["tokens"], 768);
  EXPECT_GT(row["nll_raw16"].get<double>(), 0.5);
  EXPECT_LT(row["nll_raw16"].get<double>(), 6);
  EXPECT_GT(row["q8_mean_kl"].get<double>(), 0);
  EXPECT_LT(row["q8_mean_kl"].get<double>(), row["q4_mean_kl"].get<double>());
  EXPECT_LT(row["q4_mean_kl"].get<double>(), 0.02);
}

TEST(EvalTest, ATextThatIsShorterThanAskedIsSaid) {
  const absl::StatusOr<std::string> model = ResolveModelPath();
  if (!model.ok()) GTEST_SKIP() << "SKIPPED, no model: " << model.status().message();
  absl::StatusOr<TempFolder> folder = TempFolder::Make("eval_test_");
  PAGODA_ASSERT_OK(folder);
  PAGODA_ASSERT_OK(folder->WriteFile("short.txt", "Too short to say anything."));
  const ProgramResult result =
      RunProgram("pagoda", {"eval", "ppl", "--text", folder->File("short.txt")});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.errors.find("short.txt has 6 tokens, 4096 are asked"), std::string::npos)
      << result.errors;
}

}  // namespace
}  // namespace pagoda::cli
