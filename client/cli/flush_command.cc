// pagoda flush: everything that can be on SSD is there.
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/str_format.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct FlushOptions {
  ConnectionOptions connection;
  JsonOptions json;
  double wait_seconds = 60;
};

absl::Status RunFlush(const FlushOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  AdminConnection admin(options.connection);
  v1::FlushRequest request;
  request.set_timeout_seconds(options.wait_seconds);
  PAGODA_ASSIGN_OR_RETURN(
      const v1::FlushResponse response,
      admin.Call(&v1::Admin::Stub::Flush, request, absl::Seconds(options.wait_seconds)));
  PAGODA_RETURN_IF_ERROR(
      WriteJson(options.json, {{"pages_unpersisted", response.pages_unpersisted()}}));
  if (response.pages_unpersisted() > 0) {
    return absl::DeadlineExceededError(
        absl::StrFormat("after %g s %d pages are not on SSD; wait longer with --timeout",
                        options.wait_seconds, response.pages_unpersisted()));
  }
  PrintText(options.json, "flushed: every page that can be is on SSD\n");
  return absl::OkStatus();
}

}  // namespace

void AddFlushCommand(CommandLine& commands) {
  auto options = std::make_shared<FlushOptions>();
  CLI::App* const app = commands.AddApp(
      "flush", "Wait until pages are on SSD",
      "Pages inside the window of a running request are not written before they leave it.\n"
      "Exit code 1 when pages were left at the end of the wait.\n\n"
      "Example: pagoda flush --timeout 30\n\n"
      "JSON keys: pages_unpersisted\n");
  AddConnectionFlags(*app, options->connection);
  // Here --timeout is how long to wait; the answer may take that much longer.
  app->remove_option(app->get_option("--timeout"));
  app->add_option("--timeout", options->wait_seconds, "seconds to wait")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str();
  AddJsonFlag(*app, options->json);
  commands.Add({app, nullptr, [options] { return RunFlush(*options); }});
}

}  // namespace pagoda::cli
