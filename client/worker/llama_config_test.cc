// Goal: a config is complete and true to the tensors, or the file is refused with the reason.
// Method: random models with one key or tensor changed; the real model when it is there.
#include "client/worker/llama_config.h"

#include <functional>

#include "client/worker/model_path.h"
#include "client/worker/testing/random_llama.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;

absl::StatusOr<LlamaConfig> ReadFrom(const std::string& bytes) {
  const auto file = GgufFile::FromBytes(AsBytes(bytes));
  if (!file.ok()) return file.status();
  return ReadLlamaConfig(*file);
}

// A model's metadata with extra keys, without tensors: for errors that come before those.
absl::StatusOr<LlamaConfig> ReadWith(const std::function<void(GgufWriter*)>& change,
                                     const RandomLlamaOptions& options = {}) {
  GgufWriter writer;
  AddLlamaMetadata(options, &writer);
  change(&writer);
  return ReadFrom(writer.Finish());
}

TEST(LlamaConfigTest, ReadsARandomModel) {
  for (const bool tied : {true, false}) {
    RandomLlamaOptions options;
    options.tied_embeddings = tied;
    options.matrix_type = TensorType::kQ8_0;
    const auto config = ReadFrom(RandomLlama(options));
    PAGODA_ASSERT_OK(config);
    const LlamaConfig expected = {.name = "random llama",
                                  .layer_count = 2,
                                  .head_count = 4,
                                  .kv_head_count = 2,
                                  .head_dim = 16,
                                  .hidden_size = 64,
                                  .ffn_size = 96,
                                  .vocab_size = 320,
                                  .context_tokens = 512,
                                  .rms_epsilon = 1e-5F,
                                  .rope_theta = 10000,
                                  .rope_dims = 16,
                                  .rope_linear_factor = 1,
                                  .tied_embeddings = tied};
    EXPECT_EQ(*config, expected);
  }
}

TEST(LlamaConfigTest, HeadSizeMayDifferFromHiddenOverHeads) {
  RandomLlamaOptions options;
  options.head_dim = 32;
  const auto config = ReadFrom(RandomLlama(options));
  PAGODA_ASSERT_OK(config);
  EXPECT_EQ(config->head_dim, 32u);
  EXPECT_EQ(config->query_size(), 128u);
  EXPECT_EQ(config->kv_size(), 64u);
}

TEST(LlamaConfigTest, RefusesOtherModels) {
  GgufWriter writer;
  EXPECT_THAT(ReadFrom(writer.Finish()), StatusIs(kInvalid, "general.architecture is absent"));
  writer.SetString("general.architecture", "mamba");
  EXPECT_THAT(ReadFrom(writer.Finish()), StatusIs(kUnimplemented, "\"mamba\""));
  writer = {};
  writer.SetString("general.architecture", "llama");
  EXPECT_THAT(ReadFrom(writer.Finish()), StatusIs(kInvalid, "llama.block_count is absent"));
  EXPECT_THAT(ReadWith([](GgufWriter* w) { w->SetUint32("llama.expert_count", 8); }),
              StatusIs(kUnimplemented, "8 experts"));
}

TEST(LlamaConfigTest, ChecksRanges) {
  RandomLlamaOptions options;
  options.layer_count = 0;
  EXPECT_THAT(ReadWith([](GgufWriter*) {}, options), StatusIs(kInvalid, "block_count is 0"));
  options.layer_count = 1025;
  EXPECT_THAT(ReadWith([](GgufWriter*) {}, options), StatusIs(kInvalid, "block_count is 1025"));
  options = {};
  options.kv_head_count = 3;
  EXPECT_THAT(ReadWith([](GgufWriter*) {}, options), StatusIs(kInvalid, "multiple of 3"));
  options = {};
  options.kv_head_count = 8;
  EXPECT_THAT(ReadWith([](GgufWriter*) {}, options), StatusIs(kInvalid, "head_count_kv is 8"));
  options = {};
  options.head_dim = 15;
  EXPECT_THAT(ReadWith([](GgufWriter*) {}, options), StatusIs(kInvalid, "even head size"));
  options = {};
  options.rope_theta = -1;
  EXPECT_THAT(ReadWith([](GgufWriter*) {}, options), StatusIs(kInvalid, "freq_base is -1"));
  options = {};
  options.rms_epsilon = 0;
  EXPECT_THAT(ReadWith([](GgufWriter*) {}, options), StatusIs(kInvalid, "epsilon is 0"));
  EXPECT_THAT(ReadWith([](GgufWriter* w) { w->SetUint32("llama.rope.dimension_count", 18); }),
              StatusIs(kInvalid, "dimension_count is 18"));
  EXPECT_THAT(ReadWith([](GgufWriter* w) { w->SetUint32("llama.rope.dimension_count", 7); }),
              StatusIs(kInvalid, "even"));
}

TEST(LlamaConfigTest, ValueWidthMustEqualKeyWidth) {
  GgufWriter writer;
  RandomLlamaOptions options;
  AddLlamaMetadata(options, &writer);
  std::string bytes = writer.Finish();
  const std::string key = "llama.attention.value_length";
  const size_t place = bytes.find(key) + key.size() + sizeof(uint32_t);
  bytes[place] = 8;
  EXPECT_THAT(ReadFrom(bytes), StatusIs(kUnimplemented, "values of 8"));
}

TEST(LlamaConfigTest, RopeScalingIsNoneOrLinear) {
  const auto type = [](const char* name) {
    return [name](GgufWriter* w) { w->SetString("llama.rope.scaling.type", name); };
  };
  EXPECT_THAT(ReadWith(type("yarn")), StatusIs(kUnimplemented, "\"yarn\""));
  EXPECT_THAT(ReadWith(type("linear")), StatusIs(kInvalid, "scaling.factor is absent"));
  // Past the RoPE: the next thing missed is the embedding.
  EXPECT_THAT(ReadWith(type("none")), StatusIs(kInvalid, "token_embd.weight"));
  EXPECT_THAT(ReadWith([](GgufWriter* w) {
                w->AddTensor("rope_freqs.weight", {8}, TensorType::kF32, std::string(32, '\0'));
              }),
              StatusIs(kUnimplemented, "rope_freqs.weight"));
}

// Writes a whole model again with one more key, or with one tensor changed or left out.
std::string Rewrite(const std::string& bytes, const std::function<void(GgufWriter*)>& change,
                    const std::function<bool(GgufTensor*)>& keep) {
  const auto file = GgufFile::FromBytes(AsBytes(bytes));
  GgufWriter writer;
  AddLlamaMetadata({}, &writer);
  for (GgufTensor tensor : file->tensors()) {
    if (keep(&tensor)) {
      writer.AddTensor(tensor.name, tensor.dims, tensor.type, std::string(AsText(tensor.data)));
    }
  }
  change(&writer);
  return writer.Finish();
}

TEST(LlamaConfigTest, ReadsLinearScaling) {
  const std::string bytes = Rewrite(
      RandomLlama({}),
      [](GgufWriter* w) {
        w->SetString("llama.rope.scaling.type", "linear");
        w->SetFloat("llama.rope.scaling.factor", 4);
      },
      [](GgufTensor*) { return true; });
  const auto config = ReadFrom(bytes);
  PAGODA_ASSERT_OK(config);
  EXPECT_EQ(config->rope_linear_factor, 4);
  EXPECT_EQ(MakeModelSpec(*config, "").rope.scaling, "linear:4");
}

TEST(LlamaConfigTest, ChecksEveryTensor) {
  const std::string good = RandomLlama({});
  const auto file = GgufFile::FromBytes(AsBytes(good));
  for (const GgufTensor& victim : file->tensors()) {
    const std::string missing = Rewrite(
        good, [](GgufWriter*) {}, [&](GgufTensor* t) { return t->name != victim.name; });
    EXPECT_THAT(ReadFrom(missing), StatusIs(kInvalid, victim.name));
    const std::string misshapen = Rewrite(
        good, [](GgufWriter*) {},
        [&](GgufTensor* t) {
          if (t->name == victim.name) t->dims.push_back(1);
          return true;
        });
    EXPECT_THAT(ReadFrom(misshapen), StatusIs(kInvalid, victim.name));
  }
  const std::string biased = Rewrite(
      good,
      [](GgufWriter* w) {
        w->AddTensor("blk.0.attn_q.bias", {64}, TensorType::kF32, std::string(256, '\0'));
      },
      [](GgufTensor*) { return true; });
  EXPECT_THAT(ReadFrom(biased), StatusIs(kUnimplemented, "blk.0.attn_q.bias"));
}

TEST(LlamaConfigTest, VocabularySizeMustFitTheEmbedding) {
  std::string bytes = RandomLlama({});
  const std::string key = "llama.vocab_size";
  bytes[bytes.find(key) + key.size() + sizeof(uint32_t)] = 63;
  EXPECT_THAT(ReadFrom(bytes), StatusIs(kInvalid, "llama.vocab_size is 319"));
}

TEST(LlamaConfigTest, SpecTellsWeightsApart) {
  RandomLlamaOptions options;
  const std::string first = RandomLlama(options);
  options.seed = 2;
  const std::string second = RandomLlama(options);
  const auto first_file = GgufFile::FromBytes(AsBytes(first));
  const auto second_file = GgufFile::FromBytes(AsBytes(second));
  const std::string revision = WeightsRevision(*first_file);
  EXPECT_EQ(revision.size(), 64u);
  EXPECT_EQ(revision, WeightsRevision(*first_file));
  EXPECT_NE(revision, WeightsRevision(*second_file));

  const auto config = ReadLlamaConfig(*first_file);
  PAGODA_ASSERT_OK(config);
  const ModelSpec spec = MakeModelSpec(*config, revision);
  PAGODA_EXPECT_OK(ValidateModelSpec(spec));
  EXPECT_EQ(spec.model, "random llama");
  EXPECT_EQ(spec.weights_revision, revision);
  EXPECT_EQ(spec.groups, (std::vector<LayerGroup>{{GroupKind::kFull, 2, 2, 16, 0}}));
  EXPECT_EQ(spec.rope, (RopeSpec{RopeStyle::kHalfSplit, 10000, 16, ""}));
  EXPECT_NE(IdentityOf(spec), IdentityOf(MakeModelSpec(*config, WeightsRevision(*second_file))));
}

TEST(LlamaConfigTest, ReadsTheRealModel) {
  const auto path = ResolveModelPath();
  if (!path.ok()) GTEST_SKIP() << path.status().message();
  const auto file = GgufFile::Open(*path);
  PAGODA_ASSERT_OK(file);
  const auto config = ReadLlamaConfig(*file);
  PAGODA_ASSERT_OK(config);
  const LlamaConfig expected = {.name = "Smollm2 135M 8k Lc100K Mix1 Ep2",
                                .layer_count = 30,
                                .head_count = 9,
                                .kv_head_count = 3,
                                .head_dim = 64,
                                .hidden_size = 576,
                                .ffn_size = 1536,
                                .vocab_size = 49152,
                                .context_tokens = 8192,
                                .rms_epsilon = 1e-5F,
                                .rope_theta = 100000,
                                .rope_dims = 64,
                                .rope_linear_factor = 1,
                                .tied_embeddings = true};
  EXPECT_EQ(*config, expected);
  PAGODA_EXPECT_OK(ValidateModelSpec(MakeModelSpec(*config, "revision")));
}

}  // namespace
}  // namespace pagoda
