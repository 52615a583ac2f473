#include "client/cli/disk_probe.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "kernels/aligned_buffer.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

constexpr char kOwnLoop[] = "own O_DIRECT loop";

double Now() { return absl::ToDoubleSeconds(SystemClock().Monotonic()); }

// What a command prints, and whether it ended well.
bool RunCommand(const std::string& command, std::string& output) {
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return false;
  char buffer[4096];
  size_t count = 0;
  while ((count = fread(buffer, 1, sizeof(buffer), pipe)) > 0) output.append(buffer, count);
  return pclose(pipe) == 0;
}

std::string FindTool() {
  std::string version;
  if (!RunCommand("fio --version 2>/dev/null", version)) return kOwnLoop;
  return version.substr(0, version.find('\n'));
}

absl::Status Failed(const std::string& step, const std::string& path) {
  return absl::UnavailableError(absl::StrFormat("%s %s: %s", step, path, std::strerror(errno)));
}

class File {
 public:
  File(const std::string& path, int flags) : fd_(open(path.c_str(), flags | O_CLOEXEC, 0600)) {}
  ~File() {
    if (fd_ >= 0) close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }

 private:
  const int fd_;
};

}  // namespace

DiskProbe::DiskProbe(std::string folder, const ProbeLoad& load)
    : load_(load), path_(std::move(folder) + "/probe.dat"), tool_(FindTool()) {}

DiskProbe::~DiskProbe() { unlink(path_.c_str()); }

absl::StatusOr<double> DiskProbe::RandomRead() {
  if (access(path_.c_str(), F_OK) != 0) {
    PAGODA_RETURN_IF_ERROR(SequentialWrite().status());
  }
  ++read_count_;
  return tool_ == kOwnLoop ? OwnRead() : Fio("randread", load_.read_bytes);
}

absl::StatusOr<double> DiskProbe::SequentialWrite() {
  unlink(path_.c_str());
  return tool_ == kOwnLoop ? OwnWrite() : Fio("write", load_.file_bytes);
}

absl::StatusOr<double> DiskProbe::Fio(const std::string& kind, int64_t bytes) const {
  std::string output;
  const bool ended_well = RunCommand(
      absl::StrFormat(
          "fio --name=probe --filename='%s' --rw=%s --bs=%d --iodepth=%d --ioengine=libaio "
          "--direct=1 --size=%d --io_size=%d --randseed=%d --end_fsync=1 --output-format=json "
          "2>/dev/null",
          path_, kind, load_.block_bytes, load_.depth, load_.file_bytes, bytes, read_count_ + 1),
      output);
  const size_t begin = output.find('{');  // fio may say other things first
  const auto json = nlohmann::json::parse(begin == std::string::npos ? "" : output.substr(begin),
                                          nullptr, /*allow_exceptions=*/false);
  const bool has_report = !json.is_discarded() && json.contains("jobs") && !json["jobs"].empty();
  if (!has_report) {
    return absl::UnavailableError(absl::StrCat("fio ", kind, " on ", path_, " gave no report"));
  }
  const auto& job = json["jobs"][0];
  const int error = job.value("error", 0);
  if (!ended_well || error != 0) {
    return absl::UnavailableError(absl::StrCat("fio ", kind, " on ", path_, ": ",
                                               std::strerror(error), "; choose another --folder"));
  }
  const double moved = job[kind == "write" ? "write" : "read"].value("io_bytes", 0.0);
  const double milliseconds = job.value("job_runtime", 0.0);
  if (moved <= 0 || milliseconds <= 0) {
    return absl::UnavailableError(absl::StrCat("fio ", kind, " on ", path_, " moved nothing"));
  }
  return moved / (milliseconds / 1e3);
}

absl::StatusOr<double> DiskProbe::OwnWrite() const {
  const File file(path_, O_CREAT | O_TRUNC | O_WRONLY | O_DIRECT);
  if (file.fd() < 0) return Failed("open for direct writes", path_);
  kernels::AlignedBuffer block(load_.block_bytes);
  const double start = Now();
  for (int64_t at = 0; at < load_.file_bytes; at += load_.block_bytes) {
    std::memset(block.data(), static_cast<int>(at / load_.block_bytes + 1), 64);
    const ssize_t done =
        pwrite(file.fd(), block.data(), static_cast<size_t>(load_.block_bytes), at);
    if (done != load_.block_bytes) return Failed("write", path_);
  }
  if (fsync(file.fd()) != 0) return Failed("fsync", path_);
  return static_cast<double>(load_.file_bytes) / (Now() - start);
}

absl::StatusOr<double> DiskProbe::OwnRead() const {
  const File file(path_, O_RDONLY | O_DIRECT);
  if (file.fd() < 0) return Failed("open for direct reads", path_);
  const int64_t block_count = load_.read_bytes / load_.block_bytes;
  std::atomic<int64_t> next{0};  // relaxed: only shares out the work
  std::atomic<bool> failed{false};
  const double start = Now();
  std::vector<std::thread> threads;
  for (int i = 0; i < load_.depth; ++i) {
    threads.emplace_back([&, i] {
      kernels::AlignedBuffer block(load_.block_bytes);
      std::mt19937_64 random(1000 * read_count_ + static_cast<uint64_t>(i));
      while (next.fetch_add(1, std::memory_order_relaxed) < block_count) {
        const auto index = static_cast<int64_t>(
            random() % static_cast<uint64_t>(load_.file_bytes / load_.block_bytes));
        const ssize_t done = pread(file.fd(), block.data(), static_cast<size_t>(load_.block_bytes),
                                   index * load_.block_bytes);
        if (done != load_.block_bytes) failed.store(true, std::memory_order_relaxed);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  if (failed.load(std::memory_order_relaxed)) return Failed("read", path_);
  return static_cast<double>(block_count * load_.block_bytes) / (Now() - start);
}

}  // namespace pagoda::cli
