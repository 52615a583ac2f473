// pagoda pin and pagoda unpin: pages that eviction must leave alone.
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "client/cli/page_filter.h"
#include "client/cli/units.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct PinOptions {
  ConnectionOptions connection;
  JsonOptions json;
  PageFilterOptions filter;
  bool all = false;
};

std::string CheckPin(const PinOptions& options) {
  if (MatchesEverything(options.filter) && !options.all) {
    return "no filter is given; name pages with --key, --scope-id, ..., or say --all";
  }
  return "";
}

absl::Status RunPin(const PinOptions& options, bool pin) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  AdminConnection admin(options.connection);
  v1::PinRequest request;
  *request.mutable_filter() = ToWire(options.filter);
  PAGODA_ASSIGN_OR_RETURN(
      const v1::PinResponse response,
      admin.Call(pin ? &v1::Admin::Stub::Pin : &v1::Admin::Stub::Unpin, request));
  PrintText(options.json, absl::StrCat(pin ? "pinned " : "unpinned ",
                                       FormatCount(static_cast<int64_t>(response.pages())),
                                       " pages (", Describe(options.filter), ")\n"));
  return WriteJson(options.json, {{"pages", response.pages()}});
}

void AddOne(CommandLine& commands, bool pin) {
  auto options = std::make_shared<PinOptions>();
  CLI::App* const app =
      commands.AddApp(pin ? "pin" : "unpin",
                      pin ? "Keep pages from being evicted" : "Let pinned pages be evicted again",
                      absl::StrCat("Pins do not survive a restart of the daemon.\n\n"
                                   "Example: pagoda ",
                                   pin ? "pin" : "unpin",
                                   " --scope-id 5f0c1f9e0d0a4b0f8e6d2c1b0a998877\n\n"
                                   "JSON keys: pages\n"));
  AddConnectionFlags(*app, options->connection);
  AddPageFilterFlags(*app, options->filter);
  app->add_flag("--all", options->all, "every page");
  AddJsonFlag(*app, options->json);
  commands.Add({app, [options] { return CheckPin(*options); },
                [options, pin] { return RunPin(*options, pin); }});
}

}  // namespace

void AddPinCommands(CommandLine& commands) {
  AddOne(commands, true);
  AddOne(commands, false);
}

}  // namespace pagoda::cli
