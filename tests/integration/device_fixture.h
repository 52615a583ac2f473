// What tests of device memory have in common: a daemon whose pages lie on the test's device, and
// clients that have it, too.
#pragma once

#include <fcntl.h>
#include <spawn.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "storage/device/runtime.h"
#include "tests/integration/device_reader.h"
#include "tests/integration/shm_fixture.h"

extern char** environ;

namespace pagoda {

inline constexpr int64_t kMiB = int64_t{1} << 20;
inline constexpr absl::Duration kLong = absl::Seconds(60);

class DeviceTest : public ShmTest {
 protected:
  // Set before Start().
  void UseDevice(std::function<absl::StatusOr<std::unique_ptr<DeviceRuntime>>()> open,
                 int64_t capacity_bytes = 8 * kMiB) {
    HbmSettings& hbm = daemon_.options().hbm;
    hbm.device = "0";
    hbm.capacity_bytes = capacity_bytes;
    hbm.chunk_bytes = 2 * kMiB;
    hbm.open_device = std::move(open);
    daemon_.options().host.capacity_bytes = 64 * kMiB;
  }
  std::unique_ptr<client::Client> DeviceClient(DeviceRuntime* device, uint32_t page_tokens = 256,
                                               const std::string& token = "") {
    client::ClientOptions options;
    options.target = daemon_.server().address();
    options.token = token;
    options.model = spec_;
    options.page_tokens = page_tokens;
    options.device = device;
    options.reconnect_interval = absl::Milliseconds(50);
    auto made = client::Client::Create(options);
    PAGODA_CHECK(made.ok());
    PAGODA_CHECK((*made)->WaitConnected(kLong).ok());
    return *std::move(made);
  }
  std::vector<TestPage> Document(size_t page_count = 4, uint32_t seed = 1,
                                 uint32_t page_tokens = 256) {
    TestChainOptions options;
    options.page_tokens = page_tokens;
    options.page_count = page_count;
    options.seed = seed;
    return MakeChain(spec_, scope_, options);
  }
  void EvictAll() {
    v1::EvictResponse evicted;
    ASSERT_TRUE(wire_->admin().Evict(wire_->Context().get(), {}, &evicted).ok());
  }
  // A process beside this one, whose name ends in worker instead of test, and the first line that
  // it says.
  static pid_t StartWorker(std::vector<std::string> arguments, std::string& said) {
    std::string program = std::filesystem::read_symlink("/proc/self/exe");
    program.replace(program.rfind("test"), 4, "worker");
    arguments.insert(arguments.begin(), program);
    int out[2];
    PAGODA_CHECK(::pipe2(out, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    std::vector<char*> pointers;
    for (std::string& argument : arguments) pointers.push_back(argument.data());
    pointers.push_back(nullptr);
    pid_t pid = 0;
    PAGODA_CHECK(posix_spawn(&pid, program.c_str(), &actions, nullptr, pointers.data(), environ) ==
                 0);
    posix_spawn_file_actions_destroy(&actions);
    ::close(out[1]);
    char c = 0;
    while (::read(out[0], &c, 1) == 1 && c != '\n') said += c;
    ::close(out[0]);
    return pid;
  }
  // The value of a metric, as in a scrape.
  int64_t Metric(const std::string& name) {
    for (absl::string_view line : absl::StrSplit(daemon_.server().MetricsText(), '\n')) {
      double value = 0;
      if (absl::StartsWith(line, absl::StrCat(name, " ")) &&
          absl::SimpleAtod(line.substr(name.size() + 1), &value)) {
        return static_cast<int64_t>(value);
      }
    }
    return -1;
  }
  int64_t HbmBytes() { return Metric("pagoda_tier_used_bytes{tier=\"hbm\"}"); }
  bool MetricBecomes(const std::string& name, int64_t value) {
    const absl::Time end = absl::Now() + kLong;
    while (absl::Now() < end) {
      if (Metric(name) == value) return true;  // once: what was cut off may still be on its way
      absl::SleepFor(absl::Milliseconds(5));
    }
    return false;
  }
  bool HbmBytesBecome(int64_t bytes) {
    return MetricBecomes("pagoda_tier_used_bytes{tier=\"hbm\"}", bytes);
  }
  int64_t Fallbacks(const std::string& reason) {
    return Metric(absl::StrCat("pagoda_device_fallbacks_total{reason=\"", reason, "\"}"));
  }
};

}  // namespace pagoda
