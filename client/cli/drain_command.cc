// pagoda drain: empty a daemon of clients before it is stopped.
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct DrainOptions {
  ConnectionOptions connection;
  JsonOptions json;
  double wait_seconds = 60;
};

absl::Status RunDrain(const DrainOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  AdminConnection admin(options.connection);
  v1::DrainRequest request;
  request.set_timeout_seconds(options.wait_seconds);
  PAGODA_ASSIGN_OR_RETURN(
      const v1::DrainResponse response,
      admin.Call(&v1::Admin::Stub::Drain, request, absl::Seconds(options.wait_seconds)));
  PAGODA_RETURN_IF_ERROR(
      WriteJson(options.json, {{"sessions_left", response.sessions_left()},
                               {"pages_unpersisted", response.pages_unpersisted()}}));
  if (response.sessions_left() > 0 || response.pages_unpersisted() > 0) {
    return absl::DeadlineExceededError(absl::StrFormat(
        "after %g s %d sessions are open and %d pages not persisted; the daemon takes no new "
        "sessions: run drain again with a longer --timeout, or stop it",
        options.wait_seconds, response.sessions_left(), response.pages_unpersisted()));
  }
  PrintText(options.json, "drained: no session is open, every page is persisted\n");
  return absl::OkStatus();
}

}  // namespace

void AddDrainCommand(CommandLine& commands) {
  auto options = std::make_shared<DrainOptions>();
  CLI::App* const app = commands.AddApp(
      "drain", "Refuse new sessions and wait until the open ones end",
      "The daemon persists what is in host memory and keeps answering until it is stopped.\n"
      "Exit code 1 when sessions or pages were left at the end of the wait.\n\n"
      "Example: pagoda drain --timeout 120 && systemctl stop pagodad\n\n"
      "JSON keys: sessions_left, pages_unpersisted\n");
  AddConnectionFlags(*app, options->connection);
  // Here --timeout is how long to wait; the answer may take that much longer.
  app->remove_option(app->get_option("--timeout"));
  app->add_option("--timeout", options->wait_seconds, "seconds to wait for sessions to end")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  AddJsonFlag(*app, options->json);
  commands.Add({app, nullptr, [options] { return RunDrain(*options); }});
}

}  // namespace pagoda::cli
