// Goal: the forward pass computes a Llama, in every weight type and head shape, and a row's result
// is bit for bit independent of how a prompt was cut into chunks and of the thread count, in every
// precision. Method: tiny random models against a plain pass in double; then the same tokens by
// other chunks, other threads, rewound and computed again.
#include "client/worker/forward_pass.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "client/worker/testing/reference_llama.h"
#include "client/worker/testing/tiny_model.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

using Floats = std::vector<float>;

// What prefill by chunks of at most `chunk_tokens` gives for every position.
struct Trace {
  Floats hidden;
  Floats logits;
};

Trace Prefill(TinyModel& tiny, absl::Span<const uint32_t> ids, int64_t chunk_tokens,
              KvSequence& sequence) {
  Trace trace;
  const int64_t hidden_size = tiny.config().hidden_size;
  while (!ids.empty()) {
    const absl::StatusOr<int64_t> done =
        tiny.pass().PrefillChunk(ids.subspan(0, chunk_tokens), sequence);
    PAGODA_CHECK(done.ok());
    Floats hidden(*done * hidden_size);
    tiny.pass().FinalHidden(0, *done, absl::MakeSpan(hidden));
    for (int64_t row = 0; row < *done; row += 64) {
      const int64_t rows = std::min<int64_t>(64, *done - row);
      Floats logits(rows * tiny.config().vocab_size);
      tiny.pass().LogitsOf(
          absl::MakeConstSpan(hidden).subspan(row * hidden_size, rows * hidden_size),
          absl::MakeSpan(logits));
      trace.logits.insert(trace.logits.end(), logits.begin(), logits.end());
    }
    trace.hidden.insert(trace.hidden.end(), hidden.begin(), hidden.end());
    ids.remove_prefix(*done);
  }
  return trace;
}

bool SameBits(const Floats& a, const Floats& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

void ExpectMatchesReference(const RandomLlamaOptions& options, int64_t token_count) {
  TinyModel tiny(options);
  const std::vector<uint32_t> ids = tiny.RandomIds(token_count, 3);
  KvSequence sequence = tiny.MakeSequence();
  const Trace trace = Prefill(tiny, ids, 256, sequence);
  const std::vector<double> expected = ReferenceLogits(tiny.file(), tiny.config(), ids);
  double squares = 0;
  for (const double logit : expected) squares += logit * logit;
  const double spread = std::sqrt(squares / static_cast<double>(expected.size()));
  ASSERT_EQ(trace.logits.size(), expected.size());
  // A K or V that float and double round to different bf16 neighbours is off by 2^-9 of itself;
  // seen through the layers that is well below a hundredth of a logit's spread.
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(trace.logits[i], expected[i], 0.02 * spread) << "element " << i;
  }
  // Decode agrees with prefill as well as both agree with the reference.
  KvSequence decoded = tiny.MakeSequence();
  Floats logits(tiny.config().vocab_size);
  for (int64_t position = 0; position < std::min<int64_t>(token_count, 20); ++position) {
    PAGODA_ASSERT_OK(tiny.pass().DecodeStep(ids[position], decoded));
    tiny.pass().LastLogits(absl::MakeSpan(logits));
    for (size_t i = 0; i < logits.size(); ++i) {
      ASSERT_NEAR(logits[i], expected[position * logits.size() + i], 0.02 * spread);
    }
  }
}

TEST(ForwardPass, MatchesTheReferenceInEveryWeightType) {
  for (const TensorType type :
       {TensorType::kF32, TensorType::kF16, TensorType::kBf16, TensorType::kQ4_0, TensorType::kQ4_1,
        TensorType::kQ5_0, TensorType::kQ5_1, TensorType::kQ8_0}) {
    SCOPED_TRACE(TraitsOf(type).name);
    ExpectMatchesReference({.matrix_type = type}, 24);
  }
  SCOPED_TRACE("Q6_K");  // blocks of 256: rows of that many
  ExpectMatchesReference({.layer_count = 1,
                          .head_count = 16,
                          .hidden_size = 256,
                          .ffn_size = 256,
                          .matrix_type = TensorType::kQ6_K},
                         12);
}

TEST(ForwardPass, MatchesTheReferenceInEveryHeadShape) {
  struct Heads {
    uint32_t head_dim, head_count, kv_head_count;
  };
  for (const Heads& heads : {Heads{64, 9, 3}, Heads{128, 2, 1}, Heads{80, 4, 4}, Heads{16, 8, 1},
                             Heads{24, 2, 2}, Heads{256, 1, 1}}) {
    SCOPED_TRACE(heads.head_dim);
    ExpectMatchesReference({.head_count = heads.head_count,
                            .kv_head_count = heads.kv_head_count,
                            .head_dim = heads.head_dim,
                            .tied_embeddings = heads.head_count % 2 == 0},
                           70);
  }
}

TEST(ForwardPass, LinearRopeScalingDividesPositions) {
  const std::string bytes = RandomLlama({});
  const GgufFile plain = *GgufFile::FromBytes(AsBytes(bytes));
  LlamaConfig config = *ReadLlamaConfig(plain);
  config.rope_linear_factor = 4;
  RopeTable table(config);
  table.GrowTo(100);
  RopeTable unscaled(*ReadLlamaConfig(plain));
  unscaled.GrowTo(100);
  for (int64_t i = 0; i < table.half_count(); ++i) {
    EXPECT_EQ(table.cosines(96)[i], unscaled.cosines(24)[i]);
    EXPECT_EQ(table.sines(96)[i], unscaled.sines(24)[i]);
  }
}

class RowIndependence : public testing::TestWithParam<Precision> {};

TEST_P(RowIndependence, AcrossChunksAndThreads) {
  const RandomLlamaOptions options = {
      .head_count = 6, .kv_head_count = 2, .head_dim = 64, .context_tokens = 1024};
  TinyModel two(options, 2);
  const std::vector<uint32_t> ids = two.RandomIds(409, 4);
  KvSequence sequence = two.MakeSequence(GetParam(), 128);
  const Trace expected = Prefill(two, ids, 256, sequence);
  for (const int64_t chunk_tokens : {64, 128, 192}) {
    KvSequence other = two.MakeSequence(GetParam(), 128);
    const Trace trace = Prefill(two, ids, chunk_tokens, other);
    EXPECT_TRUE(SameBits(trace.hidden, expected.hidden)) << chunk_tokens;
    EXPECT_TRUE(SameBits(trace.logits, expected.logits)) << chunk_tokens;
  }
  for (const int thread_count : {1, 3}) {
    TinyModel threads(options, thread_count);
    KvSequence other = threads.MakeSequence(GetParam(), 128);
    EXPECT_TRUE(SameBits(Prefill(threads, ids, 256, other).logits, expected.logits))
        << thread_count << " threads";
  }
  // A prompt that ends elsewhere gives its tokens the same rows.
  for (const int64_t length : {1, 63, 64, 65, 130, 400}) {
    KvSequence other = two.MakeSequence(GetParam(), 128);
    const Trace trace = Prefill(two, absl::MakeConstSpan(ids).subspan(0, length), 256, other);
    const Floats prefix(expected.logits.begin(),
                        expected.logits.begin() + length * two.config().vocab_size);
    EXPECT_TRUE(SameBits(trace.logits, prefix)) << "prompt of " << length;
  }
}

TEST_P(RowIndependence, RecomputedPagesHoldWhatPrefillGives) {
  const RandomLlamaOptions options = {.head_dim = 64, .context_tokens = 1024};
  TinyModel tiny(options);
  const std::vector<uint32_t> ids = tiny.RandomIds(448, 5);
  KvSequence whole = tiny.MakeSequence(GetParam(), 64);
  Prefill(tiny, ids, 256, whole);
  // 300 tokens of prompt, the rest decoded one by one, pages recomputed as they fill.
  KvSequence grown = tiny.MakeSequence(GetParam(), 64);
  Prefill(tiny, absl::MakeConstSpan(ids).subspan(0, 300), 256, grown);
  for (int64_t position = 300; position < 448; ++position) {
    PAGODA_ASSERT_OK(tiny.pass().DecodeStep(ids[position], grown));
    if (grown.token_count() % 64 != 0) continue;
    const int64_t page = grown.full_page_count() - 1;
    PAGODA_ASSERT_OK(
        tiny.pass().RecomputePage(absl::MakeConstSpan(ids).subspan(page * 64, 64), grown));
  }
  ASSERT_EQ(grown.token_count(), whole.token_count());
  for (int64_t page = 0; page < whole.full_page_count(); ++page) {
    EXPECT_EQ(grown.fidelity(page), whole.fidelity(page)) << page;
    for (const bool encoded : {false, true}) {
      const PageBuffer* a = encoded ? grown.encoded_page(page) : grown.raw_page(page);
      const PageBuffer* b = encoded ? whole.encoded_page(page) : whole.raw_page(page);
      if (a == nullptr || b == nullptr) continue;  // freed at another moment
      for (size_t i = 0; i < a->segments().size(); ++i) {
        EXPECT_TRUE(a->segments()[i] == b->segments()[i]) << page << " segment " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(AllPrecisions, RowIndependence,
                         testing::Values(Precision::kRaw16, Precision::kQ8, Precision::kQ4),
                         [](const auto& info) { return std::string(PrecisionName(info.param)); });

TEST(ForwardPass, LowerPrecisionsStayClose) {
  TinyModel tiny({.head_dim = 64, .context_tokens = 1024});
  const std::vector<uint32_t> ids = tiny.RandomIds(600, 6);
  KvSequence raw = tiny.MakeSequence();
  const Floats expected = Prefill(tiny, ids, 256, raw).logits;
  double previous = 0;
  for (const Precision precision : {Precision::kQ8, Precision::kQ4}) {
    KvSequence sequence = tiny.MakeSequence(precision, 0);
    const Floats logits = Prefill(tiny, ids, 256, sequence).logits;
    double squares = 0;
    double total = 0;
    for (size_t i = 0; i < logits.size(); ++i) {
      squares += std::pow(double{logits[i]} - expected[i], 2);
      total += std::pow(double{expected[i]}, 2);
    }
    const double relative = std::sqrt(squares / total);
    EXPECT_GT(relative, previous * 4);  // four bits fewer: about 16 times the error
    EXPECT_LT(relative, precision == Precision::kQ8 ? 0.02 : 0.3);
    previous = relative;
  }
}

TEST(ForwardPass, LongDecodeMergesPartitions) {
  TinyModel tiny({.head_dim = 64, .context_tokens = 2048});
  const std::vector<uint32_t> ids = tiny.RandomIds(1088, 7);  // 17 pages: two partitions
  KvSequence sequence = tiny.MakeSequence();
  const int64_t vocab_size = tiny.config().vocab_size;
  const Trace trace = Prefill(tiny, ids, 256, sequence);
  sequence.Rewind(1087);
  PAGODA_ASSERT_OK(tiny.pass().DecodeStep(ids[1087], sequence));
  Floats logits(vocab_size);
  tiny.pass().LastLogits(absl::MakeSpan(logits));
  for (int64_t i = 0; i < vocab_size; ++i) {
    EXPECT_NEAR(logits[i], trace.logits[1087 * vocab_size + i], 1e-3);
  }
}

TEST(ForwardPass, RefusesForeignTokensAndSequences) {
  TinyModel tiny({.context_tokens = 128});
  KvSequence sequence = tiny.MakeSequence();
  const std::vector<uint32_t> beyond = {0, tiny.config().vocab_size};
  EXPECT_THAT(tiny.pass().PrefillChunk(beyond, sequence),
              StatusIs(absl::StatusCode::kInvalidArgument, "vocabulary"));
  EXPECT_THAT(tiny.pass().DecodeStep(tiny.config().vocab_size, sequence),
              StatusIs(absl::StatusCode::kInvalidArgument, "vocabulary"));
  EXPECT_EQ(sequence.token_count(), 0);

  const std::vector<uint32_t> ids = tiny.RandomIds(129, 8);
  EXPECT_THAT(tiny.pass().PrefillChunk(ids, sequence),
              StatusIs(absl::StatusCode::kInvalidArgument, "at most 128"));
  EXPECT_EQ(*tiny.pass().PrefillChunk(absl::MakeConstSpan(ids).subspan(0, 128), sequence), 128);
  EXPECT_THAT(tiny.pass().DecodeStep(1, sequence),
              StatusIs(absl::StatusCode::kInvalidArgument, "at most 128"));

  TinyModel other({.layer_count = 3});
  KvSequence foreign = other.MakeSequence();
  EXPECT_THAT(tiny.pass().DecodeStep(1, foreign), StatusIs(absl::StatusCode::kFailedPrecondition));
}

TEST(ForwardPass, BackendNameNamesBothLibraries) {
  const std::string name = ForwardPass::BackendName();
  EXPECT_NE(name.find("onednn-"), std::string::npos) << name;
  EXPECT_NE(name.find("simd "), std::string::npos) << name;
}

TEST(ForwardPass, HeadSizesThatPagesCannotHoldAreRefused) {
  const std::string bytes = RandomLlama({.head_dim = 12});
  ThreadPool pool(1);
  EXPECT_THAT(LlamaModel::Load(*GgufFile::FromBytes(AsBytes(bytes)), pool),
              StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace pagoda
