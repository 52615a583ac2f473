// pagoda eval ablate: what each way of saving bytes costs and gains, one at a time and together.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/ablation_report.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "client/cli/eval_inputs.h"
#include "client/cli/eval_step.h"
#include "client/cli/interrupt.h"
#include "client/cli/quality_plot.h"
#include "client/cli/resume.h"
#include "client/cli/shared_prefix.h"
#include "client/lab/ablation.h"
#include "client/lab/quality_run.h"
#include "kernels/layer_profile.h"
#include "storage/base/crc32c.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct AblateOptions {
  JsonOptions json;
  EvalFlags flags;
  ConnectionOptions connection;
  CLI::Option* daemon_flag = nullptr;
  bool in_process = false;
  int64_t q8_tokens = 1024;
  std::string profile;  // a file; empty: no row has one
  std::vector<int64_t> windows = {0, 128, 512, 1024, 2048};
  std::vector<std::string> rows;  // empty: all
  std::string plot;
  bool resume = false;
};

// One run of the command: every row over every text.
class Ablation {
 public:
  Ablation(const AblateOptions& options, EvalInputs inputs, std::optional<LayerProfile> profile,
           std::vector<lab::AblationRow> rows, AblationRun run)
      : options_(options),
        inputs_(std::move(inputs)),
        profile_(std::move(profile)),
        rows_(std::move(rows)),
        run_(std::move(run)) {
    for (const std::vector<uint32_t>& ids : inputs_.ids) digests_.push_back(DigestOf(ids));
  }

  absl::Status Run() {
    PAGODA_RETURN_IF_ERROR(Resume());
    const size_t total = rows_.size() * inputs_.names.size();
    PrintText(options_.json,
              absl::StrFormat("%s, %s, %d rows x %d texts\n", inputs_.engine->config().name,
                              run_.settings, rows_.size(), inputs_.names.size()));
    for (size_t text = 0; text < inputs_.names.size(); ++text) {
      lab::ExactReading exact;
      for (const lab::AblationRow& row : rows_) {
        if (Has(row.name, text)) continue;
        step_ = absl::StrFormat("%s, %s (%d of %d)", inputs_.names[text], row.name,
                                Measures().size() + 1, total);
        PAGODA_RETURN_IF_ERROR(MeasureOne(row, text, exact));
      }
    }
    return Report();
  }

 private:
  // Enough to tell an edited text from the one that was measured.
  static std::string DigestOf(const std::vector<uint32_t>& ids) {
    const absl::string_view bytes(reinterpret_cast<const char*>(ids.data()),
                                  ids.size() * sizeof(uint32_t));
    return absl::StrFormat("%08x", Crc32c(AsBytes(bytes)));
  }

  bool Is(const AblationMeasure& measure, const std::string& row, size_t text) const {
    return measure.row == row && measure.text == inputs_.names[text] &&
           measure.text_digest == digests_[text];
  }
  bool Has(const std::string& row, size_t text) const {
    return std::any_of(measures_.begin(), measures_.end(),
                       [&](const AblationMeasure& measure) { return Is(measure, row, text); });
  }
  // Those of this run's rows and texts: the file may hold more.
  std::vector<AblationMeasure> Measures() const {
    std::vector<AblationMeasure> found;
    for (const AblationMeasure& measure : measures_) {
      for (size_t text = 0; text < inputs_.names.size(); ++text) {
        for (const lab::AblationRow& row : rows_) {
          if (Is(measure, row.name, text)) found.push_back(measure);
        }
      }
    }
    return found;
  }

  absl::Status Resume() {
    const std::optional<std::string> json = EarlierJson(options_.resume, options_.json);
    if (!json.has_value()) return absl::OkStatus();
    absl::StatusOr<std::vector<AblationMeasure>> measures = AblationMeasuresOf(*json, run_);
    if (!measures.ok()) return ExplainResume(measures.status(), options_.json);
    measures_ = *std::move(measures);
    return absl::OkStatus();
  }

  template <typename Measure>
  auto Step(const std::string& step, Measure measure) const {
    return WithProgress(TextStream(options_.json), step, measure);
  }

  absl::Status MeasureOne(const lab::AblationRow& row, size_t text, lab::ExactReading& exact) {
    ForwardPass& pass = inputs_.engine->pass();
    if (exact.ids.empty()) {
      const std::string step = row.name == "raw16"
                                   ? step_
                                   : absl::StrCat(inputs_.names[text], ", raw16 to compare with");
      auto read = Step(step, [&](auto progress) {
        return lab::ReadExactly(pass, inputs_.ids[text], options_.flags.window_tokens, progress);
      });
      PAGODA_RETURN_IF_ERROR(CheckInterrupted());
      PAGODA_ASSIGN_OR_RETURN(exact, std::move(read));
    }
    absl::StatusOr<lab::ReadingResult> result =
        row.name == "raw16" ? lab::ResultOf(pass, exact) : Compare(row, exact);
    PAGODA_RETURN_IF_ERROR(CheckInterrupted());
    PAGODA_RETURN_IF_ERROR(result.status());
    measures_.push_back(
        MakeAblationMeasure(row.name, inputs_.names[text], digests_[text], *result));
    // What has been measured survives an interrupt.
    if (options_.json.path == "-") return absl::OkStatus();
    return WriteJson(options_.json, AblationJson(run_, measures_, Summaries()));
  }

  absl::StatusOr<lab::ReadingResult> Compare(const lab::AblationRow& row,
                                             const lab::ExactReading& exact) {
    if (row.shared_prefix) return CompareShared(row, exact);
    return Step(step_, [&](auto progress) {
      return lab::CompareReading(inputs_.engine->pass(), exact, {.kv = row.kv}, progress);
    });
  }

  absl::StatusOr<lab::ReadingResult> CompareShared(const lab::AblationRow& row,
                                                   const lab::ExactReading& exact) {
    ForwardPass& pass = inputs_.engine->pass();
    // Whole pages of the first half.
    const int64_t shared_tokens = static_cast<int64_t>(exact.ids.size()) / 2 /
                                  ForwardPass::kPageTokens * ForwardPass::kPageTokens;
    const auto half = absl::MakeConstSpan(exact.ids).subspan(0, static_cast<size_t>(shared_tokens));
    PAGODA_RETURN_IF_ERROR(StartSharing());
    PAGODA_RETURN_IF_ERROR(Step(absl::StrCat(step_, ", its first half"), [&](auto progress) {
      return lab::ReadInto(
          pass, half, {.kv = row.kv, .cache = &shared_->writer(), .decode_tokens = 0}, progress);
    }));
    PAGODA_RETURN_IF_ERROR(shared_->AwaitEncoded(half));
    const lab::Reading reading = {.kv = row.kv, .cache = &shared_->reader(shared_tokens)};
    PAGODA_ASSIGN_OR_RETURN(lab::ReadingResult result, Step(step_, [&](auto progress) {
                              return lab::CompareReading(pass, exact, reading, progress);
                            }));
    if (result.cost.hit_tokens == shared_tokens) return result;
    return absl::FailedPreconditionError(absl::StrFormat(
        "row %s: daemon %s served %d of %d tokens: %s", row.name, shared_->address(),
        result.cost.hit_tokens, shared_tokens,
        shared_->last_problem().ok()
            ? "its pages are below what the row reads; raise its ladder, or give it the profile"
            : shared_->last_problem().message()));
  }

  // A daemon of our own is a new one for each row and text: no row finds pages of another.
  absl::Status StartSharing() {
    const bool own = options_.daemon_flag->count() == 0;
    shared_.reset();
    PAGODA_ASSIGN_OR_RETURN(
        shared_, own ? SharedPrefix::StartOwn(*inputs_.engine, options_.flags.token_count, profile_)
                     : SharedPrefix::Connect(*inputs_.engine, options_.connection));
    return absl::OkStatus();
  }

  std::vector<AblationSummary> Summaries() const {
    std::vector<std::string> names;
    for (const lab::AblationRow& row : rows_) names.push_back(row.name);
    return SummarizeAblation(run_, Measures(), names, inputs_.names);
  }

  absl::Status Report() const {
    const std::vector<AblationSummary> summaries = Summaries();
    const std::string text = absl::StrCat(
        AblationTable(summaries), "\nBy position, all texts\n\n",
        PositionTable(Measures(), summaries),
        "\nbytes/token: the whole sequence at its end, headers, padding, window and tail counted; "
        "ratio: of raw16\nwithout padding. NLL, PPL: change against raw16, paired, with the "
        "standard error. KL: mean and 99th\npercentile, thousandths of a nat. TTFT: prefill of the "
        "text; tokens/s: decode after it; medians over\nthe texts. shared and all load the first "
        "half of the text and are scored on the second.\nPeak bytes hold what q3 and q2 are "
        "widened "
        "to for reading.\n");
    PrintText(options_.json, absl::StrCat("\n", text));
    if (!options_.plot.empty()) {
      const std::vector<QualityPoint> points =
          AblationPoints(summaries, options_.flags.window_tokens);
      PAGODA_RETURN_IF_ERROR(WriteOutput(options_.plot, absl::EndsWith(options_.plot, ".html")
                                                            ? QualityPage(points, text)
                                                            : QualityPlot(points)));
    }
    return WriteJson(options_.json, AblationJson(run_, measures_, summaries));
  }

  const AblateOptions& options_;
  EvalInputs inputs_;
  const std::optional<LayerProfile> profile_;
  const std::vector<lab::AblationRow> rows_;
  const AblationRun run_;
  std::unique_ptr<SharedPrefix> shared_;  // of the row that is measured
  std::vector<std::string> digests_;      // of the texts
  std::vector<AblationMeasure> measures_;
  std::string step_;  // what is measured now
};

absl::StatusOr<std::optional<LayerProfile>> ReadProfile(const AblateOptions& options,
                                                        const Engine& engine) {
  if (options.profile.empty()) return std::nullopt;
  PAGODA_ASSIGN_OR_RETURN(LayerProfile profile, ReadLayerProfile(options.profile));
  const absl::Status fits = profile.Check(IdentityOf(engine.model_spec()), engine.model_spec());
  if (fits.ok()) return profile;
  return absl::Status(fits.code(), absl::StrCat(options.profile, ": ", fits.message()));
}

// The rows that were asked for, raw16 first: the others are compared with it.
absl::StatusOr<std::vector<lab::AblationRow>> ChosenRows(const AblateOptions& options,
                                                         const lab::AblationPlan& plan) {
  std::vector<lab::AblationRow> rows = lab::AblationRows(plan);
  if (options.rows.empty()) return rows;
  std::vector<std::string> names;
  for (const lab::AblationRow& row : rows) names.push_back(row.name);
  for (const std::string& wanted : options.rows) {
    if (std::find(names.begin(), names.end(), wanted) != names.end()) continue;
    return absl::InvalidArgumentError(absl::StrFormat("--rows %s: with these flags there are %s",
                                                      wanted, absl::StrJoin(names, ", ")));
  }
  std::erase_if(rows, [&](const lab::AblationRow& row) {
    return row.name != "raw16" &&
           std::find(options.rows.begin(), options.rows.end(), row.name) == options.rows.end();
  });
  return rows;
}

absl::Status RunAblate(const AblateOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  PAGODA_RETURN_IF_ERROR(CheckJsonPath({options.plot}));
  CatchInterrupts();
  PAGODA_ASSIGN_OR_RETURN(EvalInputs inputs,
                          LoadEvalInputs(options.flags, TextStream(options.json)));
  const kernels::PageShape shape = inputs.engine->pass().model().page_shape();
  lab::AblationPlan plan;
  plan.window_tokens = options.flags.window_tokens;
  plan.q8_tokens = options.q8_tokens;
  plan.shared_prefix = !options.in_process;
  plan.grid_windows = options.windows;
  PAGODA_ASSIGN_OR_RETURN(std::optional<LayerProfile> profile,
                          ReadProfile(options, *inputs.engine));
  if (profile.has_value()) plan.k_lo_layers = profile->k_lo_layers;
  PAGODA_ASSIGN_OR_RETURN(std::vector<lab::AblationRow> rows, ChosenRows(options, plan));
  AblationRun run = {
      .model = IdentityOf(inputs.engine->model_spec()).hex(),
      .settings = absl::StrFormat("%d tokens, window %d, q8 to %d, K lo in [%s], cold q2, %s",
                                  options.flags.token_count, plan.window_tokens, plan.q8_tokens,
                                  absl::StrJoin(plan.k_lo_layers, " "),
                                  options.in_process                  ? "no daemon"
                                  : options.daemon_flag->count() == 0 ? "own daemon"
                                                                      : options.connection.daemon),
      .raw16_bytes_per_token = 4.0 * shape.layer_count * shape.head_count * shape.head_dim};
  return Ablation(options, std::move(inputs), std::move(profile), std::move(rows), std::move(run))
      .Run();
}

std::string CheckAblate(const AblateOptions& options) {
  const std::string resume = CheckResume(options.resume, options.json);
  if (!resume.empty()) return resume;
  if (options.in_process && options.daemon_flag->count() > 0) {
    return "--in-process uses no daemon, --daemon names one; leave out one of them";
  }
  if (!options.plot.empty() && !absl::EndsWith(options.plot, ".svg") &&
      !absl::EndsWith(options.plot, ".html")) {
    return absl::StrCat("--plot ", options.plot, ": name a file that ends in .svg or .html");
  }
  return CheckEvalFlags(options.flags);
}

}  // namespace

void AddEvalAblateCommand(CommandLine& commands, CLI::App* eval) {
  auto options = std::make_shared<AblateOptions>();
  CLI::App* const app = commands.AddApp(
      eval, "ablate", "Memory, quality and speed of every feature, one at a time and together",
      "raw16 first, then one way of saving bytes at a time, then all that go together, then q8 "
      "and\n"
      "q4 over a grid of windows. Teacher-forced as in eval ppl; every row computes its own K and "
      "V.\n\n"
      "  q8 to q2    all beyond the window at that precision\n"
      "  ladder      q8 for the last --q8-tokens, q4 beyond\n"
      "  profile     q4, and K keeps its lo plane in the layers of --profile\n"
      "  composite   raw16 for the last --q8-tokens, q2 beyond\n"
      "  shared      q4, the first half of the text from a daemon that keeps it at q8; scored on\n"
      "              the second half\n"
      "  all         ladder, profile and shared, as far as the flags allow them\n"
      "  q4 w512     q4 with that window\n\n"
      "TTFT and tokens/s are wall times: they need an idle machine. About 15 minutes on two cores\n"
      "for the 135M model.\n\n"
      "Example: pagoda eval ablate --profile deploy/profiles/smollm2-135m-instruct.yaml \\\n"
      "           --json ablate.json --resume --plot ablate.html\n"
      "         pagoda eval ablate --rows q4,ladder --text legal --tokens 8000\n\n"
      "JSON keys: model, settings, raw16_bytes_per_token, rows[] {name, bytes_per_token, ratio,\n"
      "  peak_bytes, nll_delta_pct, nll_delta_se, ppl_delta_pct, kl_mean, kl_p99, top1, ttft_ms,\n"
      "  decode_tps, hit_tokens}, measured[] {row, text, ..., windows[] [begin, end, nll, "
      "exact_nll]}\n");
  AddEvalFlags(*app, options->flags);
  app->add_option("--q8-tokens", options->q8_tokens, "most recent tokens at q8 in the ladder")
      ->type_name("N")
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_option("--profile", options->profile, "layer profile, as eval profile writes it")
      ->type_name("FILE");
  app->add_option("--windows", options->windows, "windows of the grid")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CLI::Range(0, 1 << 20))
      ->capture_default_str();
  app->add_option("--rows", options->rows, "only these, beside raw16")
      ->type_name("NAME,...")
      ->delimiter(',');
  app->add_flag("--in-process", options->in_process, "no daemon: leave out the rows that need one");
  AddConnectionFlags(*app, options->connection);
  options->daemon_flag = app->get_option("--daemon");
  app->add_option("--plot", options->plot, "KL over bytes: FILE.svg, or FILE.html with the table")
      ->type_name("FILE");
  AddResumeFlag(*app, options->resume);
  AddJsonFlag(*app, options->json);
  commands.Add({app, [options] { return CheckAblate(*options); },
                [options] { return RunAblate(*options); }});
}

}  // namespace pagoda::cli
