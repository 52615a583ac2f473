// pagoda evict: drop pages on purpose.
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

struct EvictOptions {
  ConnectionOptions connection;
  JsonOptions json;
  PageFilterOptions filter;
  bool all = false;
};

std::string CheckEvict(const EvictOptions& options) {
  if (MatchesEverything(options.filter) && !options.all) {
    return "without a filter this drops every page; say --all if that is meant, or name pages with "
           "--key, --scope-id, ...";
  }
  if (!MatchesEverything(options.filter) && options.all) {
    return "--all and a filter exclude each other";
  }
  return "";
}

absl::Status RunEvict(const EvictOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  AdminConnection admin(options.connection);
  v1::EvictRequest request;
  *request.mutable_filter() = ToWire(options.filter);
  PAGODA_ASSIGN_OR_RETURN(const v1::EvictResponse response,
                          admin.Call(&v1::Admin::Stub::Evict, request));
  std::string text = absl::StrCat("evicted ", FormatCount(static_cast<int64_t>(response.pages())),
                                  " pages, ", FormatBytes(static_cast<double>(response.bytes())),
                                  " (", Describe(options.filter), ")\n");
  if (response.pages_kept() > 0) {
    absl::StrAppend(&text, "kept ", FormatCount(static_cast<int64_t>(response.pages_kept())),
                    " pages that are leased or pinned\n");
  }
  PrintText(options.json, text);
  return WriteJson(options.json, {{"pages", response.pages()},
                                  {"bytes", response.bytes()},
                                  {"pages_kept", response.pages_kept()}});
}

}  // namespace

void AddEvictCommand(CommandLine& commands) {
  auto options = std::make_shared<EvictOptions>();
  CLI::App* const app = commands.AddApp(
      "evict", "Drop pages from a tier or from all",
      "Leased and pinned pages stay and are counted. With --tier only that tier's copy goes.\n\n"
      "Example: pagoda evict --tier host --precision raw16\n"
      "         pagoda evict --all\n\n"
      "JSON keys: pages, bytes, pages_kept\n");
  AddConnectionFlags(*app, options->connection);
  AddPageFilterFlags(*app, options->filter);
  app->add_flag("--all", options->all, "every page, of every scope, in every tier");
  AddJsonFlag(*app, options->json);
  commands.Add(
      {app, [options] { return CheckEvict(*options); }, [options] { return RunEvict(*options); }});
}

}  // namespace pagoda::cli
