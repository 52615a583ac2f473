// Goal: the same prompt gives the same logits, bit for bit, without a cache, with a cold one, a
// warm one and one that lets us down; what is generated hits later; stops, limits and errors are as
// stated. Method: a tiny random model and a cache in memory, all logits compared as bits.
#include "client/worker/generator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

#include "client/worker/testing/memory_prefix_cache.h"
#include "client/worker/testing/tiny_model.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

const RandomLlamaOptions kModel = {
    .head_count = 6, .kv_head_count = 2, .head_dim = 64, .context_tokens = 1024};

constexpr int64_t kNewTokens = 90;  // enough to fill a page

struct Answer {
  GenerateResult result;
  std::vector<float> logits;  // before every token
};

Answer Generate(TinyModel& tiny, absl::Span<const uint32_t> prompt, GenerateOptions options) {
  Answer answer;
  options.on_logits = [&](absl::Span<const float> logits) {
    answer.logits.insert(answer.logits.end(), logits.begin(), logits.end());
  };
  Generator generator(tiny.pass());
  absl::StatusOr<GenerateResult> result =
      generator.Generate(prompt, options, [](uint32_t) { return true; });
  PAGODA_CHECK(result.ok());
  answer.result = *std::move(result);
  return answer;
}

void ExpectSame(const Answer& a, const Answer& b) {
  EXPECT_EQ(a.result.ids, b.result.ids);
  ASSERT_EQ(a.logits.size(), b.logits.size());
  EXPECT_EQ(std::memcmp(a.logits.data(), b.logits.data(), a.logits.size() * sizeof(float)), 0);
}

GenerateOptions Options(Precision precision, PrefixCache* cache = nullptr) {
  return {
      .new_tokens_max = kNewTokens, .precision = precision, .window_tokens = 128, .cache = cache};
}

TEST(Generator, RawLogitsAreEqualWithoutColdWarmAndHalfCache) {
  TinyModel tiny(kModel);
  const std::vector<uint32_t> prompt = tiny.RandomIds(333, 1);
  const Answer bare = Generate(tiny, prompt, Options(Precision::kRaw16));
  ASSERT_EQ(bare.result.ids.size(), size_t{kNewTokens});

  MemoryPrefixCache cache;
  const Answer cold = Generate(tiny, prompt, Options(Precision::kRaw16, &cache));
  ExpectSame(bare, cold);
  EXPECT_EQ(cold.result.hit.tokens, 0);
  EXPECT_EQ(cache.stored_count, (333 + kNewTokens - 1) / 64);
  EXPECT_EQ(cache.advanced_tokens, (333 + kNewTokens - 1) / 64 * 64);
  EXPECT_EQ(cache.finish_count, 1);

  const Answer warm = Generate(tiny, prompt, Options(Precision::kRaw16, &cache));
  ExpectSame(bare, warm);
  EXPECT_EQ(warm.result.hit.tokens, 320);
  EXPECT_EQ(warm.result.hit.tier, "host");
  EXPECT_EQ(warm.result.hit.precision, Precision::kRaw16);

  cache.pages_max = 2;  // the third page fails to load
  const Answer half = Generate(tiny, prompt, Options(Precision::kRaw16, &cache));
  ExpectSame(bare, half);
  EXPECT_EQ(half.result.hit.tokens, 128);
  EXPECT_EQ(cache.conflict_count, 0);  // every page computed twice had the same bytes
  EXPECT_EQ(cache.finish_count, 3);
}

TEST(Generator, PagesThatAreLostOnTheWayAreLoadedAgain) {
  TinyModel tiny(kModel);
  const std::vector<uint32_t> prompt = tiny.RandomIds(700, 1);
  const Answer bare = Generate(tiny, prompt, Options(Precision::kRaw16));
  MemoryPrefixCache cache;
  cache.pages_max = 5;  // a chunk and more are left to compute
  Generate(tiny, prompt, Options(Precision::kRaw16, &cache));
  for (const int layer : {0, 1, 100}) {
    cache.lost_layer = layer;
    cache.lost_count = 0;
    const Answer warm = Generate(tiny, prompt, Options(Precision::kRaw16, &cache));
    ExpectSame(bare, warm);
    EXPECT_EQ(warm.result.hit.tokens, 320);
    EXPECT_EQ(cache.lost_count, 1);
  }
  EXPECT_EQ(cache.conflict_count, 0);
}

TEST(Generator, WhatWasGeneratedHitsLater) {
  TinyModel tiny(kModel);
  const std::vector<uint32_t> prompt = tiny.RandomIds(100, 2);
  MemoryPrefixCache cache;
  const Answer first = Generate(tiny, prompt, Options(Precision::kRaw16, &cache));
  // A second turn: the first prompt, its answer, a new question.
  std::vector<uint32_t> next = prompt;
  next.insert(next.end(), first.result.ids.begin(), first.result.ids.end());
  const std::vector<uint32_t> question = tiny.RandomIds(20, 3);
  next.insert(next.end(), question.begin(), question.end());
  const Answer warm = Generate(tiny, next, Options(Precision::kRaw16, &cache));
  EXPECT_EQ(warm.result.hit.tokens, (100 + kNewTokens - 1) / 64 * 64);
  ExpectSame(Generate(tiny, next, Options(Precision::kRaw16)), warm);
  EXPECT_EQ(cache.conflict_count, 0);
}

// How a sequence reads what has left its window.
struct Mode {
  Precision precision = Precision::kQ4;
  std::vector<int32_t> k_lo_layers;
};

GenerateOptions Options(const Mode& mode, PrefixCache* cache = nullptr) {
  GenerateOptions options = Options(mode.precision, cache);
  options.k_lo_layers = mode.k_lo_layers;
  return options;
}

class EncodedGenerator : public testing::TestWithParam<Mode> {};

TEST_P(EncodedGenerator, CacheChangesNothingWhileItServesRaw) {
  TinyModel tiny(kModel);
  const std::vector<uint32_t> prompt = tiny.RandomIds(500, 4);
  const Answer bare = Generate(tiny, prompt, Options(GetParam()));
  MemoryPrefixCache cache;
  const Answer cold = Generate(tiny, prompt, Options(GetParam(), &cache));
  ExpectSame(bare, cold);
  const Answer warm = Generate(tiny, prompt, Options(GetParam(), &cache));
  ExpectSame(bare, warm);
  EXPECT_EQ(warm.result.hit.tokens, 448);
  EXPECT_LT(warm.result.kv_bytes_per_token, cold.result.raw16_bytes_per_token);
  EXPECT_EQ(cache.conflict_count, 0);
}

TEST_P(EncodedGenerator, EncodedHitsKeepTheWindowAtQ8) {
  TinyModel tiny(kModel);
  const std::vector<uint32_t> prompt = tiny.RandomIds(500, 5);
  MemoryPrefixCache cache;
  const Answer cold = Generate(tiny, prompt, Options(GetParam(), &cache));
  cache.serve_precision = Precision::kQ8;
  const Answer warm = Generate(tiny, prompt, Options(GetParam(), &cache));
  EXPECT_EQ(warm.result.hit.tokens, 448);
  EXPECT_EQ(warm.result.hit.precision, Precision::kQ8);
  cache.serve_precision = Precision::kQ4;
  const Answer low = Generate(tiny, prompt, Options(GetParam(), &cache));
  // Page 7 is the prompt's tail; 5 and 6 are its window of 128 tokens.
  EXPECT_EQ(low.result.hit.tokens, GetParam().precision <= Precision::kQ4 ? 5 * 64 : 0);
  EXPECT_EQ(cache.finish_count, 3);
}

// A composite sequence: an old front at the precision of the ladder, a tail as it was computed.
TEST_P(EncodedGenerator, AnOldFrontAndAnExactTailChangeNothing) {
  TinyModel tiny(kModel);
  const std::vector<uint32_t> prompt = tiny.RandomIds(500, 9);
  const Answer bare = Generate(tiny, prompt, Options(GetParam()));
  MemoryPrefixCache cache;
  Generate(tiny, prompt, Options(GetParam(), &cache));
  cache.serve_precision = GetParam().precision;
  cache.raw_from_page = 5;  // pages 5 and 6 are the window of the prompt's tail
  const Answer warm = Generate(tiny, prompt, Options(GetParam(), &cache));
  EXPECT_EQ(warm.result.hit.tokens, 448);
  EXPECT_EQ(warm.result.hit.precision, GetParam().precision);
  ExpectSame(bare, warm);
  EXPECT_EQ(cache.conflict_count, 0);
}

TEST_P(EncodedGenerator, RawRequestsNeverSeePagesOfLowerFidelity) {
  TinyModel tiny(kModel);
  const std::vector<uint32_t> prompt = tiny.RandomIds(500, 6);
  MemoryPrefixCache cache;
  Generate(tiny, prompt, Options(GetParam(), &cache));
  const Answer raw = Generate(tiny, prompt, Options(Precision::kRaw16, &cache));
  // Queries of pages 0 to 2 have read raw16 only: their window of two pages covers all before them.
  EXPECT_EQ(raw.result.hit.tokens, 3 * 64);
  ExpectSame(Generate(tiny, prompt, Options(Precision::kRaw16)), raw);
  // The raw run has raised the fidelity of the others.
  EXPECT_EQ(Generate(tiny, prompt, Options(Precision::kRaw16, &cache)).result.hit.tokens, 448);
}

INSTANTIATE_TEST_SUITE_P(Modes, EncodedGenerator,
                         testing::Values(Mode{Precision::kQ8, {}}, Mode{Precision::kQ4, {}},
                                         Mode{Precision::kQ4, {1}}, Mode{Precision::kQ3, {}},
                                         Mode{Precision::kQ2, {}}),
                         [](const auto& info) {
                           return std::string(PrecisionName(info.param.precision)) +
                                  (info.param.k_lo_layers.empty() ? "" : "profile");
                         });

TEST(Generator, ALayerProfileIsReadAtQ4Alone) {
  TinyModel tiny(kModel);
  const std::vector<uint32_t> prompt = tiny.RandomIds(500, 7);
  const Answer q4 = Generate(tiny, prompt, Options(Mode{Precision::kQ4, {}}));
  const Answer profile = Generate(tiny, prompt, Options(Mode{Precision::kQ4, {1}}));
  EXPECT_NE(q4.logits, profile.logits);
  EXPECT_GT(profile.result.kv_bytes_per_token, q4.result.kv_bytes_per_token);
  ExpectSame(Generate(tiny, prompt, Options(Mode{Precision::kQ8, {}})),
             Generate(tiny, prompt, Options(Mode{Precision::kQ8, {1}})));
}

TEST(Generator, StopsWhereItIsTold) {
  TinyModel tiny(kModel);
  const std::vector<uint32_t> prompt = tiny.RandomIds(10, 7);
  GenerateOptions options = Options(Precision::kRaw16);
  options.sampling = {.temperature = 1, .seed = 5};  // greedy would repeat itself
  const Answer whole = Generate(tiny, prompt, options);
  EXPECT_EQ(whole.result.finish_reason, FinishReason::kLength);
  EXPECT_GT(whole.result.ttft_seconds, 0);
  EXPECT_GT(whole.result.decode_tokens_per_second, 0);

  options.stop_ids = {whole.result.ids[4]};
  const Answer stopped = Generate(tiny, prompt, options);
  EXPECT_EQ(stopped.result.finish_reason, FinishReason::kStop);
  EXPECT_LE(stopped.result.ids.size(), 4u);

  Generator generator(tiny.pass());
  int seen = 0;
  options.stop_ids.clear();
  const absl::StatusOr<GenerateResult> cut =
      generator.Generate(prompt, options, [&](uint32_t) { return ++seen < 3; });
  PAGODA_ASSERT_OK(cut);
  EXPECT_EQ(cut->ids.size(), 3u);
  EXPECT_EQ(cut->finish_reason, FinishReason::kCallback);

  options.new_tokens_max = 1;
  const Answer one = Generate(tiny, prompt, options);
  EXPECT_EQ(one.result.ids.size(), 1u);
  EXPECT_EQ(one.result.decode_tokens_per_second, 0);
}

TEST(Generator, EndsAtTheContext) {
  RandomLlamaOptions model = kModel;
  model.context_tokens = 130;
  TinyModel tiny(model);
  EXPECT_EQ(Generate(tiny, tiny.RandomIds(120, 8), Options(Precision::kQ4)).result.ids.size(), 10u);
  EXPECT_EQ(Generate(tiny, tiny.RandomIds(129, 8), Options(Precision::kQ4)).result.ids.size(), 1u);
}

TEST(Generator, RefusesBadRequests) {
  TinyModel tiny(kModel);
  Generator generator(tiny.pass());
  MemoryPrefixCache cache;
  const auto generate = [&](absl::Span<const uint32_t> prompt, const GenerateOptions& options) {
    return generator.Generate(prompt, options, [](uint32_t) { return true; });
  };
  GenerateOptions options;
  options.cache = &cache;
  const auto invalid = absl::StatusCode::kInvalidArgument;
  EXPECT_THAT(generate({}, options), StatusIs(invalid, "prompt of 0"));
  EXPECT_THAT(generate(tiny.RandomIds(1024, 9), options), StatusIs(invalid, "1 to 1023"));
  const uint32_t foreign[] = {tiny.config().vocab_size};
  EXPECT_THAT(generate(foreign, options), StatusIs(invalid, "vocabulary"));
  EXPECT_EQ(cache.finish_count, 1);  // the one that got as far as asking the cache
  options.new_tokens_max = 0;
  EXPECT_THAT(generate({1}, options), StatusIs(invalid, "new tokens"));
  options.new_tokens_max = 1;
  options.window_tokens = -1;
  EXPECT_THAT(generate({1}, options), StatusIs(invalid, "window"));
  options.window_tokens = 0;
  options.precision = Precision::kOpaque;
  EXPECT_THAT(generate({1}, options), StatusIs(invalid, "opaque"));
  options.precision = Precision::kQ4;
  options.sampling.top_p = 0;
  EXPECT_THAT(generate({1}, options), StatusIs(invalid));
}

}  // namespace
}  // namespace pagoda
