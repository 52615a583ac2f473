// A pagodad of the demo's own: a process on a Unix socket in a temporary folder, with a token for
// each of three tenants. It is stopped and its folder removed when this ends.
//
// Threads    one at a time; the thread that starts it must outlive it
// Errors     those of DaemonProcess, and of its start: one line each
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/cli/connection.h"
#include "client/cli/daemon_process.h"
#include "client/cli/temp_folder.h"
#include "storage/base/model_spec.h"
#include "storage/base/precision.h"

namespace pagoda::cli {

class DemoDaemon {
 public:
  static constexpr const char* kPublisher = "acme";  // may push to the public scope
  static constexpr const char* kReaders[] = {"globex", "initech"};

  // Starts it with this much host memory and waits until it serves.
  static absl::StatusOr<std::unique_ptr<DemoDaemon>> Start(int64_t host_bytes);

  const std::string& address() const { return address_; }
  const std::string& token(const std::string& tenant) const { return tokens_.at(tenant); }
  absl::Status CheckAlive() { return process_->CheckAlive(); }

  // Waits until every page is on SSD, stops the daemon by SIGTERM and starts it again. Returns the
  // seconds from the start to the first answer.
  absl::StatusOr<double> Restart();

  // Lets the model's pages age to `precision` and waits until those in host memory have.
  struct Encoded {
    int64_t pages = 0;  // in host memory at that precision
    int64_t bytes = 0;  // of them, headers and padding counted
  };
  absl::StatusOr<Encoded> Encode(const Identity& identity, Precision precision);

 private:
  explicit DemoDaemon(TempFolder folder) : folder_(std::move(folder)) {}
  absl::Status WriteSettings(int64_t host_bytes);
  absl::Status Launch();
  AdminConnection Admin() const;

  const TempFolder folder_;
  std::string program_;
  std::string address_;
  std::map<std::string, std::string> tokens_;  // by tenant
  std::unique_ptr<DaemonProcess> process_;     // last: ends before the folder goes
};

}  // namespace pagoda::cli
