// pagoda status: one picture of a daemon.
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "client/cli/status_view.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct StatusOptions {
  ConnectionOptions connection;
  JsonOptions json;
  bool counters = false;
};

absl::Status RunStatus(const StatusOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  AdminConnection admin(options.connection);
  PAGODA_ASSIGN_OR_RETURN(const v1::StatusResponse status, admin.Status());
  PrintText(options.json, absl::StrCat(StatusHeadline(status), "\n", TierTable(status), "\n",
                                       ActivityLines(status), PathLines(status)));
  if (options.counters) PrintText(options.json, absl::StrCat("\n", CounterTable(status)));
  return WriteJson(options.json, StatusJson(status));
}

}  // namespace

void AddStatusCommand(CommandLine& commands) {
  auto options = std::make_shared<StatusOptions>();
  CLI::App* const app = commands.AddApp(
      "status", "Show tiers, pages, clients and queues of a daemon",
      absl::StrCat("Example: pagoda status\n"
                   "         pagoda status --daemon unix:/run/pagoda/pagodad.sock --json -\n\n",
                   kStatusJsonKeys));
  AddConnectionFlags(*app, options->connection);
  app->add_flag("--counters", options->counters, "list the counters too");
  AddJsonFlag(*app, options->json);
  commands.Add({app, nullptr, [options] { return RunStatus(*options); }});
}

}  // namespace pagoda::cli
