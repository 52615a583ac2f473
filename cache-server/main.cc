// pagodad: reads flags and the configuration file, starts a Server, stops it on SIGTERM or SIGINT.
//
// Exit codes  0 stopped cleanly   1 cannot start, stopped by a second signal, or the stop hung
//             2 usage
#include <pthread.h>
#include <sys/resource.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

#include "absl/strings/string_view.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "cache-server/config_file.h"
#include "cache-server/server.h"
#include "cache-server/server_credentials.h"
#include "cache-server/version.h"
#include "storage/base/byte_size.h"
#include "storage/base/crash_point.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

// Beyond --stop-seconds, for threads that end by themselves.
constexpr absl::Duration kStopGrace = absl::Seconds(10);

constexpr char kFooter[] = R"(Examples:
  pagodad --data-dir /var/lib/pagoda
      Workers on this machine at 127.0.0.1:7070, pages in 1 GiB of memory and 20 GiB of SSD.
  pagodad --data-dir /tmp/p --listen unix:/tmp/p.sock --host-capacity 4GiB --no-ssd
      A Unix socket, memory only.
  pagodad --config /etc/pagoda/pagodad.yaml --ladder q4
      Settings from a file (deploy/pagodad.example.yaml shows all); flags win over the file.
  pagodad --data-dir /var/lib/pagoda --listen 0.0.0.0:7070 --tls-certificate tls.crt
          --tls-key tls.key --tls-client-ca ca.crt
      Workers of other machines, those with a certificate of that authority.
  pagodad --config /etc/pagoda/pagodad.yaml --check
      Says whether the configuration is sound, and ends.

Once it serves it prints one line: pagodad_ready listen=ADDRESS metrics=ADDRESS
SIGTERM or SIGINT stops it: sessions are told, pages are written to SSD, exit code 0. A second
signal ends it at once; pages that were in memory only are then gone, as a cache may forget.)";

struct Flags {
  std::string config;
  std::string listen;
  std::string metrics_listen;
  std::string data_dir;
  std::string token_file;
  std::string tls_certificate;
  std::string tls_key;
  std::string tls_client_ca;
  std::string master_secret_file;
  std::string host_capacity;
  std::string ssd_capacity;
  std::string hbm_device;
  std::string hbm_capacity;
  std::string ladder;
  std::string log_level;
  int encode_threads = 0;
  double stop_seconds = 30;
  bool insecure = false;
  bool no_ssd = false;
  bool check = false;
};

void DescribeFlags(CLI::App& app, Flags& flags) {
  app.footer(kFooter);
  app.set_version_flag("--version", std::string("pagodad ") + kVersion);
  app.add_option("--config", flags.config, "YAML file with settings")->type_name("FILE");
  app.add_option("--data-dir", flags.data_dir,
                 "Folder for the secret, the models and the SSD tier; created if absent")
      ->type_name("FOLDER");
  app.add_option("--listen", flags.listen, "Where workers connect; default 127.0.0.1:7070")
      ->type_name("HOST:PORT|unix:PATH");
  app.add_option("--metrics-listen", flags.metrics_listen,
                 "Prometheus metrics at /metrics; default 127.0.0.1:7072")
      ->type_name("HOST:PORT|none");
  app.add_option("--token-file", flags.token_file,
                 "Who may call; without it everybody on this machine is tenant `local`")
      ->type_name("FILE");
  app.add_option("--tls-certificate", flags.tls_certificate,
                 "This daemon's certificate in PEM; with it and --tls-key the port speaks TLS")
      ->type_name("FILE");
  app.add_option("--tls-key", flags.tls_key, "The certificate's key, mode 0600")->type_name("FILE");
  app.add_option("--tls-client-ca", flags.tls_client_ca,
                 "The authority whose clients are let in; all others are refused")
      ->type_name("FILE");
  app.add_flag("--insecure", flags.insecure,
               "Let other machines connect without TLS: for trusted networks only");
  app.add_option("--master-secret-file", flags.master_secret_file,
                 "32 bytes shared by a fleet; default DATA_DIR/master.secret")
      ->type_name("FILE");
  app.add_option("--host-capacity", flags.host_capacity, "Host memory for pages; default 1GiB")
      ->type_name("SIZE");
  app.add_option("--ssd-capacity", flags.ssd_capacity, "SSD for pages; default 20GiB")
      ->type_name("SIZE");
  app.add_flag("--no-ssd", flags.no_ssd, "Memory only; everything is gone after a restart");
  app.add_option("--hbm-device", flags.hbm_device,
                 "GPU whose memory holds pages for workers on it: none, auto (the first one, if "
                 "there is one), an index or a UUID; default none")
      ->type_name("DEVICE");
  app.add_option("--hbm-capacity", flags.hbm_capacity, "Memory of that GPU for pages; default 1GiB")
      ->type_name("SIZE");
  app.add_option("--ladder", flags.ladder,
                 "Precision to which pages age: raw16, q8, q4, q3 or q2; default q8")
      ->type_name("PRECISION");
  app.add_option("--encode-threads", flags.encode_threads, "Background quantizing; default 1")
      ->type_name("COUNT");
  app.add_option("--log-level", flags.log_level, "debug, info, warning or error; default info")
      ->type_name("LEVEL");
  app.add_option("--stop-seconds", flags.stop_seconds, "How long a clean stop may take; default 30")
      ->type_name("SECONDS");
  app.add_flag("--check", flags.check, "Check the configuration and end");
}

absl::Status ApplySize(const std::string& flag, absl::string_view name, int64_t& target) {
  if (flag.empty()) return absl::OkStatus();
  const absl::StatusOr<int64_t> size = ParseByteSize(flag);
  if (!size.ok()) {
    return absl::InvalidArgumentError(absl::StrCat(name, ": ", size.status().message()));
  }
  target = *size;
  return absl::OkStatus();
}

absl::Status ApplyFlags(const Flags& flags, ServerOptions& options) {
  const auto text = [](const std::string& flag, std::string& target) {
    if (!flag.empty()) target = flag;
  };
  text(flags.listen, options.listen);
  text(flags.metrics_listen, options.metrics_listen);
  text(flags.data_dir, options.data_dir);
  text(flags.token_file, options.token_file);
  text(flags.tls_certificate, options.tls.certificate);
  text(flags.tls_key, options.tls.key);
  text(flags.tls_client_ca, options.tls.client_ca);
  if (flags.insecure) options.insecure = true;
  text(flags.master_secret_file, options.master_secret_file);
  text(flags.log_level, options.log_level);
  PAGODA_RETURN_IF_ERROR(
      ApplySize(flags.host_capacity, "--host-capacity", options.host.capacity_bytes));
  PAGODA_RETURN_IF_ERROR(
      ApplySize(flags.ssd_capacity, "--ssd-capacity", options.ssd.capacity_bytes));
  text(flags.hbm_device, options.hbm.device);
  PAGODA_RETURN_IF_ERROR(
      ApplySize(flags.hbm_capacity, "--hbm-capacity", options.hbm.capacity_bytes));
  if (flags.no_ssd) options.ssd.enabled = false;
  if (flags.encode_threads != 0) options.encode_threads = flags.encode_threads;
  if (flags.ladder.empty()) return absl::OkStatus();
  const absl::StatusOr<Precision> ladder = ParsePrecision(flags.ladder);
  if (!ladder.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--ladder: is '", flags.ladder, "', expected raw16, q8, q4, q3 or q2"));
  }
  options.ladder.standard = *ladder;
  return absl::OkStatus();
}

// Tables of RocksDB, chunks of memory and every client take descriptors; the usual soft limit of
// 1024 is meant for programs that call select().
void RaiseDescriptorLimit() {
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  (void)::setrlimit(RLIMIT_NOFILE, &limit);
}

int Fail(const absl::Status& status) {
  std::fprintf(stderr, "pagodad: %s\n", std::string(status.message()).c_str());
  return status.code() == absl::StatusCode::kInvalidArgument ? 2 : 1;
}

void OnSecondSignal(int) {
  constexpr char kLine[] = "pagodad: second signal, ending at once\n";
  (void)!::write(STDERR_FILENO, kLine, sizeof(kLine) - 1);
  ::_exit(1);
}

// Waits for the first signal; from then on the next one ends the process.
void AwaitSignal(const sigset_t& signals) {
  int signal = 0;
  ::sigwait(&signals, &signal);
  LogInfo("signal", {{"number", std::to_string(signal)}});
  struct sigaction action {};
  action.sa_handler = OnSecondSignal;
  ::sigaction(SIGTERM, &action, nullptr);
  ::sigaction(SIGINT, &action, nullptr);
  ::pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

// A thread that hangs in the disk would hold up the end for ever.
void EndAnywayAfter(absl::Duration patience) {
  std::thread([patience] {
    absl::SleepFor(patience);
    LogError("stop_overdue", {{"after", absl::FormatDuration(patience)},
                              {"effect", "ending without it; pages in memory only are gone"}});
    ::_exit(1);
  }).detach();
}

int Run(const Flags& flags) {
  ServerOptions options;
  if (!flags.config.empty()) {
    if (absl::Status status = ReadConfigFile(flags.config, options); !status.ok()) {
      return Fail(status);
    }
  }
  absl::Status status = ApplyFlags(flags, options);
  if (status.ok()) status = SetLogLevelByName(options.log_level);
  if (status.ok()) status = options.Validate();
  if (status.ok() && !(flags.stop_seconds > 0 && flags.stop_seconds <= 3600)) {
    status = absl::InvalidArgumentError("--stop-seconds: expected above 0 and at most 3600");
  }
  if (status.ok()) status = CheckTls(options.tls);
  if (!status.ok()) return Fail(status);
  if (flags.check) {
    std::printf("pagodad: the configuration is sound\n");
    return 0;
  }
  // For tests only: tests/README.md.
  const char* const crash_at = std::getenv("PAGODA_CRASH_AT");
  status = ArmCrashPoint(crash_at != nullptr ? crash_at : "");
  if (!status.ok()) return Fail(status);
  // Blocked before any thread starts, so that every thread inherits it.
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::sigaddset(&signals, SIGINT);
  ::pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  ::signal(SIGPIPE, SIG_IGN);
  RaiseDescriptorLimit();
  absl::StatusOr<std::unique_ptr<Server>> server = Server::Start(options);
  if (!server.ok()) return Fail(server.status());
  std::printf("pagodad_ready listen=%s metrics=%s\n", (*server)->address().c_str(),
              (*server)->metrics_address().c_str());
  std::fflush(stdout);
  AwaitSignal(signals);
  EndAnywayAfter(absl::Seconds(flags.stop_seconds) + kStopGrace);
  // Lost pages are a miss, not a failure: already logged.
  (void)(*server)->Shutdown(absl::Seconds(flags.stop_seconds));
  LogInfo("stopped");
  return 0;
}

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  // One line for each handshake that fails is a log that others write.
  ::setenv("GRPC_VERBOSITY", "none", /*replace=*/0);
  CLI::App app{
      "pagodad keeps KV-cache pages of LLM inference in host memory and on SSD, and serves "
      "them to inference workers over gRPC."};
  pagoda::Flags flags;
  pagoda::DescribeFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& done) {  // --help, --version
    return app.exit(done);
  } catch (const CLI::ParseError& error) {
    std::fprintf(stderr, "pagodad: %s; see pagodad --help\n", error.what());
    return 2;
  }
  return pagoda::Run(flags);
}
