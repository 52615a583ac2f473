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

// Starts a program; its output goes to `log_path`. `environment` ("NAME=value") is added to ours.
// The pid, or -1.
pid_t Spawn(const std::vector<std::string>& command, const std::string& log_path,
            const std::vector<std::string>& environment = {});
// The exit code, or 128 + signal, once the process ends; -1 after `timeout`.
int WaitFor(pid_t pid, absl::Duration timeout);
std::string ReadFileText(const std::string& path);

class DaemonProcess {
 public:
  // `token` is what this process calls the daemon with; empty: none.
  explicit DaemonProcess(std::vector<std::string> extra_flags = {}, std::string token = "");
  ~DaemonProcess();

  // Starts it on the same folder and socket as before, and waits until it serves.
  absl::Status Start(const std::vector<std::string>& environment = {});
  void Launch(const std::vector<std::string>& environment = {});  // the same without the wait
  void Kill();                                                    // SIGKILL, and waits
  int Terminate(absl::Duration timeout);                          // SIGTERM; its exit code
  void Signal(int number);
  // The exit code (128 + signal) once it has ended, by itself or not; -1 while it runs.
  int AwaitExit(absl::Duration timeout);
  pid_t pid() const { return pid_; }  // -1: does not run

  const std::string& target() const { return target_; }  // unix:...
  const std::string& folder() const { return folder_.path(); }
  std::string Log() const { return ReadFileText(log_path_); }
  v1::Admin::Stub& admin() { return *admin_; }
  // For calls of admin(): the token, and a deadline from now.
  void Prepare(grpc::ClientContext& context, absl::Duration timeout = absl::Seconds(30)) const;
  absl::StatusOr<v1::StatusResponse> Status();

  // Asks Status() until `condition` holds; false after `timeout`.
  bool Eventually(const std::function<bool(const v1::StatusResponse&)>& condition,
                  absl::Duration timeout = absl::Seconds(20));

 private:
  TemporaryFolder folder_;
  const std::string target_;
  const std::string log_path_;
  const std::vector<std::string> extra_flags_;
  const std::string token_;
  std::unique_ptr<v1::Admin::Stub> admin_;
  pid_t pid_ = -1;
  int exit_code_ = -1;  // of the last process
};

// Bytes and counts that must come back to a level: used bytes of host memory and SSD, leases,
// sessions, sequences, staged pages.
std::string Level(const v1::StatusResponse& status);

}  // namespace pagoda
