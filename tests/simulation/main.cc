// Goal: whatever happens in whatever order, the store's pure core keeps its promises (run.h lists
// them). Method: seeded random stories with injected clock, randomness and disk; each seed is one
// story, and the same on every machine.
//
//   simulation --seeds 1..2000 --steps 10000 --jobs 2
//   simulation --seed 17                                a single one again
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

#include "tests/simulation/run.h"

namespace pagoda::simulation {
namespace {

struct Arguments {
  uint64_t first = 1;
  uint64_t last = 100;
  int64_t steps = 10000;
  int jobs = 0;  // 0: one for each core
};

constexpr char kUsage[] =
    "usage: simulation [--seeds A..B | --seed N] [--steps N] [--jobs N]\n"
    "Runs seeded stories of the store's pure core and checks its invariants after every step.\n";

bool Parse(int argc, char** argv, Arguments& arguments) {
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (i + 1 >= argc) return false;
    const char* value = argv[++i];
    char* end = nullptr;
    const uint64_t number = std::strtoull(value, &end, 10);
    if (end == value) return false;
    if (name == "--seeds") {
      const std::string rest = end;
      if (rest.rfind("..", 0) != 0) return false;
      arguments.first = number;
      arguments.last = std::strtoull(rest.c_str() + 2, &end, 10);
      if (end == rest.c_str() + 2) return false;
    } else if (name == "--seed") {
      arguments.first = arguments.last = number;
    } else if (name == "--steps") {
      arguments.steps = static_cast<int64_t>(number);
    } else if (name == "--jobs") {
      arguments.jobs = static_cast<int>(number);
    } else {
      return false;
    }
    if (*end != '\0') return false;
  }
  return arguments.first <= arguments.last && arguments.steps > 0;
}

// What one process leaves for its parent, in shared memory.
struct Report {
  uint64_t seed = 0;  // the one that runs, or failed
  bool failed = false;
  char what[512] = {};
  Tally tally;
};

void RunShare(const Arguments& arguments, uint64_t begin, uint64_t stride, Report& report) {
  const Universe universe;
  for (uint64_t seed = begin; seed <= arguments.last; seed += stride) {
    report.seed = seed;
    const std::string wrong = RunSeed(universe, seed, arguments.steps, report.tally);
    if (wrong.empty()) continue;
    report.failed = true;
    std::snprintf(report.what, sizeof(report.what), "%s", wrong.c_str());
    return;
  }
}

int Main(const Arguments& arguments) {
  const uint64_t count = arguments.last - arguments.first + 1;
  uint64_t jobs = arguments.jobs > 0 ? static_cast<uint64_t>(arguments.jobs)
                                     : std::max(1u, std::thread::hardware_concurrency());
  jobs = std::min(jobs, count);
  const auto start = std::chrono::steady_clock::now();
  void* shared = ::mmap(nullptr, jobs * sizeof(Report), PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) {
    std::perror("simulation: mmap");
    return 1;
  }
  auto* reports = new (shared) Report[jobs];
  std::vector<pid_t> children;
  for (uint64_t job = 0; job < jobs; ++job) {
    const pid_t child = ::fork();
    if (child == 0) {
      RunShare(arguments, arguments.first + job, jobs, reports[job]);
      std::fflush(nullptr);
      ::_exit(0);
    }
    if (child < 0) {
      std::perror("simulation: fork");
      return 1;
    }
    children.push_back(child);
  }
  Tally tally;
  bool failed = false;
  for (uint64_t job = 0; job < jobs; ++job) {
    int status = 0;
    ::waitpid(children[job], &status, 0);
    const Report& report = reports[job];
    tally.Add(report.tally);
    const bool died = !WIFEXITED(status) || WEXITSTATUS(status) != 0;
    if (!died && !report.failed) continue;
    failed = true;
    std::printf("FAILED seed %" PRIu64 ", %s\n  again: simulation --seed %" PRIu64
                " --steps %" PRId64 "\n",
                report.seed, died ? "the process died (a check failed)" : report.what, report.seed,
                arguments.steps);
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
  std::printf("%s: %" PRIu64 " seeds, %s; %.1f s\n", failed ? "FAILED" : "ok", count,
              tally.ToString().c_str(), took.count());
  return failed ? 1 : 0;
}

}  // namespace
}  // namespace pagoda::simulation

int main(int argc, char** argv) {
  pagoda::simulation::Arguments arguments;
  if (!pagoda::simulation::Parse(argc, argv, arguments)) {
    std::fputs(pagoda::simulation::kUsage, stderr);
    return 2;
  }
  return pagoda::simulation::Main(arguments);
}
