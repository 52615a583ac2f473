#include "client/cli/demo_run.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/demo_daemon.h"
#include "client/cli/demo_document.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress_line.h"
#include "client/cli/units.h"
#include "client/client.h"
#include "client/worker/engine.h"
#include "client/worker/pagoda_prefix_cache.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

constexpr int64_t kWindowTokens = 128;
constexpr size_t kTextWidth = 92;
constexpr char kQuestion[] = "What is this document about, and what may I do with the program?";
constexpr char kOtherQuestion[] = "Whose freedom does this document want to protect, and how?";

struct Question {
  std::string text;
  std::vector<uint32_t> prompt_ids;
  GenerateResult reference;  // without any cache, in raw16
};

struct Turn {
  const char* name;
  const char* tenant;
  Precision precision;
  const Question* question;
};

class Demo {
 public:
  explicit Demo(const DemoOptions& options) : options_(options) {}

  absl::StatusOr<DemoReport> Run();

 private:
  absl::Status LoadModel();
  absl::Status LoadDocument();
  absl::Status StartDaemon();
  absl::Status ComputeReference(Question& question);
  absl::Status RunTurn(const Turn& turn);
  absl::Status Restart();
  // The ratio of encoded pages to raw16.
  absl::StatusOr<double> Encode(Precision precision);
  absl::StatusOr<std::unique_ptr<client::Client>> Connect(const std::string& tenant) const;
  absl::Status CheckPrivateScope(const std::string& tenant);
  absl::StatusOr<GenerateResult> Generate(const Question& question, Precision precision,
                                          PrefixCache* cache, const std::string& step);

  FILE* stream() const { return TextStream(options_.json); }
  void Print(absl::string_view text) const { PrintText(options_.json, text); }

  const DemoOptions& options_;
  const TextTable table_ = DemoTable();
  std::unique_ptr<Engine> engine_;
  DemoDocument document_;
  Question question_;
  Question other_question_;
  double expected_seconds_ = 0;  // of a request without a hit
  DemoReport report_;
  std::unique_ptr<DemoDaemon> daemon_;
};

absl::StatusOr<DemoReport> Demo::Run() {
  PAGODA_RETURN_IF_ERROR(LoadModel());
  PAGODA_RETURN_IF_ERROR(LoadDocument());
  PAGODA_RETURN_IF_ERROR(StartDaemon());
  Print("\nFirst each request without any cache: what the others are compared with.\n");
  PAGODA_RETURN_IF_ERROR(ComputeReference(question_));
  PAGODA_RETURN_IF_ERROR(ComputeReference(other_question_));

  Print(
      absl::StrCat("\nThree tenants, one document, through pagodad. cold pays for asking in vain "
                   "and for pushing its pages.\n\n",
                   table_.Head()));
  const char* const reader = DemoDaemon::kReaders[0];
  const char* const other_reader = DemoDaemon::kReaders[1];
  PAGODA_RETURN_IF_ERROR(RunTurn({"cold", DemoDaemon::kPublisher, Precision::kRaw16, &question_}));
  PAGODA_RETURN_IF_ERROR(RunTurn({"warm", reader, Precision::kRaw16, &question_}));
  PAGODA_RETURN_IF_ERROR(
      RunTurn({"warm_other", other_reader, Precision::kRaw16, &other_question_}));
  PAGODA_RETURN_IF_ERROR(CheckPrivateScope(reader));
  PAGODA_RETURN_IF_ERROR(Restart());
  PAGODA_RETURN_IF_ERROR(RunTurn({"restart", reader, Precision::kRaw16, &question_}));
  PAGODA_ASSIGN_OR_RETURN(report_.kv_ratio_q8, Encode(Precision::kQ8));
  PAGODA_RETURN_IF_ERROR(RunTurn({"q8", other_reader, Precision::kQ8, &question_}));
  PAGODA_ASSIGN_OR_RETURN(report_.kv_ratio_q4, Encode(Precision::kQ4));
  PAGODA_RETURN_IF_ERROR(RunTurn({"q4", reader, Precision::kQ4, &question_}));
  Print(absl::StrCat("\n", DemoClaims(report_)));
  return std::move(report_);
}

absl::Status Demo::LoadModel() {
  const absl::Time start = absl::Now();
  std::optional<ProgressLine> line;
  EngineOptions engine_options;
  engine_options.model_path = options_.model;
  engine_options.thread_count = options_.thread_count;
  PAGODA_ASSIGN_OR_RETURN(engine_, Engine::Load(engine_options, [&](absl::string_view step) {
                            line.reset();
                            if (step != "ready") line.emplace(stream(), std::string(step));
                          }));
  line.reset();
  const LlamaConfig& config = engine_->config();
  Print(absl::StrFormat("model     %s: %d layers, %d kv heads of %d, loaded in %s\n", config.name,
                        config.layer_count, config.kv_head_count, config.head_dim,
                        FormatSeconds(absl::ToDoubleSeconds(absl::Now() - start))));
  return CheckInterrupted();
}

absl::Status Demo::LoadDocument() {
  const CountTokens count = [this](absl::string_view text) {
    return static_cast<int64_t>(engine_->tokenizer().Encode(text, ParseSpecial::kNo).size());
  };
  const std::vector<std::string> paths =
      options_.document.empty() ? StandardDocuments() : std::vector<std::string>{options_.document};
  PAGODA_ASSIGN_OR_RETURN(document_, LoadDemoDocument(paths, options_.document_tokens, count));
  Print(absl::StrFormat("document  %s, its first %s tokens\n", document_.path,
                        FormatCount(document_.token_count)));
  for (auto [question, text] :
       {std::pair{&question_, kQuestion}, std::pair{&other_question_, kOtherQuestion}}) {
    question->text = text;
    question->prompt_ids =
        engine_->EncodeChat(absl::StrCat(document_.text, "\n\nQuestion: ", text));
  }
  return absl::OkStatus();
}

absl::Status Demo::StartDaemon() {
  const int64_t raw16_bytes = int64_t{4} * engine_->config().layer_count *
                              engine_->config().kv_size() *
                              static_cast<int64_t>(question_.prompt_ids.size());
  // Room for the document at all three precisions, twice, so that nothing is evicted.
  const int64_t host_bytes = std::max(int64_t{512} << 20, 4 * raw16_bytes);
  const absl::Time start = absl::Now();
  std::optional<ProgressLine> line(std::in_place, stream(), "starting pagodad");
  PAGODA_ASSIGN_OR_RETURN(daemon_, DemoDaemon::Start(host_bytes));
  line.reset();
  Print(absl::StrFormat("daemon    pagodad at %s, up in %s; tenants %s (may publish), %s, %s\n",
                        daemon_->address(),
                        FormatSeconds(absl::ToDoubleSeconds(absl::Now() - start)),
                        DemoDaemon::kPublisher, DemoDaemon::kReaders[0], DemoDaemon::kReaders[1]));
  return absl::OkStatus();
}

absl::StatusOr<GenerateResult> Demo::Generate(const Question& question, Precision precision,
                                              PrefixCache* cache, const std::string& step) {
  GenerateOptions generate;
  generate.new_tokens_max = options_.new_tokens;
  generate.stop_ids = engine_->stop_ids();
  generate.precision = precision;
  generate.window_tokens = kWindowTokens;
  generate.cache = cache;
  absl::StatusOr<GenerateResult> result;
  {
    const bool without_hit = cache == nullptr;
    const ProgressLine line(stream(), step, without_hit ? expected_seconds_ : 0);
    result =
        engine_->Generate(question.prompt_ids, generate, [](uint32_t) { return !Interrupted(); });
  }
  PAGODA_RETURN_IF_ERROR(CheckInterrupted());
  return result;
}

absl::Status Demo::ComputeReference(Question& question) {
  const absl::Time start = absl::Now();
  PAGODA_ASSIGN_OR_RETURN(
      question.reference,
      Generate(question, Precision::kRaw16, nullptr,
               absl::StrFormat("no cache: prefill of %s tokens and an answer",
                               FormatCount(static_cast<int64_t>(question.prompt_ids.size())))));
  expected_seconds_ = absl::ToDoubleSeconds(absl::Now() - start);
  Print(absl::StrFormat("  no cache: first token after %s, then %.1f tokens/s: \"%s\"\n",
                        FormatSeconds(question.reference.ttft_seconds),
                        question.reference.decode_tokens_per_second, question.text));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<client::Client>> Demo::Connect(const std::string& tenant) const {
  client::ClientOptions client_options;
  client_options.target = daemon_->address();
  client_options.token = daemon_->token(tenant);
  client_options.client_name = "pagoda-demo";
  client_options.model = engine_->model_spec();
  client_options.page_tokens = LlamaModel::kPageTokens;
  client_options.backend_tag = BackendTagOf(engine_->backend());
  // Nobody waits for this answer, and a busy machine must not turn a hit into a miss.
  client_options.control_timeout = absl::Seconds(10);
  client_options.transfer_timeout = absl::Seconds(60);
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<client::Client> made,
                          client::Client::Create(client_options));
  PAGODA_RETURN_IF_ERROR(made->WaitConnected(absl::Seconds(10)));
  return made;
}

absl::Status Demo::RunTurn(const Turn& turn) {
  PAGODA_RETURN_IF_ERROR(daemon_->CheckAlive());
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> client, Connect(turn.tenant));
  PagodaPrefixCache cache(*client, {ScopeKind::kPublic, ""});
  PAGODA_ASSIGN_OR_RETURN(
      const GenerateResult result,
      Generate(*turn.question, turn.precision, &cache, absl::StrCat("running ", turn.name)));
  PAGODA_RETURN_IF_ERROR(daemon_->CheckAlive());
  if (!cache.last_problem().ok()) {
    Print(absl::StrCat("  ", turn.name, " could not use the daemon as it wanted: ",
                       std::string(cache.last_problem().message()), "\n"));
  }
  DemoRun run;
  run.name = turn.name;
  run.tenant = turn.tenant;
  run.prompt_tokens = result.prompt_tokens;
  run.hit_tokens = result.hit.tokens;
  run.hit_tier = result.hit.tier;
  run.ttft_seconds = result.ttft_seconds;
  run.decode_tokens_per_second = result.decode_tokens_per_second;
  run.kv_bytes_per_token = result.kv_bytes_per_token;
  run.raw16_bytes_per_token = result.raw16_bytes_per_token;
  run.token_agreement = TokenAgreement(result.ids, turn.question->reference.ids);
  Print(table_.Row(DemoRow(run)));
  Print(WrapText(engine_->tokenizer().Decode(result.ids), kTextWidth, "    | "));
  report_.runs.push_back(std::move(run));
  return absl::OkStatus();
}

absl::Status Demo::CheckPrivateScope(const std::string& tenant) {
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<client::Client> client, Connect(tenant));
  const std::optional<client::ScopeInfo> scope = client->FindScope({ScopeKind::kPrivate, ""});
  if (!scope.has_value()) {
    return absl::InternalError(absl::StrCat(tenant, " has no private scope"));
  }
  client::LookupQuery query;
  query.chains = {
      {scope->id, KeyChain(scope->root, question_.prompt_ids, LlamaModel::kPageTokens)}};
  query.peek = true;
  PAGODA_ASSIGN_OR_RETURN(const client::LookupResult found, client->Lookup(query));
  if (!found.pages.empty()) {
    return absl::InternalError(absl::StrFormat("%s's private scope has %d pages it never stored",
                                               tenant, found.pages.size()));
  }
  Print(
      absl::StrFormat("  in %s's private scope the same prompt finds 0 of %d pages: scopes are in "
                      "the keys\n",
                      tenant, query.chains[0].keys.size()));
  return absl::OkStatus();
}

absl::Status Demo::Restart() {
  std::optional<ProgressLine> line(std::in_place, stream(), "flushing and restarting pagodad");
  PAGODA_ASSIGN_OR_RETURN(const double seconds, daemon_->Restart());
  line.reset();
  Print(absl::StrFormat("  pagodad stopped by SIGTERM and started again: it serves after %s\n",
                        FormatSeconds(seconds)));
  return absl::OkStatus();
}

absl::StatusOr<double> Demo::Encode(Precision precision) {
  const std::string name(PrecisionName(precision));
  const absl::Time start = absl::Now();
  std::optional<ProgressLine> line(std::in_place, stream(), absl::StrCat("ladder ", name));
  PAGODA_ASSIGN_OR_RETURN(const DemoDaemon::Encoded encoded,
                          daemon_->Encode(IdentityOf(engine_->model_spec()), precision));
  line.reset();
  const LlamaConfig& config = engine_->config();
  const int64_t raw16_page_bytes =
      int64_t{4} * config.layer_count * config.kv_size() * LlamaModel::kPageTokens;
  const double ratio =
      static_cast<double>(encoded.bytes) / static_cast<double>(encoded.pages * raw16_page_bytes);
  Print(absl::StrFormat("  pagoda ladder %s: %d pages encoded in %s, %s -> %s (%.3f)\n", name,
                        encoded.pages, FormatSeconds(absl::ToDoubleSeconds(absl::Now() - start)),
                        FormatBytes(static_cast<double>(encoded.pages * raw16_page_bytes)),
                        FormatBytes(static_cast<double>(encoded.bytes)), ratio));
  return ratio;
}

}  // namespace

absl::StatusOr<DemoReport> RunDemo(const DemoOptions& options) { return Demo(options).Run(); }

}  // namespace pagoda::cli
