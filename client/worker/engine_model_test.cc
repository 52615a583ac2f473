// Goal: on the real model the engine agrees with Hugging Face Transformers, a cache changes no bit,
// and lower precisions cost what the design allows. Method: golden distributions of three texts;
// the licence text that every Debian machine has, generated from with and without a cache and
// evaluated at all precisions. Skips without the model.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "client/worker/generator.h"
#include "client/worker/model_path.h"
#include "client/worker/perplexity.h"
#include "client/worker/sampler.h"
#include "client/worker/testing/logits_golden.h"
#include "client/worker/testing/memory_prefix_cache.h"
#include "client/worker/tokenizer.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

constexpr char kText[] = "/usr/share/common-licenses/GPL-3";

class EngineModelTest : public testing::Test {
 protected:
  // Loaded once for all tests: a second each.
  static void SetUpTestSuite() {
    const absl::StatusOr<std::string> path = ResolveModelPath();
    if (!path.ok()) return;
    absl::StatusOr<GgufFile> file = GgufFile::Open(*path);
    PAGODA_ASSERT_OK(file);
    file_ = std::make_unique<GgufFile>(*std::move(file));
    pool_ = std::make_unique<ThreadPool>(2);
    absl::StatusOr<std::unique_ptr<LlamaModel>> model = LlamaModel::Load(*file_, *pool_);
    PAGODA_ASSERT_OK(model);
    model_ = *std::move(model);
    pass_ = std::make_unique<ForwardPass>(*model_, *pool_);
  }
  static void TearDownTestSuite() {
    pass_.reset();
    model_.reset();
    pool_.reset();
    file_.reset();
  }
  void SetUp() override {
    if (pass_ == nullptr) GTEST_SKIP() << ResolveModelPath().status().message();
  }

  static std::vector<uint32_t> TextIds(size_t count) {
    std::ifstream text(kText);
    EXPECT_TRUE(text) << kText;
    const std::string content{std::istreambuf_iterator<char>(text), {}};
    std::vector<uint32_t> ids = (*Tokenizer::FromGguf(*file_))->Encode(content, ParseSpecial::kNo);
    EXPECT_GE(ids.size(), count);
    ids.resize(count);
    return ids;
  }

  static std::unique_ptr<GgufFile> file_;
  static std::unique_ptr<ThreadPool> pool_;
  static std::unique_ptr<LlamaModel> model_;
  static std::unique_ptr<ForwardPass> pass_;
};

std::unique_ptr<GgufFile> EngineModelTest::file_;
std::unique_ptr<ThreadPool> EngineModelTest::pool_;
std::unique_ptr<LlamaModel> EngineModelTest::model_;
std::unique_ptr<ForwardPass> EngineModelTest::pass_;

TEST_F(EngineModelTest, AgreesWithTransformers) {
  const absl::StatusOr<LogitsGolden> golden = ReadLogitsGolden("tests/golden/logits.bin");
  PAGODA_ASSERT_OK(golden);
  if (golden->weights_revision != WeightsRevision(*file_)) {
    GTEST_SKIP() << "the golden file is of other weights";
  }
  const LlamaConfig& config = model_->config();
  double kl = 0;
  int64_t agreeing = 0;
  int64_t count = 0;
  for (const GoldenText& text : golden->texts) {
    ASSERT_EQ(text.tokens.size(), 256u);
    absl::StatusOr<KvSequence> sequence =
        KvSequence::Make(model_->page_shape(), config.rope_theta, {});
    PAGODA_ASSERT_OK(sequence);
    ASSERT_EQ(*pass_->PrefillChunk(text.tokens, *sequence), 256);
    const auto row_count = static_cast<int64_t>(text.positions.size());
    ASSERT_EQ(row_count, ForwardPass::kPageTokens);  // one block of logits
    std::vector<float> hidden(row_count * config.hidden_size);
    std::vector<float> logits(row_count * config.vocab_size);
    for (int64_t row = 0; row < row_count; ++row) {
      pass_->FinalHidden(
          text.positions[row].position, 1,
          absl::MakeSpan(hidden).subspan(row * config.hidden_size, config.hidden_size));
    }
    pass_->LogitsOf(hidden, absl::MakeSpan(logits));
    for (int64_t row = 0; row < row_count; ++row) {
      const absl::Span<const float> row_logits =
          absl::MakeConstSpan(logits).subspan(row * config.vocab_size, config.vocab_size);
      kl += KlDivergence(text.positions[row], row_logits);
      agreeing += ArgMax(row_logits) == text.positions[row].top_ids[0] ? 1 : 0;
      ++count;
    }
  }
  kl /= static_cast<double>(count);
  std::printf("golden: mean KL %.2e, top-1 equal %d of %d\n", kl, static_cast<int>(agreeing),
              static_cast<int>(count));
  EXPECT_LT(kl, 1e-3);
  EXPECT_GE(static_cast<double>(agreeing), 0.99 * static_cast<double>(count));
}

TEST_F(EngineModelTest, CacheChangesNoBitAndSavesTime) {
  const std::vector<uint32_t> prompt = TextIds(490);
  Generator generator(*pass_);
  MemoryPrefixCache cache;
  std::vector<std::vector<float>> logits;
  std::vector<GenerateResult> results;
  for (PrefixCache* use : {static_cast<PrefixCache*>(nullptr), static_cast<PrefixCache*>(&cache),
                           static_cast<PrefixCache*>(&cache)}) {
    logits.emplace_back();
    GenerateOptions options;
    options.new_tokens_max = 40;  // the prompt's last page fills and is computed again
    options.cache = use;
    options.on_logits = [&](absl::Span<const float> row) {
      logits.back().insert(logits.back().end(), row.begin(), row.end());
    };
    absl::StatusOr<GenerateResult> result =
        generator.Generate(prompt, options, [](uint32_t) { return true; });
    PAGODA_ASSERT_OK(result);
    results.push_back(*std::move(result));
  }
  EXPECT_EQ(results[2].hit.tokens, 448);
  for (int i = 1; i < 3; ++i) {
    EXPECT_EQ(results[i].ids, results[0].ids);
    ASSERT_EQ(logits[i].size(), logits[0].size());
    EXPECT_EQ(std::memcmp(logits[i].data(), logits[0].data(), logits[0].size() * sizeof(float)), 0);
  }
  EXPECT_EQ(cache.conflict_count, 0);
  std::printf("ttft: none %.3f s, cold %.3f s, warm %.3f s; decode %.1f tokens/s\n",
              results[0].ttft_seconds, results[1].ttft_seconds, results[2].ttft_seconds,
              results[0].decode_tokens_per_second);
  EXPECT_LT(results[2].ttft_seconds, results[0].ttft_seconds / 2);
}

TEST_F(EngineModelTest, LowerPrecisionsCostLittle) {
  const absl::StatusOr<PerplexityReport> report =
      EvaluatePerplexity(*pass_, TextIds(769), {}, [](int64_t, int64_t) { return true; });
  PAGODA_ASSERT_OK(report);
  for (const PerplexityRow& row : report->rows) {
    std::printf("%s: ppl %.4f, delta %+.4f +- %.4f %%, KL %.2e, top-1 %.2f %%\n",
                std::string(PrecisionName(row.precision)).c_str(), row.perplexity,
                row.nll_delta_percent, row.nll_delta_standard_error_percent, row.mean_kl,
                100 * row.top1_agreement);
  }
  EXPECT_LT(report->rows[1].mean_kl, 1e-4);
  EXPECT_LT(report->rows[1].nll_delta_percent, 0.1);  // a short text: a wider margin
  EXPECT_LT(report->rows[2].mean_kl, 2.5e-3);
  EXPECT_LT(report->rows[2].nll_delta_percent, 0.5);
}

}  // namespace
}  // namespace pagoda
