#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "client/client.h"
#include "proto/shm_protocol.h"
#include "proto/tls_files.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

// A target that no other machine is behind.
bool IsLocal(absl::string_view target) {
  if (absl::StartsWith(target, "unix")) return true;
  for (const char* prefix : {"dns:///", "dns:", "ipv4:", "ipv6:"}) {
    if (absl::ConsumePrefix(&target, prefix)) break;
  }
  absl::string_view host = target.substr(0, target.rfind(':'));
  return host == "localhost" || absl::StartsWith(host, "127.") || host == "[::1]" || host == "::1";
}

}  // namespace

absl::Status TlsOptions::Validate() const {
  if (certificate.empty() != key.empty()) {
    return absl::InvalidArgumentError(
        "tls: a certificate and its key go together; set both or neither");
  }
  if (!enabled()) {
    if (certificate.empty() && server_name.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(
        "tls.ca: is not set; name the authority of the daemon's certificate");
  }
  return LoadTlsFiles({certificate, key, ca}, {}).status();
}

absl::Status CheckSecurity(const TlsOptions& tls, const std::string& target,
                           const std::string& token) {
  PAGODA_RETURN_IF_ERROR(tls.Validate());
  if (token.empty() || tls.enabled() || tls.insecure || IsLocal(target)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("the token would go to %s in plain text; set tls.ca (--tls-ca) to the "
                      "authority of the daemon's certificate, or tls.insecure (--insecure) where "
                      "the network is trusted",
                      target));
}

absl::Status ClientOptions::Validate() const {
  if (target.empty()) {
    return absl::InvalidArgumentError("client: target is empty; use host:port or unix:/path");
  }
  if (page_tokens == 0) return absl::InvalidArgumentError("client: page_tokens is 0");
  if (connect_timeout <= absl::ZeroDuration() || control_timeout <= absl::ZeroDuration() ||
      transfer_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError("client: every timeout must be positive");
  }
  if (push_staging_bytes < 0 || push_staging_bytes % 4096 != 0 ||
      push_staging_bytes > static_cast<int64_t>(shm::kStagingBytesMax)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("client: push_staging_bytes is %d; 0 to %d, whole pages of 4096",
                        push_staging_bytes, shm::kStagingBytesMax));
  }
  constexpr int64_t kPeerStagingMax = int64_t{1} << 30;
  if (peer.staging_bytes < 4096 || peer.staging_bytes > kPeerStagingMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "client: peer.staging_bytes is %d; 4096 to %d", peer.staging_bytes, kPeerStagingMax));
  }
  if (push_queue_bytes_max <= 0) {
    return absl::InvalidArgumentError("client: push_queue_bytes_max must be positive");
  }
  PAGODA_RETURN_IF_ERROR(CheckSecurity(tls, target, token));
  return model.has_value() ? ValidateModelSpec(*model) : absl::OkStatus();
}

}  // namespace pagoda::client
