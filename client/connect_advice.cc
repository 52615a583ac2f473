#include "client/connect_advice.h"

#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "proto/tls_files.h"
#include "storage/base/clock.h"
#include "storage/base/unique_fd.h"

namespace pagoda::client {
namespace {

struct Host {
  std::string name;
  std::string port;
};

std::optional<Host> HostOf(absl::string_view target) {
  if (absl::StartsWith(target, "unix:")) return std::nullopt;
  for (const char* prefix : {"dns:///", "dns:", "ipv4:", "ipv6:"}) {
    if (absl::ConsumePrefix(&target, prefix)) break;
  }
  const size_t colon = target.rfind(':');
  if (colon == absl::string_view::npos || colon == 0) return std::nullopt;
  absl::string_view name = target.substr(0, colon);
  if (name.front() == '[' && name.back() == ']') name = name.substr(1, name.size() - 2);
  return Host{std::string(name), std::string(target.substr(colon + 1))};
}

bool AwaitFd(int fd, short events, absl::Duration end) {
  const absl::Duration left = end - SystemClock().Monotonic();
  pollfd polled{fd, events, 0};
  return left > absl::ZeroDuration() &&
         ::poll(&polled, 1, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) > 0;
}

// The system's resolver has no deadline: a thread of its own waits for it, for as long as it takes.
class Resolving {
 public:
  static std::shared_ptr<Resolving> Start(const Host& host) {
    auto resolving = std::make_shared<Resolving>();
    std::thread([resolving, host] {
      addrinfo hints{};
      hints.ai_socktype = SOCK_STREAM;
      addrinfo* found = nullptr;
      if (::getaddrinfo(host.name.c_str(), host.port.c_str(), &hints, &found) != 0) found = nullptr;
      absl::MutexLock lock(&resolving->mutex_);
      resolving->found_ = found;
      resolving->done_ = true;
    }).detach();
    return resolving;
  }
  ~Resolving() {
    if (found_ != nullptr) ::freeaddrinfo(found_);
  }
  // Null: nothing is found in time.
  const addrinfo* Wait(absl::Duration timeout) {
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&done_), timeout);
    return found_;
  }

 private:
  absl::Mutex mutex_;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  addrinfo* found_ = nullptr;  // written once, before done_
};

UniqueFd Connect(const Host& host, absl::Duration end) {
  const std::shared_ptr<Resolving> resolving = Resolving::Start(host);
  const addrinfo* found = resolving->Wait(end - SystemClock().Monotonic());
  for (const addrinfo* one = found; one != nullptr; one = one->ai_next) {
    UniqueFd fd(::socket(one->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!fd.valid()) continue;
    if (::connect(fd.get(), one->ai_addr, one->ai_addrlen) == 0) return fd;
    if (errno != EINPROGRESS || !AwaitFd(fd.get(), POLLOUT, end)) continue;
    int error = 0;
    socklen_t size = sizeof(error);
    ::getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &size);
    if (error == 0) return fd;
  }
  return UniqueFd();
}

// OpenSSL writes to sockets without MSG_NOSIGNAL, and the process is not ours to have SIGPIPE
// ignored in: this thread blocks it, and takes what came of its own.
class WithoutSigpipe {
 public:
  WithoutSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~WithoutSigpipe() {
    const timespec now{};
    if (!was_pending_) {
      while (sigtimedwait(&pipe_, nullptr, &now) == -1 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  WithoutSigpipe(const WithoutSigpipe&) = delete;
  WithoutSigpipe& operator=(const WithoutSigpipe&) = delete;

 private:
  sigset_t pipe_;
  sigset_t before_;
  bool was_pending_ = false;
};

// One attempt at TLS over a connected socket.
class Attempt {
 public:
  Attempt(SSL_CTX* context, int fd, absl::Duration end)
      : ssl_(SSL_new(context), SSL_free), fd_(fd), end_(end) {
    SSL_set_fd(ssl_.get(), fd);
    static constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};
    SSL_set_alpn_protos(ssl_.get(), kHttp2.data(), kHttp2.size());
  }

  SSL* ssl() const { return ssl_.get(); }
  bool Handshake() {
    return Run([this] { return SSL_connect(ssl_.get()); });
  }
  // Whether the other end says anything. A daemon speaks first, once it has let the client in.
  bool Hears() {
    char byte;
    return Run([this, &byte] { return SSL_read(ssl_.get(), &byte, 1); });
  }
  // What the other end said against us (a TLS alert), or empty.
  const std::string& alert() const { return alert_; }
  bool is_other_protocol() const { return other_protocol_; }
  bool timed_out() const { return timed_out_; }

 private:
  template <typename Step>
  bool Run(Step step) {
    while (true) {
      ERR_clear_error();
      const int done = step();
      if (done > 0) return true;
      const int error = SSL_get_error(ssl_.get(), done);
      if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
        if (AwaitFd(fd_, error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, end_)) continue;
        timed_out_ = true;
        return false;
      }
      if (error == SSL_ERROR_SSL) {
        const int reason = ERR_GET_REASON(ERR_peek_last_error());
        other_protocol_ = reason == SSL_R_WRONG_VERSION_NUMBER;
        if (reason >= SSL_AD_REASON_OFFSET) alert_ = TakeSslError();
      }
      return false;
    }
  }

  const std::unique_ptr<SSL, decltype(&SSL_free)> ssl_;
  const int fd_;
  const absl::Duration end_;
  std::string alert_;
  bool other_protocol_ = false;
  bool timed_out_ = false;
};

// The daemon speaks TLS and this client does not, or not.
std::string AdviceWithoutTls(int fd, absl::Duration end) {
  const absl::StatusOr<std::shared_ptr<SSL_CTX>> context = LoadTlsFiles({}, {});
  if (!context.ok()) return "";
  Attempt attempt(context->get(), fd, end);
  // An alert is an answer in TLS as well.
  if (!attempt.Handshake() && attempt.alert().empty()) return "";
  return "the daemon speaks TLS and this client does not; set tls.ca (--tls-ca) to the "
         "authority of its certificate";
}

std::string Refused(SSL_CTX& context, const std::string& alert) {
  const std::string said = alert.empty() ? "" : absl::StrCat(" (", alert, ")");
  if (SSL_CTX_get0_certificate(&context) == nullptr) {
    return absl::StrCat("the daemon lets nobody in without a certificate", said,
                        "; set tls.certificate and tls.key (--tls-cert, --tls-key)");
  }
  if (const absl::Status dates = CheckTlsDates(context, "tls.certificate"); !dates.ok()) {
    return absl::StrCat("the daemon refuses this client", said, ": ", dates.message());
  }
  return absl::StrCat("the daemon refuses this client's certificate", said,
                      "; take one of an authority in the daemon's tls.client_ca");
}

std::string AdviceWithTls(const Host& host, const TlsOptions& tls, int fd, absl::Duration end) {
  const absl::StatusOr<std::shared_ptr<SSL_CTX>> context =
      LoadTlsFiles({tls.certificate, tls.key, tls.ca}, {});
  if (!context.ok()) return std::string(context.status().message());
  Attempt attempt(context->get(), fd, end);
  const std::string& name = tls.server_name.empty() ? host.name : tls.server_name;
  SSL_set_verify(attempt.ssl(), SSL_VERIFY_PEER, nullptr);
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(attempt.ssl()), name.c_str()) != 1) {
    SSL_set1_host(attempt.ssl(), name.c_str());
    SSL_set_tlsext_host_name(attempt.ssl(), name.c_str());
  }
  if (attempt.Handshake()) {
    // In TLS 1.3 a client is through before the daemon has looked at its certificate.
    return attempt.Hears() || attempt.timed_out() ? "" : Refused(**context, attempt.alert());
  }
  if (attempt.is_other_protocol()) {
    return "what answers there does not speak TLS; leave tls.ca (--tls-ca) out, or set tls on the "
           "daemon";
  }
  if (const long verdict = SSL_get_verify_result(attempt.ssl()); verdict != X509_V_OK) {
    return absl::StrCat("the daemon's certificate does not hold for ", name, " under ", tls.ca,
                        " (", X509_verify_cert_error_string(verdict),
                        "); give the authority that signed it as tls.ca (--tls-ca), and the name "
                        "it was made for as tls.server_name (--tls-server-name)");
  }
  return attempt.alert().empty() ? "" : Refused(**context, attempt.alert());
}

}  // namespace

std::string ConnectAdvice(const std::string& target, const TlsOptions& tls,
                          absl::Duration timeout) {
  const std::optional<Host> host = HostOf(target);
  if (!host.has_value()) return "";
  const absl::Duration end = SystemClock().Monotonic() + timeout;
  const WithoutSigpipe without_sigpipe;
  const UniqueFd fd = Connect(*host, end);
  if (!fd.valid()) return "";
  return tls.enabled() ? AdviceWithTls(*host, tls, fd.get(), end) : AdviceWithoutTls(fd.get(), end);
}

absl::Status WithConnectAdvice(absl::Status status, const std::string& target,
                               const TlsOptions& tls, absl::Duration timeout) {
  if (!absl::IsUnavailable(status)) return status;
  const std::string advice = ConnectAdvice(target, tls, timeout);
  return advice.empty() ? status : absl::Status(status.code(), advice);
}

}  // namespace pagoda::client
