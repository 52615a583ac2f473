// pagoda ladder: to which precision a model's pages age.
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "client/cli/model_choice.h"
#include "client/cli/units.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct LadderOptions {
  ConnectionOptions connection;
  JsonOptions json;
  std::string model;
  std::string precision;
};

absl::Status RunLadder(const LadderOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  AdminConnection admin(options.connection);
  std::vector<v1::ModelStatus> models;
  if (options.model != "all") {
    PAGODA_ASSIGN_OR_RETURN(models, admin.Models());
  }
  v1::SetLadderRequest request;
  PAGODA_ASSIGN_OR_RETURN(const std::string identity, ChooseModel(options.model, models));
  request.set_identity(identity);
  PAGODA_ASSIGN_OR_RETURN(const Precision precision, ParsePrecision(options.precision));
  request.set_ladder(ToWire(precision));
  PAGODA_ASSIGN_OR_RETURN(const v1::SetLadderResponse response,
                          admin.Call(&v1::Admin::Stub::SetLadder, request));
  PrintText(options.json,
            absl::StrCat("ladder of ", options.model == "all" ? "every model" : options.model,
                         " is ", options.precision, " now; ",
                         FormatCount(static_cast<int64_t>(response.pages_queued())),
                         " pages queued to be encoded\n"));
  return WriteJson(options.json, {{"identity", absl::BytesToHexString(identity)},
                                  {"ladder", options.precision},
                                  {"pages_queued", response.pages_queued()}});
}

}  // namespace

void AddLadderCommand(CommandLine& commands) {
  auto options = std::make_shared<LadderOptions>();
  CLI::App* const app = commands.AddApp(
      "ladder", "Set the precision to which pages of a model age",
      "Pages that have left the window of every running request follow in the background: going\n"
      "down frees memory for good, going up affects only pages pushed later. Pages are encoded\n"
      "once, from what was computed; what comes after only drops bits. Steps of the configured\n"
      "ladder below that (idle, pressure, ssd) stay; pagoda models shows them.\n\n"
      "Example: pagoda ladder all q8\n"
      "         pagoda ladder SmolLM2-135M-Instruct q4\n\n"
      "JSON keys: identity (empty: every model), ladder, pages_queued\n");
  app->add_option("model", options->model, "name, identity or its first digits, or all")
      ->type_name("MODEL")
      ->required();
  app->add_option("precision", options->precision, "raw16, q8, q4, q3 or q2")
      ->type_name("PRECISION")
      ->check(CLI::IsMember({"raw16", "q8", "q4", "q3", "q2"}))
      ->required();
  AddConnectionFlags(*app, options->connection);
  AddJsonFlag(*app, options->json);
  commands.Add({app, nullptr, [options] { return RunLadder(*options); }});
}

}  // namespace pagoda::cli
