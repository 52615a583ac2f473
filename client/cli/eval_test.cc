// Goal: the eval commands run on the installed model and rank precisions and codecs as they must.
// Method: the real binary on a short text; skipped where model or texts are missing.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "client/cli/eval_texts.h"
#include "client/cli/temp_folder.h"
#include "client/cli/testing/run_program.h"
#include "client/worker/model_path.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

using Json = nlohmann::ordered_json;

// Empty when model and texts are here, else what is missing.
std::string Missing() {
  const absl::StatusOr<std::string> model = ResolveModelPath();
  if (!model.ok()) return std::string(model.status().message());
  const absl::StatusOr<std::string> text = EvalTextPath("legal");
  const bool readable = text.ok() && access(text->c_str(), R_OK) == 0;
  return readable ? "" : "no texts: run deploy/fetch_texts.sh";
}

TEST(EvalTest, ShortText) {
  if (!Missing().empty()) GTEST_SKIP() << "SKIPPED, " << Missing();
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

TEST(EvalTest, CodecsOfAShortTextAndTheRestOfThemLater) {
  if (!Missing().empty()) GTEST_SKIP() << "SKIPPED, " << Missing();
  absl::StatusOr<TempFolder> folder = TempFolder::Make("eval_test_");
  PAGODA_ASSERT_OK(folder);
  const std::string file = folder->File("codecs.json");
  const auto run = [&](const std::string& codecs, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"eval",     "codecs", "--text",  "legal",
                                          "--tokens", "512",    "--codec", codecs};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram("pagoda", arguments);
  };
  ProgramResult result = run("q4_0+H,q4", {"--json", file});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("of q4_0+H, legal"), std::string::npos) << result.output;
  // Only what is missing is measured; the rest stays as it was.
  result = run("q4,q4_0", {"--json", file, "--resume"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(result.output.find("legal, q4 ..."), std::string::npos) << result.output;
  std::ifstream stream(file);
  const Json json = Json::parse(stream);
  ASSERT_EQ(json["rows"].size(), 3u);
  EXPECT_EQ(json["rows"][0]["codec"], "q4_0+H");
  EXPECT_EQ(json["rows"][2]["codec"], "q4_0");
  const auto kl = [&](int row) { return json["rows"][row]["kl_mean"].get<double>(); };
  EXPECT_LT(kl(1), kl(0));
  EXPECT_LT(kl(0), kl(2));
  result = run("q4", {"--json", file, "--resume", "--window", "64"});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.errors.find("leave out --resume or name another file"), std::string::npos)
      << result.errors;
}

TEST(EvalTest, AblationOfAShortTextAndTheRestOfItLater) {
  if (!Missing().empty()) GTEST_SKIP() << "SKIPPED, " << Missing();
  absl::StatusOr<TempFolder> folder = TempFolder::Make("eval_test_");
  PAGODA_ASSERT_OK(folder);
  const std::string file = folder->File("ablate.json");
  const std::string plot = folder->File("ablate.html");
  const auto run = [&](const std::string& rows, std::vector<std::string> more) {
    std::vector<std::string> arguments = {"eval",     "ablate", "--text",      "legal",
                                          "--tokens", "512",    "--q8-tokens", "256",
                                          "--rows",   rows,     "--json",      file};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return RunProgram("pagoda", arguments);
  };
  ProgramResult result = run("q4,shared", {});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_NE(result.output.find("q4, NLL %"), std::string::npos) << result.output;
  result = run("q4,shared,ladder", {"--resume", "--plot", plot});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  EXPECT_EQ(result.output.find("legal, q4 ("), std::string::npos) << result.output;
  std::ifstream stream(file);
  const Json json = Json::parse(stream);
  ASSERT_EQ(json["rows"].size(), 4u);
  const auto row = [&](size_t index, const char* key) {
    return json["rows"][index][key].get<double>();
  };
  EXPECT_EQ(json["rows"][0]["name"], "raw16");
  EXPECT_EQ(row(0, "kl_mean"), 0);
  EXPECT_EQ(json["rows"][1]["name"], "q4");
  EXPECT_EQ(json["rows"][2]["name"], "ladder");
  EXPECT_LT(row(2, "kl_mean"), row(1, "kl_mean"));
  EXPECT_LT(row(1, "bytes_per_token"), row(2, "bytes_per_token"));
  EXPECT_LT(row(2, "bytes_per_token"), row(0, "bytes_per_token"));
  EXPECT_GT(row(1, "decode_tps"), 0);
  EXPECT_EQ(json["measured"][2]["row"], "shared");
  EXPECT_GE(json["measured"][2]["hit_tokens"].get<int>(), 192);
  std::ifstream page(plot);
  EXPECT_TRUE(page.good());
  result = run("q4,nine", {});
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.errors.find("--rows nine: with these flags there are raw16, q8"),
            std::string::npos)
      << result.errors;
}

TEST(EvalTest, DecodeOfAShortText) {
  if (!Missing().empty()) GTEST_SKIP() << "SKIPPED, " << Missing();
  const ProgramResult result =
      RunProgram("pagoda", {"eval", "decode", "--text", "legal", "--tokens", "400",
                            "--decode-tokens", "64", "--precision", "q4", "--json", "-"});
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const Json json = Json::parse(result.output);
  ASSERT_EQ(json["rows"].size(), 1u);
  const Json& row = json["rows"][0];
  EXPECT_GT(row["kl_floats"].get<double>(), 0);
  EXPECT_LT(row["kl_between"].get<double>(), row["kl_floats"].get<double>());
}

TEST(EvalTest, AProfileThatIsGiven) {
  if (!Missing().empty()) GTEST_SKIP() << "SKIPPED, " << Missing();
  const auto run = [](const std::string& layers) {
    return RunProgram("pagoda", {"eval", "profile", "--text", "legal", "--tokens", "512",
                                 "--layers", layers, "--json", "-"});
  };
  const ProgramResult result = run("23,18,18,20");
  ASSERT_EQ(result.exit_code, 0) << result.errors;
  const Json json = Json::parse(result.output);
  EXPECT_EQ(json["k_lo_layers"], Json::parse("[18, 20, 23]"));
  EXPECT_EQ(json["rows"][0]["codec"], "q4");
  EXPECT_EQ(json["rows"][1]["codec"], "profile");
  EXPECT_NEAR(json["rows"][1]["k_bits"].get<double>(), 4.5 + 4.25 / 10, 1e-9);
  EXPECT_EQ(json["rows"][1]["v_bits"], 4.25);
  const ProgramResult beyond = run("30");
  EXPECT_EQ(beyond.exit_code, 1);
  EXPECT_NE(beyond.errors.find("--layers 30: the model has layers 0 to 29"), std::string::npos)
      << beyond.errors;
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
