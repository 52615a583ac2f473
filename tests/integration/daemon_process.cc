#include "tests/integration/daemon_process.h"

#include <fcntl.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/strings/str_cat.h"
#include "proto/wire.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"

namespace pagoda {
namespace {

// Generous: a sanitizer build on a busy machine is slow.
constexpr absl::Duration kStartTimeout = absl::Seconds(60);

}  // namespace

TemporaryFolder::TemporaryFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "pagoda-test-XXXXXX").string();
  PAGODA_CHECK(mkdtemp(pattern.data()) != nullptr);
  path_ = pattern;
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

std::string BinaryPath(const std::string& name) {
  // Tests run from build/<preset>/bin, where everything else is.
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

pid_t Spawn(const std::vector<std::string>& command, const std::string& log_path,
            const std::vector<std::string>& environment) {
  // Made before the fork: the child of a process with threads must not allocate.
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  std::vector<char*> variables;
  for (char** variable = environ; *variable != nullptr; ++variable) variables.push_back(*variable);
  for (const std::string& word : environment) variables.push_back(const_cast<char*>(word.c_str()));
  variables.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) _exit(127);
  execve(arguments[0], arguments.data(), variables.data());
  _exit(127);
}

int WaitFor(pid_t pid, absl::Duration timeout) {
  const absl::Duration until = SystemClock().Monotonic() + timeout;
  while (true) {
    int status = 0;
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid) return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (ended < 0 || SystemClock().Monotonic() > until) return -1;
    absl::SleepFor(absl::Milliseconds(10));
  }
}

std::string ReadFileText(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

DaemonProcess::DaemonProcess(std::vector<std::string> extra_flags, std::string token)
    : target_(absl::StrCat("unix:", folder_.path(), "/pagodad.sock")),
      log_path_(folder_.path() + "/pagodad.log"),
      extra_flags_(std::move(extra_flags)),
      token_(std::move(token)) {}

DaemonProcess::~DaemonProcess() {
  if (pid_ > 0) Kill();
}

void DaemonProcess::Launch(const std::vector<std::string>& environment) {
  std::vector<std::string> command = {
      BinaryPath("pagodad"), "--data-dir", folder_.path() + "/data", "--listen", target_,
      "--metrics-listen",    "127.0.0.1:0"};
  command.insert(command.end(), extra_flags_.begin(), extra_flags_.end());
  exit_code_ = -1;
  pid_ = Spawn(command, log_path_, environment);
}

absl::Status DaemonProcess::Start(const std::vector<std::string>& environment) {
  Launch(environment);
  const absl::Duration until = SystemClock().Monotonic() + kStartTimeout;
  absl::Status status;
  do {
    // A new channel each time: an old one waits longer and longer before it tries again.
    admin_ = v1::Admin::NewStub(grpc::CreateChannel(target_, grpc::InsecureChannelCredentials()));
    status = Status().status();
    if (status.ok()) return status;
    if (AwaitExit(absl::ZeroDuration()) >= 0) {
      return absl::InternalError(absl::StrCat("pagodad ended at start: ", Log()));
    }
    absl::SleepFor(absl::Milliseconds(20));
  } while (SystemClock().Monotonic() < until);
  return status;
}

int DaemonProcess::AwaitExit(absl::Duration timeout) {
  if (pid_ <= 0) return exit_code_;
  exit_code_ = WaitFor(pid_, timeout);
  if (exit_code_ >= 0) pid_ = -1;
  return exit_code_;
}

void DaemonProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  AwaitExit(absl::Seconds(30));
}

int DaemonProcess::Terminate(absl::Duration timeout) {
  kill(pid_, SIGTERM);
  return AwaitExit(timeout);
}

void DaemonProcess::Signal(int number) {
  kill(pid_, number);
  // It stops soon, not at once: an answer that was under way would still come.
  if (number == SIGSTOP) waitpid(pid_, nullptr, WUNTRACED);
}

void DaemonProcess::Prepare(grpc::ClientContext& context, absl::Duration timeout) const {
  context.set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(timeout));
  if (!token_.empty()) context.AddMetadata("authorization", "Bearer " + token_);
}

absl::StatusOr<v1::StatusResponse> DaemonProcess::Status() {
  grpc::ClientContext context;
  Prepare(context, absl::Seconds(5));
  v1::StatusResponse response;
  const grpc::Status status = admin_->Status(&context, v1::StatusRequest(), &response);
  if (!status.ok()) return FromGrpc(status);
  return response;
}

bool DaemonProcess::Eventually(const std::function<bool(const v1::StatusResponse&)>& condition,
                               absl::Duration timeout) {
  const absl::Duration until = SystemClock().Monotonic() + timeout;
  while (SystemClock().Monotonic() < until) {
    const absl::StatusOr<v1::StatusResponse> status = Status();
    if (status.ok() && condition(*status)) return true;
    absl::SleepFor(absl::Milliseconds(20));
  }
  return false;
}

std::string Level(const v1::StatusResponse& status) {
  std::string level = absl::StrCat(
      "pages=", status.pages(), " sessions=", status.sessions(), " sequences=", status.sequences(),
      " leases=", status.leases(), " leased_pages=", status.leased_pages(),
      " staged_pages=", status.staged_pages(), " staged_bytes=", status.staged_bytes());
  for (const v1::TierStatus& tier : status.tiers()) {
    absl::StrAppend(&level, " ", TierName(tier.tier()), "=", tier.used_bytes());
  }
  return level;
}

}  // namespace pagoda
