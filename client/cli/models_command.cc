// pagoda models: which models a daemon holds pages of, and how these age.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
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
                   {"page", Align::kRight},
                   {"pages", Align::kRight},
                   {"host", Align::kRight},
                   {"ssd", Align::kRight}});
  Json json = Json::array();
  for (const v1::ModelStatus& model : models) {
    const std::string identity = absl::BytesToHexString(model.identity());
    table.AddRow({model.model().empty() ? "(not announced since the start)" : model.model(),
                  identity.substr(0, 12), PrecisionText(model.ladder()),
                  absl::StrCat(model.page_tokens()),
                  FormatCount(static_cast<int64_t>(model.pages())),
                  FormatBytes(static_cast<double>(model.host_bytes())),
                  FormatBytes(static_cast<double>(model.ssd_bytes()))});
    json.push_back({{"identity", identity},
                    {"model", model.model()},
                    {"ladder", PrecisionText(model.ladder())},
                    {"page_tokens", model.page_tokens()},
                    {"pages", model.pages()},
                    {"host_bytes", model.host_bytes()},
                    {"ssd_bytes", model.ssd_bytes()}});
  }
  PrintText(options.json, table.empty() ? "no model has announced itself and no page is stored\n"
                                        : table.Render());
  return WriteJson(options.json, {{"models", std::move(json)}});
}

}  // namespace

void AddModelsCommand(CommandLine& commands) {
  auto options = std::make_shared<ModelsOptions>();
  CLI::App* const app = commands.AddApp(
      "models", "List models, their ladder and what their pages take",
      "Example: pagoda models\n\n"
      "JSON keys: models[] {identity, model, ladder, page_tokens, pages, host_bytes, ssd_bytes}\n");
  AddConnectionFlags(*app, options->connection);
  AddJsonFlag(*app, options->json);
  commands.Add({app, nullptr, [options] { return RunModels(*options); }});
}

}  // namespace pagoda::cli
