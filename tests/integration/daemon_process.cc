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

pid_t Spawn(const std::vector<std::string>& command, const std::string& log_path) {
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  const pid_t pid = fork();
  if (pid != 0) return pid;
  const int log = open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (log < 0 || dup2(log, 1) < 0 || dup2(log, 2) < 0) _exit(127);
  execv(arguments[0], arguments.data());
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

DaemonProcess::DaemonProcess(std::vector<std::string> extra_flags)
    : target_(absl::StrCat("unix:", folder_.path(), "/pagodad.sock")),
      log_path_(folder_.path() + "/pagodad.log"),
      extra_flags_(std::move(extra_flags)) {}

DaemonProcess::~DaemonProcess() {
  if (pid_ > 0) Kill();
}

absl::Status DaemonProcess::Start() {
  std::vector<std::string> command = {
      BinaryPath("pagodad"), "--data-dir", folder_.path() + "/data", "--listen", target_,
      "--metrics-listen",    "127.0.0.1:0"};
  command.insert(command.end(), extra_flags_.begin(), extra_flags_.end());
  pid_ = Spawn(command, log_path_);
  admin_ = v1::Admin::NewStub(grpc::CreateChannel(target_, grpc::InsecureChannelCredentials()));
  const absl::Duration until = SystemClock().Monotonic() + kStartTimeout;
  absl::Status status;
  do {
    status = Status().status();
    if (status.ok()) return status;
    if (WaitFor(pid_, absl::ZeroDuration()) >= 0) {
      pid_ = -1;
      return absl::InternalError(absl::StrCat("pagodad ended at start: ", Log()));
    }
    absl::SleepFor(absl::Milliseconds(20));
    admin_ = v1::Admin::NewStub(grpc::CreateChannel(target_, grpc::InsecureChannelCredentials()));
  } while (SystemClock().Monotonic() < until);
  return status;
}

void DaemonProcess::Kill() {
  if (pid_ <= 0) return;
  kill(pid_, SIGKILL);
  WaitFor(pid_, absl::Seconds(30));
  pid_ = -1;
}

int DaemonProcess::Terminate(absl::Duration timeout) {
  kill(pid_, SIGTERM);
  const int code = WaitFor(pid_, timeout);
  if (code >= 0) pid_ = -1;
  return code;
}

void DaemonProcess::Signal(int number) { kill(pid_, number); }

absl::StatusOr<v1::StatusResponse> DaemonProcess::Status() {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
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
