#include "client/cli/daemon_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace pagoda::cli {
namespace {

constexpr int kExecFailed = 127;

// Runs in the child, between fork and exec: only calls that are safe there.
[[noreturn]] void BecomeProgram(char* const* arguments, int log_file, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(kExecFailed);  // The parent ended before the line above.
  // ^C in the terminal is for the parent, which then stops its child in order.
  setpgid(0, 0);
  dup2(log_file, STDOUT_FILENO);
  dup2(log_file, STDERR_FILENO);
  execv(arguments[0], arguments);
  _exit(kExecFailed);
}

}  // namespace

absl::StatusOr<std::string> ProgramBesideThisOne(const std::string& name) {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError(absl::StrCat("/proc/self/exe: ", error.message()));
  const std::string path = (self.parent_path() / name).string();
  if (access(path.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrFormat("there is no program %s (%s); build or install %s beside %s", path,
                        std::strerror(errno), name, self.filename().string()));
  }
  return path;
}

absl::StatusOr<std::unique_ptr<DaemonProcess>> DaemonProcess::Start(const Options& options) {
  if (access(options.program.c_str(), X_OK) != 0) {
    return absl::NotFoundError(
        absl::StrFormat("cannot run %s: %s", options.program, std::strerror(errno)));
  }
  const int log_file =
      open(options.log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
  if (log_file < 0) {
    return absl::InternalError(
        absl::StrFormat("cannot write %s: %s", options.log_path, std::strerror(errno)));
  }
  std::vector<char*> arguments = {const_cast<char*>(options.program.c_str())};
  for (const std::string& argument : options.arguments) {
    arguments.push_back(const_cast<char*>(argument.c_str()));
  }
  arguments.push_back(nullptr);
  const pid_t parent = getpid();
  const pid_t pid = fork();
  if (pid == 0) BecomeProgram(arguments.data(), log_file, parent);
  const int error = errno;
  close(log_file);
  if (pid < 0) {
    return absl::InternalError(absl::StrCat("cannot start a process: ", std::strerror(error)));
  }
  return std::unique_ptr<DaemonProcess>(new DaemonProcess(options, pid));
}

DaemonProcess::~DaemonProcess() {
  (void)Stop(absl::Seconds(10));  // Whoever wants to know has called it before.
}

bool DaemonProcess::Reap() {
  if (!reaped_) reaped_ = waitpid(pid_, &wait_status_, WNOHANG) == pid_;
  return reaped_;
}

absl::Status DaemonProcess::CheckAlive() {
  if (!Reap()) return absl::OkStatus();
  const absl::Status ended = Ended();
  return absl::UnavailableError(ended.ok()
                                    ? absl::StrCat(options_.program, " ended: ", LastLogLine())
                                    : std::string(ended.message()));
}

absl::Status DaemonProcess::Stop(absl::Duration timeout) {
  if (reaped_) return Ended();
  kill(pid_, SIGTERM);
  const absl::Time end = absl::Now() + timeout;
  while (!Reap() && absl::Now() < end) absl::SleepFor(absl::Milliseconds(5));
  if (reaped_) return Ended();
  kill(pid_, SIGKILL);
  waitpid(pid_, &wait_status_, 0);
  reaped_ = true;
  return absl::DeadlineExceededError(absl::StrFormat(
      "%s did not stop within %s and was killed", options_.program, absl::FormatDuration(timeout)));
}

absl::Status DaemonProcess::Ended() const {
  if (WIFEXITED(wait_status_) && WEXITSTATUS(wait_status_) == 0) return absl::OkStatus();
  const std::string how = WIFEXITED(wait_status_)
                              ? absl::StrCat("exit code ", WEXITSTATUS(wait_status_))
                              : absl::StrCat("signal ", WTERMSIG(wait_status_));
  return absl::UnavailableError(
      absl::StrFormat("%s ended (%s): %s", options_.program, how, LastLogLine()));
}

std::string DaemonProcess::LastLogLine() const {
  std::ifstream log(options_.log_path);
  std::string line;
  std::string last;
  while (std::getline(log, line)) {
    if (!line.empty()) last = line;
  }
  return last.empty() ? "it said nothing" : last;
}

}  // namespace pagoda::cli
