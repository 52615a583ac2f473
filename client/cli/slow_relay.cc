#include "client/cli/slow_relay.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"

namespace pagoda::cli {
namespace {

constexpr int kTickMs = 100;
constexpr size_t kChunkBytes = 64 << 10;

absl::Status Failed(absl::string_view call, const std::string& path) {
  return absl::UnavailableError(
      absl::StrCat("relay: ", call, " ", path, ": ", std::strerror(errno)));
}

absl::StatusOr<sockaddr_un> AddressOf(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrCat("relay: path too long: ", path));
  }
  path.copy(address.sun_path, path.size());
  return address;
}

class SlowRelayImpl : public SlowRelay {
 public:
  SlowRelayImpl(std::string path, const sockaddr_un& target, UniqueFd listener, double rate)
      : path_(std::move(path)), target_(target), listener_(std::move(listener)), rate_(rate) {
    accepting_ = std::thread([this] { Accept(); });
  }
  ~SlowRelayImpl() override {
    stopping_.store(true);
    accepting_.join();
    for (Pair& pair : pairs_) {
      ::shutdown(pair.near.get(), SHUT_RDWR);
      ::shutdown(pair.far.get(), SHUT_RDWR);
      pair.there.join();
      pair.back.join();
    }
    ::unlink(path_.c_str());
  }
  void set_rate(double bytes_per_second) override { rate_.store(bytes_per_second); }

 private:
  struct Pair {
    UniqueFd near;
    UniqueFd far;
    std::thread there;
    std::thread back;
  };

  void Accept() {
    while (!stopping_.load()) {
      pollfd polled{listener_.get(), POLLIN, 0};
      if (::poll(&polled, 1, kTickMs) <= 0) continue;
      UniqueFd near(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      UniqueFd far(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (!near.valid() || !far.valid() ||
          ::connect(far.get(), reinterpret_cast<const sockaddr*>(&target_), sizeof(target_)) != 0) {
        continue;
      }
      Pair& pair = pairs_.emplace_back();
      pair.near = std::move(near);
      pair.far = std::move(far);
      pair.there = std::thread([this, from = pair.near.get(), to = pair.far.get()] {
        Pass(from, to, /*slowly=*/false);
      });
      pair.back = std::thread(
          [this, from = pair.far.get(), to = pair.near.get()] { Pass(from, to, /*slowly=*/true); });
    }
  }

  void Pass(int from, int to, bool slowly) {
    std::vector<char> buffer(kChunkBytes);
    absl::Duration free_at = SystemClock().Monotonic();  // when the line is free again
    while (true) {
      const ssize_t got = ::read(from, buffer.data(), buffer.size());
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      if (slowly) {
        const absl::Duration now = SystemClock().Monotonic();
        free_at = std::max(free_at, now) + absl::Seconds(static_cast<double>(got) / rate_.load());
        absl::SleepFor(free_at - now);
      }
      for (ssize_t sent = 0; sent < got;) {
        const ssize_t more =
            ::send(to, buffer.data() + sent, static_cast<size_t>(got - sent), MSG_NOSIGNAL);
        if (more < 0 && errno != EINTR) return End(from, to);
        sent += std::max<ssize_t>(more, 0);
      }
    }
    End(from, to);
  }
  static void End(int from, int to) {
    ::shutdown(from, SHUT_RDWR);
    ::shutdown(to, SHUT_RDWR);
  }

  const std::string path_;
  const sockaddr_un target_;
  const UniqueFd listener_;
  std::atomic<double> rate_;
  std::atomic<bool> stopping_{false};
  std::vector<Pair> pairs_;  // of the accepting thread, then of the destructor
  std::thread accepting_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SlowRelay>> SlowRelay::Start(const std::string& path,
                                                            const std::string& target_path,
                                                            double bytes_per_second) {
  const absl::StatusOr<sockaddr_un> address = AddressOf(path);
  if (!address.ok()) return address.status();
  const absl::StatusOr<sockaddr_un> target = AddressOf(target_path);
  if (!target.ok()) return target.status();
  UniqueFd listener(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener.valid()) return Failed("socket", path);
  if (::bind(listener.get(), reinterpret_cast<const sockaddr*>(&*address), sizeof(*address)) != 0) {
    return Failed("bind", path);
  }
  if (::listen(listener.get(), 16) != 0) return Failed("listen", path);
  return std::make_unique<SlowRelayImpl>(path, *target, std::move(listener), bytes_per_second);
}

}  // namespace pagoda::cli
