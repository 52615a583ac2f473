// pagoda eval profile: which layers' lo plane of K is worth its bytes, measured layer by layer.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/codec_report.h"
#include "client/cli/commands.h"
#include "client/cli/eval_inputs.h"
#include "client/cli/eval_step.h"
#include "client/cli/eval_texts.h"
#include "client/cli/interrupt.h"
#include "client/cli/progress_line.h"
#include "client/lab/layer_choice.h"
#include "client/lab/quality_run.h"
#include "kernels/layer_profile.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct ProfileOptions {
  JsonOptions json;
  EvalFlags flags;
  double bits_max = 4.9;
  std::string measure_text = "legal";
  int64_t measure_tokens = 1024;
  std::vector<int32_t> layers;  // not empty: nothing is measured or chosen
  std::string out;              // empty: only printed
};

// One run of the command: gains, choice, check on whole texts.
class ProfileRun {
 public:
  ProfileRun(const ProfileOptions& options, EvalInputs inputs)
      : options_(options),
        inputs_(std::move(inputs)),
        pass_(inputs_.engine->pass()),
        shape_(pass_.model().page_shape()) {}

  absl::Status Run() {
    if (options_.layers.empty()) PAGODA_RETURN_IF_ERROR(MeasureGains());
    PAGODA_ASSIGN_OR_RETURN(const LayerProfile profile, Choose());
    const std::string yaml = LayerProfileYaml(profile);
    PrintText(options_.json, absl::StrCat("\n", yaml, "\n"));
    if (!options_.out.empty()) PAGODA_RETURN_IF_ERROR(WriteOutput(options_.out, yaml));
    PAGODA_RETURN_IF_ERROR(Check(profile));
    return WriteJson(options_.json, Result(profile));
  }

 private:
  absl::StatusOr<lab::ExactReading> ReadExactly(const std::string& name,
                                                std::vector<uint32_t> ids) {
    return WithProgress(
        TextStream(options_.json), absl::StrCat(name, ", raw16"), [&](auto progress) {
          return lab::ReadExactly(pass_, std::move(ids), options_.flags.window_tokens, progress);
        });
  }

  // KL of each layer alone with the lo plane of K, all else at q4, and of q4 itself.
  absl::Status MeasureGains() {
    PAGODA_ASSIGN_OR_RETURN(
        std::vector<uint32_t> ids,
        ReadEvalText(options_.measure_text, options_.measure_tokens, inputs_.engine->tokenizer()));
    PAGODA_ASSIGN_OR_RETURN(const lab::ExactReading exact,
                            ReadExactly(options_.measure_text, std::move(ids)));
    const int32_t layer_count = shape_.layer_count;
    ProgressLine line(TextStream(options_.json),
                      absl::StrFormat("%s, %d tokens, %d layers", options_.measure_text,
                                      options_.measure_tokens, layer_count));
    const auto measure = [&](int32_t runs_done, std::vector<int32_t> k_lo_layers) {
      const auto progress = [&](int64_t done, int64_t total) {
        line.set_share((runs_done + static_cast<double>(done) / total) / (layer_count + 1));
        return !Interrupted();
      };
      return lab::ComparePlanes(pass_, exact, lab::PlanesOf(layer_count, k_lo_layers), progress);
    };
    PAGODA_ASSIGN_OR_RETURN(const QualitySummary q4, measure(0, {}));
    measured_q4_kl_ = q4.mean_kl;
    for (int32_t layer = 0; layer < layer_count; ++layer) {
      PAGODA_ASSIGN_OR_RETURN(const QualitySummary quality, measure(layer + 1, {layer}));
      gains_.push_back(measured_q4_kl_ - quality.mean_kl);
    }
    return absl::OkStatus();
  }

  absl::StatusOr<LayerProfile> Choose() const {
    LayerProfile profile;
    profile.model = inputs_.engine->config().name;
    profile.identity = IdentityOf(inputs_.engine->model_spec());
    profile.layer_count = shape_.layer_count;
    if (options_.layers.empty()) {
      profile.k_lo_layers = lab::ChooseLayers(shape_, gains_, options_.bits_max);
      PrintText(options_.json, GainText(profile));
    } else {
      const std::set<int32_t> layers(options_.layers.begin(), options_.layers.end());
      if (*layers.rbegin() >= shape_.layer_count) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "--layers %d: the model has layers 0 to %d", *layers.rbegin(), shape_.layer_count - 1));
      }
      profile.k_lo_layers.assign(layers.begin(), layers.end());
    }
    profile.bits = lab::ProfileBits(shape_, static_cast<int32_t>(profile.k_lo_layers.size()));
    return profile;
  }

  std::string GainText(const LayerProfile& profile) const {
    TextTable table({{"layer", Align::kRight},
                     {"gain e-3", Align::kRight},
                     {"of q4's KL", Align::kRight},
                     {"kept", Align::kLeft}});
    for (int32_t layer = 0; layer < shape_.layer_count; ++layer) {
      const bool kept =
          std::binary_search(profile.k_lo_layers.begin(), profile.k_lo_layers.end(), layer);
      table.AddRow({absl::StrCat(layer), absl::StrFormat("%+.4f", 1000 * gains_[layer]),
                    absl::StrFormat("%+.1f %%", 100 * gains_[layer] / measured_q4_kl_),
                    kept ? "K lo" : ""});
    }
    return absl::StrFormat("%s, %s, %d tokens, window %d: KL of q4 %.3fe-3\n\n%s", profile.model,
                           options_.measure_text, options_.measure_tokens,
                           options_.flags.window_tokens, 1000 * measured_q4_kl_, table.Render());
  }

  // q4 and the profile over every text; those that were not measured are held out.
  absl::Status Check(const LayerProfile& profile) {
    const TextTable lines = CodecLines();
    PrintText(options_.json, lines.Head());
    const double lo_bits = 2 * (profile.bits - lab::ProfileBits(shape_, 0));
    const double v_bits = lab::ProfileBits(shape_, 0) - 8.0 / shape_.page_tokens;
    for (size_t i = 0; i < inputs_.names.size(); ++i) {
      PAGODA_ASSIGN_OR_RETURN(const lab::ExactReading exact,
                              ReadExactly(inputs_.names[i], inputs_.ids[i]));
      for (const bool with_profile : {false, true}) {
        const std::string name = with_profile ? "profile" : "q4";
        const std::vector<int32_t> layers =
            with_profile ? profile.k_lo_layers : std::vector<int32_t>();
        PAGODA_ASSIGN_OR_RETURN(
            const QualitySummary quality,
            WithProgress(TextStream(options_.json), absl::StrCat(inputs_.names[i], ", ", name),
                         [&](auto progress) {
                           return lab::ComparePlanes(
                               pass_, exact, lab::PlanesOf(shape_.layer_count, layers), progress);
                         }));
        rows_.push_back(
            MakeCodecRow(name, v_bits + 16.0 / shape_.page_tokens + (with_profile ? lo_bits : 0),
                         v_bits, inputs_.names[i], quality));
      }
      for (size_t row = rows_.size() - 2; row < rows_.size(); ++row) {
        PrintText(options_.json, lines.Row(CodecLine(rows_[row])));
      }
    }
    double sum = 0;
    for (size_t row = 1; row < rows_.size(); row += 2) sum += rows_[row].kl_mean;
    PrintText(options_.json,
              absl::StrFormat("\nprofile: %.3f bits, mean KL over the texts %.3fe-3%s\n",
                              profile.bits, 2000 * sum / static_cast<double>(rows_.size()),
                              options_.layers.empty()
                                  ? absl::StrCat("; layers were chosen on ", options_.measure_text)
                                  : ""));
    return absl::OkStatus();
  }

  Json Result(const LayerProfile& profile) const {
    const CodecRun run = {.model = profile.identity.hex(),
                          .token_count = options_.flags.token_count,
                          .window_tokens = options_.flags.window_tokens};
    Json json = CodecJson(run, rows_);
    json["bits"] = profile.bits;
    json["k_lo_layers"] = profile.k_lo_layers;
    if (!options_.layers.empty()) return json;
    json["measured_text"] = options_.measure_text;
    json["measured_tokens"] = options_.measure_tokens;
    json["measured_q4_kl"] = measured_q4_kl_;
    json["gains"] = gains_;
    return json;
  }

  const ProfileOptions& options_;
  EvalInputs inputs_;
  ForwardPass& pass_;
  const kernels::PageShape shape_;
  double measured_q4_kl_ = 0;
  std::vector<double> gains_;   // of each layer
  std::vector<CodecRow> rows_;  // of each text: q4, profile
};

absl::Status RunProfile(const ProfileOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  PAGODA_RETURN_IF_ERROR(CheckJsonPath({options.out}));
  CatchInterrupts();
  PAGODA_ASSIGN_OR_RETURN(EvalInputs inputs,
                          LoadEvalInputs(options.flags, TextStream(options.json)));
  const absl::Status status = ProfileRun(options, std::move(inputs)).Run();
  PAGODA_RETURN_IF_ERROR(CheckInterrupted());
  return status;
}

std::string CheckProfile(const ProfileOptions& options) {
  EvalFlags measured = options.flags;
  measured.token_count = options.measure_tokens;
  if (!CheckEvalFlags(measured).empty()) {
    return absl::StrFormat("--measure-tokens %d is too few for --window %d", options.measure_tokens,
                           options.flags.window_tokens);
  }
  return CheckEvalFlags(options.flags);
}

}  // namespace

void AddEvalProfileCommand(CommandLine& commands, CLI::App* eval) {
  auto options = std::make_shared<ProfileOptions>();
  CLI::App* const app = commands.AddApp(
      eval, "profile", "Which layers keep the lo plane of K when pages age to q4",
      "Measures for each layer by how much mean KL drops when its K alone is read at 8 bits, "
      "takes\n"
      "the best layers that the budget allows, and checks the profile on whole texts. A pass over\n"
      "--measure-tokens for each layer: about two minutes on two cores for the 135M model.\n\n"
      "Example: pagoda eval profile --budget 4.9 --out profile.yaml\n"
      "         pagoda eval profile --layers 18,19 --text tech\n\n"
      "JSON keys: model, tokens, window, rows[] {codec: q4 or profile, k_bits, v_bits, text,\n"
      "  nll_delta_pct, nll_delta_se, kl_mean, kl_p99, top1}, bits, k_lo_layers[],\n"
      "  measured_text, measured_tokens, measured_q4_kl, gains[] (without --layers)\n");
  AddEvalFlags(*app, options->flags);
  app->add_option("--budget", options->bits_max, "bits per element, mean of K and V")
      ->type_name("BITS")
      ->check(CLI::Range(4.0, 9.0))
      ->capture_default_str();
  app->add_option("--measure-text", options->measure_text, "the text that layers are chosen on")
      ->type_name("NAME")
      ->capture_default_str();
  app->add_option("--measure-tokens", options->measure_tokens, "its leading tokens")
      ->type_name("N")
      ->check(CLI::Range(8, 1 << 20))
      ->capture_default_str();
  app->add_option("--layers", options->layers,
                  "keep these and measure nothing: only the check on whole texts")
      ->type_name("N,...")
      ->delimiter(',')
      ->check(CLI::Range(0, 511));
  app->add_option("--out", options->out, "write the profile to this file")->type_name("FILE");
  AddJsonFlag(*app, options->json);
  commands.Add({app, [options] { return CheckProfile(*options); },
                [options] { return RunProfile(*options); }});
}

}  // namespace pagoda::cli
