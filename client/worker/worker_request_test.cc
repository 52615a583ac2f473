// Goal: every line gets an answer, wrong ones an error that names the key. Method: each key with
// good and bad values; answers read back as JSON.
#include "client/worker/worker_request.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

TEST(WorkerRequestTest, ReadsEveryKeyAndKeepsDefaults) {
  WorkerRequest defaults;
  defaults.options.new_tokens_max = 7;
  const auto request = ParseWorkerRequest(
      R"({"id":"a","prompt":"hi","chat":false,"temperature":0.5,"top_p":0.9,"seed":3,)"
      R"("precision":"q4","window":128})",
      defaults);
  PAGODA_ASSERT_OK(request);
  EXPECT_EQ(request->id, "a");
  EXPECT_EQ(request->prompt, "hi");
  EXPECT_FALSE(request->chat);
  EXPECT_EQ(request->options.sampling.seed, 3u);
  EXPECT_FLOAT_EQ(request->options.sampling.temperature, 0.5f);
  EXPECT_EQ(request->options.precision, Precision::kQ4);
  EXPECT_EQ(request->options.window_tokens, 128);
  EXPECT_EQ(request->options.new_tokens_max, 7);
  const auto ids = ParseWorkerRequest(R"({"token_ids":[1,4294967295]})", defaults);
  PAGODA_ASSERT_OK(ids);
  EXPECT_EQ(ids->token_ids, (std::vector<uint32_t>{1, 4294967295}));
}

TEST(WorkerRequestTest, WrongLinesAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"", "not a JSON object"},
      {"[1]", "not a JSON object"},
      {"{\"prompt\":\"x\"", "not a JSON object"},
      {"{}", "exactly one of prompt and token_ids"},
      {R"({"prompt":"x","token_ids":[1]})", "exactly one"},
      {R"({"prompt":5})", "prompt is 5, expected a text"},
      {R"({"token_ids":[-1]})", "token_ids is -1"},
      {R"({"token_ids":[4294967296]})", "token_ids is 4294967296"},
      {R"({"prompt":"x","max_tokens":0})", "max_tokens is 0"},
      {R"({"prompt":"x","max_tokens":1.5})", "max_tokens is 1.5"},
      {R"({"prompt":"x","window":-1})", "window is -1"},
      {R"({"prompt":"x","precision":"q5"})", "use raw16, q8, q4, q3 or q2"},
      {R"({"prompt":"x","top_p":2})", "top_p"},
      {R"({"prompt":"x","seed":-1})", "seed is -1"},
      {R"({"prompt":"x","chat":1})", "chat is 1"},
      {R"({"prompt":"x","maxtokens":1})", "unknown key 'maxtokens'"},
  };
  for (const auto& [line, text] : cases) {
    EXPECT_THAT(ParseWorkerRequest(line, {}), StatusIs(absl::StatusCode::kInvalidArgument, text))
        << line;
  }
}

TEST(WorkerRequestTest, AnswersAreOneLineOfValidJson) {
  WorkerAnswer answer;
  answer.id = "a\nb";
  answer.text = "cut \xe2\x82";  // Ends inside a character.
  answer.result.ids = {1, 2};
  answer.result.hit.tier = "ssd";
  const std::string line = FormatWorkerAnswer(answer);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(line);
  EXPECT_EQ(json["hit_tier"], "ssd");
  EXPECT_EQ(json["token_ids"].size(), 2u);
  const auto error = nlohmann::json::parse(FormatWorkerError("x", absl::NotFoundError("gone")));
  EXPECT_EQ(error["error"], "NOT_FOUND: gone");
}

}  // namespace
}  // namespace pagoda
