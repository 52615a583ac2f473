// A real pagodad as a process of its own, in a folder of its own, for tests that kill it.
//
// Threads    one.   Ownership  the destructor kills the process and removes what it made
#pragma once

#include <sys/types.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "pagoda/v1/admin.grpc.pb.h"

namespace pagoda {

// A folder under the system's temporary folder, removed with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder();
  ~TemporaryFolder();
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A binary of the same build as the running test.
std::string BinaryPath(const std::string& name);

// Starts a program; its output goes to `log_path`. The pid, or -1.
pid_t Spawn(const std::vector<std::string>& command, const std::string& log_path);
// The exit code, or 128 + signal, once the process ends; -1 after `timeout`.
int WaitFor(pid_t pid, absl::Duration timeout);
std::string ReadFileText(const std::string& path);

class DaemonProcess {
 public:
  explicit DaemonProcess(std::vector<std::string> extra_flags = {});
  ~DaemonProcess();

  // Starts it on the same folder and socket as before, and waits until it serves.
  absl::Status Start();
  void Kill();                            // SIGKILL, and waits
  int Terminate(absl::Duration timeout);  // SIGTERM; its exit code
  void Signal(int number);

  const std::string& target() const { return target_; }  // unix:...
  const std::string& folder() const { return folder_.path(); }
  std::string Log() const { return ReadFileText(log_path_); }
  v1::Admin::Stub& admin() { return *admin_; }
  absl::StatusOr<v1::StatusResponse> Status();

  // Asks Status() until `condition` holds; false after `timeout`.
  bool Eventually(const std::function<bool(const v1::StatusResponse&)>& condition,
                  absl::Duration timeout = absl::Seconds(20));

 private:
  TemporaryFolder folder_;
  const std::string target_;
  const std::string log_path_;
  const std::vector<std::string> extra_flags_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  pid_t pid_ = -1;
};

// Bytes and counts that must come back to a level: used bytes of host memory and SSD, leases,
// sessions, sequences, staged pages.
std::string Level(const v1::StatusResponse& status);

}  // namespace pagoda
