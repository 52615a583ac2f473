// Goal: whenever and wherever pagodad dies, what it serves afterwards is exact, whole and counted.
// Method: a writer process keeps a real daemon busy and logs what was acknowledged; the daemon is
// killed at random moments and at named crash points, its files are damaged now and then; after
// every restart a judge compares everything that is visible with the log (crash_judge.h says what).
//
//   crash_loop [--kills N] [--seed S] [--seconds T]     exit code 0: no violation, 1: some
#include <signal.h>
#include <sys/stat.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/crash_point.h"
#include "tests/integration/crash_judge.h"
#include "tests/integration/crash_streams.h"
#include "tests/integration/crash_writer.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/file_damage.h"

namespace pagoda {
namespace {

constexpr absl::Duration kLong = absl::Seconds(60);
// How long the load may take to come by a crash point; then it is an ordinary kill.
constexpr absl::Duration kPointPatience = absl::Seconds(4);
constexpr int kDamageEvery = 6;  // rounds

struct Flags {
  int kills = 200;
  uint32_t seed = 1;
  int seconds = 0;  // 0: no limit
  std::string writer_target;
  std::string writer_log;
  std::string config_folder;
};

std::string WriteFile(const std::string& path, const std::string& text) {
  std::ofstream(path) << text;
  PAGODA_CHECK(chmod(path.c_str(), 0600) == 0);
  return path;
}

// tokens.yaml and pagodad.yaml; the path of the latter.
std::string WriteConfig(const std::string& folder) {
  const std::string tokens = WriteFile(folder + "/tokens.yaml", CrashTokensYaml());
  return WriteFile(folder + "/pagodad.yaml", CrashConfigYaml(tokens));
}

// How one life of the daemon ends.
struct End {
  enum Kind { kKill, kPoint, kStop, kKillAtStart } kind = kKill;
  CrashAt place = CrashAt::kSsdPut;
  uint32_t count = 1;
  absl::Duration after;

  std::string Name() const {
    if (kind == kPoint) return absl::StrCat(std::string(CrashAtName(place)), ":", count);
    return kind == kKill ? "kill -9" : kind == kStop ? "stop" : "kill at start";
  }
};

End PickEnd(std::mt19937& rng) {
  End end;
  const uint32_t dice = rng() % 20;
  end.kind = dice < 8    ? End::kKill
             : dice < 17 ? End::kPoint
             : dice < 19 ? End::kStop
                         : End::kKillAtStart;
  end.place = static_cast<CrashAt>(rng() % kCrashAtCount);
  // Flushes are rarer than puts; a start passes its point once.
  const bool rare = end.place == CrashAt::kSsdFlush || end.place == CrashAt::kSsdFlushDone;
  const bool once = end.place == CrashAt::kRebuild || end.place == CrashAt::kShutdown;
  end.count = once ? 1 : 1 + rng() % (rare ? 4 : 40);
  end.after = absl::Milliseconds(end.kind == End::kKillAtStart ? rng() % 60 : 50 + rng() % 700);
  return end;
}

class CrashLoop {
 public:
  explicit CrashLoop(const Flags& flags)
      : flags_(flags),
        rng_(flags.seed),
        log_path_(folder_.path() + "/writer.log"),
        daemon_({"--config", WriteConfig(folder_.path()), "--stop-seconds", "20"},
                CrashAdminToken()),
        judge_(daemon_) {
    CrashLog log(log_path_);
  }

  // The number of violations.
  int Run() {
    std::printf("crash loop: %d kills, seed %u\n", flags_.kills, flags_.seed);
    const absl::Duration start = SystemClock().Monotonic();
    while (kills_ < flags_.kills) {
      if (flags_.seconds > 0 && SystemClock().Monotonic() - start > absl::Seconds(flags_.seconds)) {
        std::printf("time is up after %d kills\n", kills_);
        break;
      }
      Round();
    }
    if (Restart()) Judge();
    daemon_.Kill();
    Summary(SystemClock().Monotonic() - start);
    return violations_;
  }

 private:
  void Round() {
    const End end = PickEnd(rng_);
    std::vector<std::string> environment;
    if (end.kind == End::kPoint) environment = {"PAGODA_CRASH_AT=" + end.Name()};
    ++kills_;
    ++ends_[end.kind == End::kPoint ? std::string(CrashAtName(end.place)) : end.Name()];
    std::string note = end.Name();
    if (end.kind == End::kKillAtStart) {
      daemon_.Launch();
      absl::SleepFor(end.after);
      const int code = daemon_.AwaitExit(absl::ZeroDuration());
      Expect(code < 0, absl::StrCat("ended by itself at start, exit code ", code));
      daemon_.Kill();
    } else if (end.kind == End::kPoint && end.place == CrashAt::kRebuild) {
      daemon_.Launch(environment);
      const int code = daemon_.AwaitExit(kLong);
      Expect(code == kCrashExitCode, absl::StrCat("exit code ", code, " at start"));
      daemon_.Kill();
    } else if (Restart(environment)) {
      // A crash point may lie on the way of what the judge asks.
      if (Judge()) absl::StrAppend(&note, Live(end));
    }
    absl::StrAppend(&note, Damage());
    std::printf("%4d/%d  %-22s pages %4d  hits %6d  misses %d  violations %d\n", kills_,
                flags_.kills, note.c_str(), static_cast<int>(last_pages_), static_cast<int>(hits_),
                static_cast<int>(misses_), violations_);
    std::fflush(stdout);
  }

  // False when it died at its crash point before it served.
  bool Restart(const std::vector<std::string>& environment = {}) {
    const absl::Status started = daemon_.Start(environment);
    if (started.ok()) return true;
    const int code = daemon_.AwaitExit(absl::ZeroDuration());
    Expect(code == kCrashExitCode, absl::StrCat("cannot start, exit code ", code));
    daemon_.Kill();
    return false;
  }

  // False when the daemon died meanwhile.
  bool Judge() {
    const Verdict verdict = judge_.Judge(ReadCrashLog(log_path_), damaged_ > 0);
    last_pages_ = verdict.pages;
    hits_ += verdict.hits;
    misses_ += verdict.misses;
    for (const std::string& what : verdict.violations) Expect(false, what);
    return daemon_.pid() > 0;
  }

  // Works until the end comes; what came instead of it.
  std::string Live(const End& end) {
    const pid_t writer = Spawn({BinaryPath("crash_loop"), "--writer", daemon_.target(), "--log",
                                log_path_, "--seed", absl::StrCat(rng_() % 1000000)},
                               folder_.path() + "/writer.err");
    std::string note;
    const bool in_work = end.kind == End::kPoint && end.place != CrashAt::kShutdown;
    const int early = daemon_.AwaitExit(in_work ? kPointPatience : end.after);
    if (early < 0 && (end.kind == End::kStop || (end.kind == End::kPoint && !in_work))) {
      daemon_.Signal(SIGTERM);
      const int code =
          daemon_.AwaitExit(end.kind == End::kStop ? absl::Milliseconds(rng_() % 600) : kLong);
      const int expected = end.kind == End::kPoint ? kCrashExitCode : 0;
      Expect(code == expected || (code < 0 && end.kind == End::kStop),
             absl::StrCat("exit code ", code, " after SIGTERM"));
      if (code == 0) note = " (ended)";
    } else if (early >= 0) {
      Expect(in_work && early == kCrashExitCode,
             absl::StrCat("died by itself under load, exit code ", early));
    } else if (in_work) {
      note = " (not passed)";
    }
    daemon_.Kill();
    kill(writer, SIGKILL);
    WaitFor(writer, kLong);
    return note;
  }

  // Wounds the folder every few rounds, and gives it up two rounds later.
  std::string Damage() {
    if (damaged_ > 0 && --damaged_ == 0) Renew();
    if (damaged_ > 0 || kills_ % kDamageEvery != kDamageEvery - 1) return "";
    damaged_ = 2;
    ++damages_;
    last_damage_ = DamageFolder(daemon_.folder() + "/data/ssd", rng_);
    return ", " + last_damage_;
  }

  void Renew() {
    damaged_ = 0;
    std::filesystem::remove_all(daemon_.folder() + "/data/ssd");
  }

  void Expect(bool right, const std::string& what) {
    if (right) return;
    ++violations_;
    std::printf("VIOLATION (round %d, seed %u%s%s): %s\n", kills_, flags_.seed,
                damaged_ > 0 ? ", damaged: " : "", damaged_ > 0 ? last_damage_.c_str() : "",
                what.c_str());
    if (violations_ > 1) return;
    const std::vector<std::string> lines = absl::StrSplit(daemon_.Log(), '\n');
    for (size_t i = lines.size() > 40 ? lines.size() - 40 : 0; i < lines.size(); ++i) {
      std::printf("  | %s\n", lines[i].c_str());
    }
  }

  void Summary(absl::Duration took) {
    const CrashHistory history = ReadCrashLog(log_path_);
    Expect(history.stored_count > 0 && hits_ > 0, "nothing was tested: no page survived a kill");
    std::printf("ends:");
    for (const auto& [name, count] : ends_) std::printf(" %s %d,", name.c_str(), count);
    std::printf(
        "\npushes acknowledged %d, pages verified after restarts %d, folders damaged %d, "
        "misses %d\n",
        static_cast<int>(history.stored_count), static_cast<int>(hits_), damages_,
        static_cast<int>(misses_));
    std::printf("kills=%d seconds=%d seed=%u violations=%d\n", kills_,
                static_cast<int>(absl::ToInt64Seconds(took)), flags_.seed, violations_);
  }

  const Flags flags_;
  std::mt19937 rng_;
  const TemporaryFolder folder_;
  const std::string log_path_;
  DaemonProcess daemon_;
  CrashJudge judge_;
  int damaged_ = 0;  // rounds until a damaged folder is given up; 0: it is sound
  std::string last_damage_;
  int kills_ = 0;
  int violations_ = 0;
  int damages_ = 0;
  int64_t last_pages_ = 0;
  int64_t hits_ = 0;
  int64_t misses_ = 0;
  std::map<std::string, int> ends_;
};

}  // namespace
}  // namespace pagoda

int main(int argc, char** argv) {
  CLI::App app{"Kills pagodad under load, again and again, and checks what comes back."};
  pagoda::Flags flags;
  app.add_option("--kills", flags.kills, "how often it dies")
      ->check(CLI::Range(1, 1000000))
      ->capture_default_str();
  app.add_option("--seed", flags.seed, "of all that is random, but for the machine's own timing")
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "start no new round after this; 0: no limit")
      ->check(CLI::Range(0, 1000000))
      ->capture_default_str();
  // The writer is this program, started by itself; the soak starts it, too.
  app.add_option("--writer", flags.writer_target)->group("");
  app.add_option("--log", flags.writer_log)->group("");
  app.add_option("--write-config", flags.config_folder)->group("");
  CLI11_PARSE(app, argc, argv);
  if (!flags.writer_target.empty()) {
    pagoda::RunCrashWriter(flags.writer_target, flags.writer_log, flags.seed);
  }
  if (!flags.config_folder.empty()) {
    pagoda::WriteConfig(flags.config_folder);
    return 0;
  }
  return pagoda::CrashLoop(flags).Run() == 0 ? 0 : 1;
}
