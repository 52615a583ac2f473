// A child process that serves until it is told to stop: pagodad, for commands that bring their own.
// Its output goes to a log file. It dies with its parent, however that ends.
//
// Threads    one at a time; the thread that starts it must outlive it
// Ownership  the destructor stops it
// Errors     NOT_FOUND            no such program
//            UNAVAILABLE          it ended by itself; the message ends with its last log line
//            DEADLINE_EXCEEDED    it had to be killed
#pragma once

#include <sys/types.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace pagoda::cli {

// The program of that name in the folder of the running one. NOT_FOUND names the path.
absl::StatusOr<std::string> ProgramBesideThisOne(const std::string& name);

class DaemonProcess {
 public:
  struct Options {
    std::string program;
    std::vector<std::string> arguments;  // without the program
    std::string log_path;                // appended to
  };
  static absl::StatusOr<std::unique_ptr<DaemonProcess>> Start(const Options& options);
  ~DaemonProcess();
  DaemonProcess(const DaemonProcess&) = delete;
  DaemonProcess& operator=(const DaemonProcess&) = delete;

  pid_t pid() const { return pid_; }
  // OK while it runs.
  absl::Status CheckAlive();
  // SIGTERM, then SIGKILL after `timeout`. An error when it did not end by itself with code 0.
  absl::Status Stop(absl::Duration timeout);

 private:
  DaemonProcess(const Options& options, pid_t pid) : options_(options), pid_(pid) {}
  bool Reap();                 // true once it has ended; never waits
  absl::Status Ended() const;  // what the exit says; OK for code 0
  std::string LastLogLine() const;

  const Options options_;
  const pid_t pid_;
  bool reaped_ = false;
  int wait_status_ = 0;  // valid when reaped_
};

}  // namespace pagoda::cli
