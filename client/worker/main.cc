// pagoda-worker: the reference inference worker. Flags here; the work is in engine.h and
// pagoda_prefix_cache.h.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <sstream>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/client.h"
#include "client/worker/engine.h"
#include "client/worker/pagoda_prefix_cache.h"
#include "client/worker/worker_request.h"
#include "kernels/layer_profile.h"
#include "proto/wire.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr size_t kLineBytesMax = 64 << 20;

struct Flags {
  std::string model;
  int threads = 0;
  std::string daemon;
  std::string token;
  client::TlsOptions tls;
  std::string scope = "private";
  std::string precision = "q8";
  int64_t window = 256;
  std::string profile;
  std::string prompt;
  std::string prompt_file;
  int64_t max_tokens = 128;
  float temperature = 0;
  float top_p = 1;
  uint64_t seed = 0;
  bool raw_prompt = false;
  bool json = false;
  bool quiet = false;
};

void AddFlags(CLI::App& app, Flags& flags) {
  app.add_option("--model", flags.model, "GGUF file (default: the installed model)");
  app.add_option("--threads", flags.threads, "threads (default: all, at most 16)")
      ->check(CLI::Range(0, 256));
  app.add_option("--daemon", flags.daemon,
                 "pagodad to share K and V with, host:port or unix:/path (default: none)");
  app.add_option("--token", flags.token, "token of the daemon's token file");
  CLI::Option* const ca =
      app.add_option("--tls-ca", flags.tls.ca,
                     "speak TLS with the daemon: PEM file of its certificate's authority")
          ->envname("PAGODA_TLS_CA");
  CLI::Option* const certificate =
      app.add_option("--tls-cert", flags.tls.certificate,
                     "PEM file of this worker's certificate, where the daemon wants one")
          ->envname("PAGODA_TLS_CERT")
          ->needs(ca);
  CLI::Option* const key = app.add_option("--tls-key", flags.tls.key, "its key, mode 0600")
                               ->envname("PAGODA_TLS_KEY")
                               ->needs(certificate);
  certificate->needs(key);
  app.add_option("--tls-server-name", flags.tls.server_name,
                 "the daemon's name in its certificate, where it is not that of --daemon")
      ->envname("PAGODA_TLS_SERVER_NAME")
      ->needs(ca);
  app.add_option("--scope", flags.scope, "who may share: private, public or group:NAME")
      ->capture_default_str();
  app.add_option("--precision", flags.precision,
                 "of K and V beyond the window: raw16, q8, q4, q3 or q2 (the last two save bytes "
                 "in the daemon, not here)")
      ->capture_default_str();
  app.add_option("--window", flags.window, "recent tokens that stay raw16")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  app.add_option("--profile", flags.profile,
                 "layer profile of the model (pagoda eval profile): layers whose K keeps its lo\n"
                 "plane at q4; give the daemon the same");
  app.add_option("--prompt", flags.prompt, "answer this and end");
  app.add_option("--prompt-file", flags.prompt_file, "answer the text of this file and end");
  app.add_option("--max-tokens", flags.max_tokens, "new tokens at most")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--temperature", flags.temperature, "0: greedy")->capture_default_str();
  app.add_option("--top-p", flags.top_p, "keep the likeliest tokens up to this mass")
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "of sampling")->capture_default_str();
  app.add_flag("--raw-prompt", flags.raw_prompt, "give the prompt as it is, without chat format");
  app.add_flag("--json", flags.json, "print the answer as one JSON line");
  app.add_flag("--quiet", flags.quiet, "say nothing but answers and errors");
  app.footer(
      "Without --prompt and --prompt-file requests are read from standard input, one JSON object\n"
      "per line, and answered likewise:\n"
      "  {\"id\": \"a\", \"prompt\": \"What is a KV cache?\", \"max_tokens\": 64}\n"
      "keys: id, prompt or token_ids, chat, max_tokens, temperature, top_p, seed, precision, "
      "window,\n"
      "  load (by_layer, whole)\n"
      "answer keys: id, prompt_tokens, hit_tokens, hit_tier, hit_precision, hit_bytes, ttft_ms,\n"
      "  load_ms, wait_ms, decode_tps, kv_bytes_per_token, raw16_bytes_per_token, finish, "
      "token_ids, text,\n"
      "  logits_digest, cache_problem; or id, error\n\n"
      "Examples:\n"
      "  pagoda-worker --prompt \"Why is the sky blue?\"\n"
      "  pagoda-worker --daemon 127.0.0.1:7070 --precision q4 --prompt-file notes.txt");
}

class Worker {
 public:
  explicit Worker(const Flags& flags) : flags_(flags) {}

  absl::Status Start() {
    PAGODA_ASSIGN_OR_RETURN(const Scope scope, ParseScope(flags_.scope));
    PAGODA_ASSIGN_OR_RETURN(defaults_.options.precision, ParsePrecision(flags_.precision));
    defaults_.options.window_tokens = flags_.window;
    defaults_.options.new_tokens_max = flags_.max_tokens;
    defaults_.options.sampling = {flags_.temperature, flags_.top_p, flags_.seed};
    defaults_.chat = !flags_.raw_prompt;
    PAGODA_RETURN_IF_ERROR(defaults_.options.sampling.Validate());
    PAGODA_ASSIGN_OR_RETURN(engine_, Engine::Load({flags_.model, flags_.threads}, [&](auto step) {
                              if (!flags_.quiet) Say(step);
                            }));
    defaults_.options.stop_ids = engine_->stop_ids();
    PAGODA_RETURN_IF_ERROR(TakeProfile());
    if (!flags_.daemon.empty()) PAGODA_RETURN_IF_ERROR(ConnectTo(scope));
    return absl::OkStatus();
  }

  absl::StatusOr<WorkerAnswer> Answer(const WorkerRequest& request, bool stream_text) {
    std::vector<uint32_t> ids = request.token_ids;
    if (ids.empty()) {
      ids = request.chat ? engine_->EncodeChat(request.prompt)
                         : engine_->tokenizer().Encode(request.prompt, ParseSpecial::kNo);
    }
    WorkerAnswer answer;
    answer.id = request.id;
    std::string digests;
    GenerateOptions options = request.options;
    options.cache = cache_.get();
    options.on_logits = [&](absl::Span<const float> logits) {
      const Sha256Digest digest = Sha256(absl::string_view(
          reinterpret_cast<const char*>(logits.data()), logits.size() * sizeof(float)));
      digests.append(reinterpret_cast<const char*>(digest.data()), digest.size());
    };
    PAGODA_ASSIGN_OR_RETURN(answer.result, engine_->Generate(ids, options, [&](uint32_t id) {
      if (stream_text) Print(engine_->tokenizer().TokenBytes(id));
      return true;
    }));
    answer.text = engine_->tokenizer().Decode(answer.result.ids);
    const Sha256Digest digest = Sha256(digests);
    answer.logits_digest = absl::BytesToHexString(
        absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
    if (cache_ != nullptr) {
      if (!cache_->last_problem().ok()) answer.cache_problem = cache_->last_problem().ToString();
      client_->ReportTtft({}, answer.result.ttft_seconds,
                          static_cast<uint32_t>(answer.result.prompt_tokens),
                          static_cast<uint32_t>(answer.result.hit.tokens));
    }
    return answer;
  }

  absl::Status AnswerOne() {
    WorkerRequest request = defaults_;
    request.prompt = flags_.prompt;
    if (!flags_.prompt_file.empty()) {
      std::ifstream file(flags_.prompt_file);
      if (!file) {
        return absl::NotFoundError(absl::StrCat("cannot read the prompt file ", flags_.prompt_file,
                                                ": ", strerror(errno)));
      }
      std::stringstream text;
      text << file.rdbuf();
      request.prompt = text.str();
    }
    if (request.prompt.empty()) return absl::InvalidArgumentError("the prompt is empty");
    PAGODA_ASSIGN_OR_RETURN(const WorkerAnswer answer, Answer(request, !flags_.json));
    if (flags_.json) {
      Print(FormatWorkerAnswer(answer) + "\n");
      return absl::OkStatus();
    }
    const GenerateResult& r = answer.result;
    Print("\n");
    if (!flags_.quiet) {
      Say(absl::StrFormat(
          "%d prompt tokens, %d from %s, first token after %.0f ms, %.1f tokens/s, %.0f bytes "
          "of K and V a token (raw16 %.0f)%s%s",
          r.prompt_tokens, r.hit.tokens, r.hit.tier, r.ttft_seconds * 1e3,
          r.decode_tokens_per_second, r.kv_bytes_per_token, r.raw16_bytes_per_token,
          answer.cache_problem.empty() ? "" : "; cache: ", answer.cache_problem));
    }
    return absl::OkStatus();
  }

  absl::Status AnswerLines() {
    std::string line;
    while (std::getline(std::cin, line)) {
      if (line.empty()) continue;
      absl::StatusOr<WorkerRequest> request =
          line.size() > kLineBytesMax
              ? absl::InvalidArgumentError("request: the line is longer than 64 MiB")
              : ParseWorkerRequest(line, defaults_);
      const std::string id = request.ok() ? request->id : "";
      const absl::StatusOr<WorkerAnswer> answer =
          request.ok() ? Answer(*request, false) : request.status();
      Print((answer.ok() ? FormatWorkerAnswer(*answer) : FormatWorkerError(id, answer.status())) +
            "\n");
    }
    return absl::OkStatus();
  }

  // What went by which path, for people.
  void SayPaths() const {
    if (client_ == nullptr || flags_.quiet || flags_.json) return;
    std::fputs(client_->stats().PathLines().c_str(), stderr);
  }

  static void Say(absl::string_view text) {
    std::fprintf(stderr, "%.*s\n", static_cast<int>(text.size()), text.data());
  }

 private:
  static void Print(absl::string_view text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }

  absl::Status TakeProfile() {
    if (flags_.profile.empty()) return absl::OkStatus();
    PAGODA_ASSIGN_OR_RETURN(const LayerProfile profile, ReadLayerProfile(flags_.profile));
    const ModelSpec& spec = engine_->model_spec();
    if (absl::Status fits = profile.Check(IdentityOf(spec), spec); !fits.ok()) {
      return absl::FailedPreconditionError(absl::StrCat(flags_.profile, ": ", fits.message()));
    }
    defaults_.options.k_lo_layers = profile.k_lo_layers;
    return absl::OkStatus();
  }

  absl::Status ConnectTo(const Scope& scope) {
    client::ClientOptions options;
    options.target = flags_.daemon;
    options.token = flags_.token;
    options.tls = flags_.tls;
    options.client_name = "pagoda-worker";
    options.model = engine_->model_spec();
    options.page_tokens = LlamaModel::kPageTokens;
    options.backend_tag = BackendTagOf(engine_->backend());
    PAGODA_ASSIGN_OR_RETURN(client_, client::Client::Create(options));
    const absl::Status connected = client_->WaitConnected(options.connect_timeout);
    if (!connected.ok() && connected.code() != absl::StatusCode::kUnavailable &&
        connected.code() != absl::StatusCode::kDeadlineExceeded) {
      return connected;  // A wrong token or version does not heal by waiting.
    }
    if (!connected.ok()) {
      LogWarning("daemon_away", {{"target", flags_.daemon},
                                 {"cause", std::string(connected.message())},
                                 {"effect", "everything is computed here until it comes"}});
    }
    cache_ = std::make_unique<PagodaPrefixCache>(*client_, scope);
    return absl::OkStatus();
  }

  const Flags& flags_;
  WorkerRequest defaults_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<client::Client> client_;
  std::unique_ptr<PagodaPrefixCache> cache_;
};

int Run(const Flags& flags) {
  Worker worker(flags);
  absl::Status status = worker.Start();
  const bool one = !flags.prompt.empty() || !flags.prompt_file.empty();
  if (status.ok()) status = one ? worker.AnswerOne() : worker.AnswerLines();
  worker.SayPaths();
  if (status.ok()) return 0;
  Worker::Say(absl::StrCat("pagoda-worker: ", status.message()));
  return 1;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  ::setenv("GRPC_VERBOSITY", "none", /*replace=*/0);  // what it would say, errors say
  CLI::App app("pagoda-worker: runs a Llama-family model and keeps its K and V in Pagoda pages");
  pagoda::Flags flags;
  pagoda::AddFlags(app, flags);
  app.set_version_flag("--version", "pagoda-worker 0.1.0");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  return pagoda::Run(flags);
}
