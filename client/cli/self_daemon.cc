#include "client/cli/self_daemon.h"

#include "absl/strings/str_cat.h"
#include "cache-server/server.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {

absl::StatusOr<std::unique_ptr<SelfDaemon>> SelfDaemon::Start(const SelfDaemonOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(TempFolder folder, TempFolder::Make("pagoda-self-"));
  std::unique_ptr<SelfDaemon> self(new SelfDaemon(std::move(folder)));
  ServerOptions server;
  server.listen = options.socket == SocketKind::kTcp
                      ? "127.0.0.1:0"
                      : absl::StrCat("unix:", self->folder_.File("pagodad.sock"));
  server.metrics_listen = "none";
  server.data_dir = self->folder_.File("data");
  server.log_level = "error";
  server.host.capacity_bytes = options.host_bytes;
  server.ssd.enabled = options.ssd;
  server.ladder.standard = options.ladder;
  server.ladder.profiles = options.profiles;
  server.policies = options.policies;
  PAGODA_ASSIGN_OR_RETURN(self->server_, Server::Start(server));
  return self;
}

SelfDaemon::SelfDaemon(TempFolder folder) : folder_(std::move(folder)) {}

SelfDaemon::~SelfDaemon() = default;

const std::string& SelfDaemon::address() const { return server_->address(); }

}  // namespace pagoda::cli
