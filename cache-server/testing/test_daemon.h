// A Server for one test: small tiers, its own folder, a Unix socket, no metrics port.
#pragma once

#include <memory>
#include <string>

#include "cache-server/server.h"
#include "cache-server/testing/wire_client.h"
#include "storage/base/check.h"
#include "storage/base/testing/temp_dir.h"

namespace pagoda {

class TestDaemon {
 public:
  TestDaemon() {
    options_.data_dir = dir_.path() + "/data";
    options_.listen = "unix:" + dir_.path() + "/socket";
    options_.metrics_listen = "none";
    options_.host.capacity_bytes = int64_t{32} << 20;
    options_.ssd.capacity_bytes = int64_t{256} << 20;
    options_.hbm.device = "none";
    options_.session_timeout = absl::Minutes(5);  // sessions of tests send no heartbeats
    options_.ladder.standard = Precision::kRaw16;
  }

  // Change before Start().
  ServerOptions& options() { return options_; }
  const std::string& folder() const { return dir_.path(); }

  absl::Status TryStart(const Clock& clock = SystemClock()) {
    absl::StatusOr<std::unique_ptr<Server>> started = Server::Start(options_, clock);
    if (!started.ok()) return started.status();
    server_ = *std::move(started);
    return absl::OkStatus();
  }
  void Start(const Clock& clock = SystemClock()) {
    const absl::Status status = TryStart(clock);
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    PAGODA_CHECK(status.ok());
  }
  absl::Status Stop() {
    const absl::Status status = server_->Shutdown(absl::Seconds(10));
    server_.reset();
    return status;
  }

  Server& server() { return *server_; }
  WireClient Client(const std::string& token = "") { return WireClient(server_->address(), token); }

 private:
  TempDir dir_;
  ServerOptions options_;
  std::unique_ptr<Server> server_;
};

}  // namespace pagoda
