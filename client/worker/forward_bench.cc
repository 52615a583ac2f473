// How fast are prefill and decode, and where does the time go? Bounds: prefill by the peak of float
// products (2 * weights flops per token), decode by reading 4 bytes per weight and token.
//
//   forward_bench                            a small random model
//   forward_bench --model FILE --threads 2   a real one; then also --tokens 2500, --precision q4,
//                                            --window 128, --isa avx2 (of attention)
#include <benchmark/benchmark.h>

#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "client/worker/forward_pass.h"
#include "client/worker/gguf.h"
#include "client/worker/llama_model.h"
#include "client/worker/splitmix64.h"
#include "client/worker/testing/random_llama.h"
#include "kernels/isa.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

constexpr int64_t kDecodeTokens = 32;

struct Setup {
  std::string random_model;  // bytes; empty when a file was given
  std::unique_ptr<ThreadPool> pool;
  std::unique_ptr<LlamaModel> model;
  std::unique_ptr<ForwardPass> pass;
  KvOptions kv;
  std::vector<uint32_t> ids;
  std::optional<KvSequence> decoding;  // filled once, for every call of BenchDecode
};

Setup MakeSetup(const std::string& path, int threads, int64_t token_count, KvOptions kv) {
  Setup setup;
  setup.pool = std::make_unique<ThreadPool>(threads);
  if (path.empty()) {
    setup.random_model = RandomLlama({.head_count = 6,
                                      .kv_head_count = 2,
                                      .head_dim = 64,
                                      .hidden_size = 256,
                                      .ffn_size = 512,
                                      .context_tokens = 8192});
  }
  absl::StatusOr<GgufFile> file =
      path.empty() ? GgufFile::FromBytes(AsBytes(setup.random_model)) : GgufFile::Open(path);
  PAGODA_CHECK(file.ok());
  absl::StatusOr<std::unique_ptr<LlamaModel>> model = LlamaModel::Load(*file, *setup.pool);
  PAGODA_CHECK(model.ok());
  setup.model = *std::move(model);
  setup.pass = std::make_unique<ForwardPass>(*setup.model, *setup.pool);
  setup.kv = kv;
  setup.kv.token_count_max = setup.model->config().context_tokens;
  SplitMix64 random(1);
  for (int64_t i = 0; i < token_count; ++i) {
    setup.ids.push_back(static_cast<uint32_t>(random.Next() % setup.model->config().vocab_size));
  }
  return setup;
}

KvSequence MakeSequence(const Setup& setup) {
  absl::StatusOr<KvSequence> sequence =
      KvSequence::Make(setup.model->page_shape(), setup.model->config().rope_theta, setup.kv);
  PAGODA_CHECK(sequence.ok());
  return *std::move(sequence);
}

void Fill(Setup& setup, KvSequence& sequence) {
  while (sequence.token_count() < static_cast<int64_t>(setup.ids.size())) {
    PAGODA_CHECK(
        setup.pass
            ->PrefillChunk(absl::MakeConstSpan(setup.ids).subspan(sequence.token_count()), sequence)
            .ok());
  }
}

// Weights that take part in a product for every token.
double WeightCount(const LlamaConfig& config) {
  const double attention = 2.0 * config.hidden_size * (config.query_size() + config.kv_size());
  return config.layer_count * (attention + 3.0 * config.hidden_size * config.ffn_size);
}

void Report(const ForwardTimes& before, const ForwardTimes& after, int64_t tokens,
            benchmark::State& state) {
  const double scale = 1e6 / static_cast<double>(tokens);  // microseconds per token
  state.counters["us_matrix"] = (after.matrix_seconds - before.matrix_seconds) * scale;
  state.counters["us_attention"] = (after.attention_seconds - before.attention_seconds) * scale;
  state.counters["us_encode"] = (after.encode_seconds - before.encode_seconds) * scale;
  state.counters["us_logits"] = (after.logits_seconds - before.logits_seconds) * scale;
  state.counters["us_other"] = (after.other_seconds - before.other_seconds) * scale;
  state.counters["tokens_per_s"] =
      benchmark::Counter(static_cast<double>(tokens), benchmark::Counter::kIsRate);
}

void BenchPrefill(benchmark::State& state, Setup* setup) {
  const ForwardTimes before = setup->pass->times();
  int64_t tokens = 0;
  for (auto _ : state) {
    KvSequence sequence = MakeSequence(*setup);
    Fill(*setup, sequence);
    tokens += sequence.token_count();
  }
  const ForwardTimes after = setup->pass->times();
  Report(before, after, tokens, state);
  state.counters["matrix_gflops"] = 2 * WeightCount(setup->model->config()) *
                                    static_cast<double>(tokens) /
                                    (after.matrix_seconds - before.matrix_seconds) / 1e9;
}

void BenchDecode(benchmark::State& state, Setup* setup) {
  if (!setup->decoding.has_value()) {
    setup->decoding = MakeSequence(*setup);
    Fill(*setup, *setup->decoding);
  }
  KvSequence& sequence = *setup->decoding;
  std::vector<float> logits(setup->model->config().vocab_size);
  const auto start = static_cast<int64_t>(setup->ids.size());
  const ForwardTimes before = setup->pass->times();
  int64_t tokens = 0;
  for (auto _ : state) {
    // Back before pages leave the window: a rewound page must be raw.
    if (sequence.token_count() == start + kDecodeTokens) sequence.Rewind(start);
    PAGODA_CHECK(setup->pass->DecodeStep(setup->ids[tokens % 8], sequence).ok());
    setup->pass->LastLogits(absl::MakeSpan(logits));
    ++tokens;
  }
  Report(before, setup->pass->times(), tokens, state);
  sequence.Rewind(start);
}

// Takes "--name VALUE" out of the arguments; `fallback` when it is not there.
std::string TakeFlag(const char* name, const std::string& fallback, int* argc, char** argv) {
  for (int i = 1; i + 1 < *argc; ++i) {
    if (std::strcmp(argv[i], name) != 0) continue;
    std::string value = argv[i + 1];
    for (int j = i; j + 2 <= *argc; ++j) argv[j] = argv[j + 2];
    *argc -= 2;
    return value;
  }
  return fallback;
}

int Main(int argc, char** argv) {
  const std::string path = TakeFlag("--model", "", &argc, argv);
  int threads = 0;
  int64_t tokens = 0;
  KvOptions kv;
  PAGODA_CHECK(absl::SimpleAtoi(TakeFlag("--threads", "2", &argc, argv), &threads));
  PAGODA_CHECK(absl::SimpleAtoi(TakeFlag("--tokens", "300", &argc, argv), &tokens));
  const absl::StatusOr<Precision> precision =
      ParsePrecision(TakeFlag("--precision", "raw16", &argc, argv));
  PAGODA_CHECK(precision.ok());
  kv.precision = *precision;
  PAGODA_CHECK(absl::SimpleAtoi(TakeFlag("--window", "256", &argc, argv), &kv.window_tokens));
  if (kv.precision != Precision::kRaw16 && kv.window_tokens < 2 * kDecodeTokens) {
    std::fprintf(stderr, "forward_bench: --window %lld, at least %lld: decode goes back that far\n",
                 static_cast<long long>(kv.window_tokens),
                 static_cast<long long>(2 * kDecodeTokens));
    return 2;
  }
  const std::string isa = TakeFlag("--isa", kernels::AvailableIsas().front(), &argc, argv);
  PAGODA_CHECK(kernels::UseIsa(isa).ok());
  benchmark::Initialize(&argc, argv);
  Setup setup = MakeSetup(path, threads, tokens, kv);
  const int64_t tokens_max = setup.kv.token_count_max - kDecodeTokens;
  if (tokens < 1 || tokens > tokens_max) {
    std::fprintf(stderr, "forward_bench: --tokens %lld, expected 1 to %lld for this model\n",
                 static_cast<long long>(tokens), static_cast<long long>(tokens_max));
    return 2;
  }
  benchmark::RegisterBenchmark("prefill", BenchPrefill, &setup)->UseRealTime();
  benchmark::RegisterBenchmark("decode", BenchDecode, &setup)->UseRealTime();
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) { return pagoda::Main(argc, argv); }
