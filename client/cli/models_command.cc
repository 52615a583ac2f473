// pagoda models: which models a daemon holds pages of, and how these age.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "client/cli/page_filter.h"
#include "client/cli/text_table.h"
#include "client/cli/units.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct ModelsOptions {
  ConnectionOptions connection;
  JsonOptions json;
};

// What the model's layer profile keeps, or that it is not used.
std::string KLoText(const v1::ModelStatus& model) {
  if (!model.profile_problem().empty()) return "profile not used, see below";
  if (model.k_lo_layers().empty()) return "-";
  return absl::StrCat(model.k_lo_layers_size(),
                      model.k_lo_layers_size() == 1 ? " layer" : " layers");
}

// "q8", and the steps below it: "q8, idle 600s q4, pressure q4".
std::string LadderText(const v1::ModelStatus& model) {
  std::string text = PrecisionText(model.ladder());
  const v1::LadderSteps& steps = model.steps();
  const auto add = [&text](absl::string_view step, v1::Precision precision) {
    if (precision == v1::PRECISION_UNSPECIFIED) return;
    absl::StrAppend(&text, ", ", step, " ", PrecisionText(precision));
  };
  add(absl::StrCat("idle ", steps.idle_after_seconds(), "s"), steps.idle());
  add("pressure", steps.pressure());
  add("ssd", steps.ssd());
  return text;
}

Json StepsJson(const v1::LadderSteps& steps) {
  Json json = Json::object();
  if (steps.idle() != v1::PRECISION_UNSPECIFIED) {
    json["idle"] = PrecisionText(steps.idle());
    json["idle_after_seconds"] = steps.idle_after_seconds();
  }
  if (steps.pressure() != v1::PRECISION_UNSPECIFIED) {
    json["pressure"] = PrecisionText(steps.pressure());
  }
  if (steps.ssd() != v1::PRECISION_UNSPECIFIED) json["ssd"] = PrecisionText(steps.ssd());
  return json;
}

absl::Status RunModels(const ModelsOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  AdminConnection admin(options.connection);
  PAGODA_ASSIGN_OR_RETURN(std::vector<v1::ModelStatus> models, admin.Models());
  std::sort(models.begin(), models.end(), [](const auto& a, const auto& b) {
    return std::pair(a.model(), a.identity()) < std::pair(b.model(), b.identity());
  });
  TextTable table({{"model"},
                   {"identity"},
                   {"ladder"},
                   {"K lo at q4"},
                   {"page", Align::kRight},
                   {"pages", Align::kRight},
                   {"host", Align::kRight},
                   {"ssd", Align::kRight}});
  Json json = Json::array();
  for (const v1::ModelStatus& model : models) {
    const std::string identity = absl::BytesToHexString(model.identity());
    table.AddRow({model.model().empty() ? "(not announced since the start)" : model.model(),
                  identity.substr(0, 12), LadderText(model), KLoText(model),
                  absl::StrCat(model.page_tokens()),
                  FormatCount(static_cast<int64_t>(model.pages())),
                  FormatBytes(static_cast<double>(model.host_bytes())),
                  FormatBytes(static_cast<double>(model.ssd_bytes()))});
    json.push_back({{"identity", identity},
                    {"model", model.model()},
                    {"ladder", PrecisionText(model.ladder())},
                    {"steps", StepsJson(model.steps())},
                    {"k_lo_layers",
                     std::vector<uint32_t>(model.k_lo_layers().begin(), model.k_lo_layers().end())},
                    {"profile_problem", model.profile_problem()},
                    {"page_tokens", model.page_tokens()},
                    {"pages", model.pages()},
                    {"host_bytes", model.host_bytes()},
                    {"ssd_bytes", model.ssd_bytes()}});
  }
  std::string text =
      table.empty() ? "no model has announced itself and no page is stored\n" : table.Render();
  for (const v1::ModelStatus& model : models) {
    if (model.profile_problem().empty()) continue;
    absl::StrAppend(&text, "\n", model.model(), ": ", model.profile_problem(), "\n");
  }
  PrintText(options.json, text);
  return WriteJson(options.json, {{"models", std::move(json)}});
}

}  // namespace

void AddModelsCommand(CommandLine& commands) {
  auto options = std::make_shared<ModelsOptions>();
  CLI::App* const app = commands.AddApp(
      "models", "List models, their ladder and what their pages take",
      "Example: pagoda models\n\n"
      "JSON keys: models[] {identity, model, ladder, steps {idle, idle_after_seconds, pressure, "
      "ssd:\n"
      "  those that are set}, k_lo_layers[], profile_problem, page_tokens, pages, host_bytes,\n"
      "  ssd_bytes}\n");
  AddConnectionFlags(*app, options->connection);
  AddJsonFlag(*app, options->json);
  commands.Add({app, nullptr, [options] { return RunModels(*options); }});
}

}  // namespace pagoda::cli
