#include "cache-server/options.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cache-server/listen_address.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

absl::Status Bad(absl::string_view field, absl::string_view is, absl::string_view expected) {
  return absl::InvalidArgumentError(absl::StrCat(field, ": is ", is, ", expected ", expected));
}

absl::Status ValidateLimits(const LimitOptions& limits) {
  const auto between = [](absl::string_view name, int64_t value, int64_t min, int64_t max) {
    if (value >= min && value <= max) return absl::OkStatus();
    return Bad(absl::StrCat("limits.", name), absl::StrCat(value),
               absl::StrFormat("%d to %d", min, max));
  };
  PAGODA_RETURN_IF_ERROR(between("batch_pages_max", limits.batch_pages_max, 1, 16384));
  PAGODA_RETURN_IF_ERROR(
      between("control_message_bytes_max", limits.control_message_bytes_max, 64 << 10, 4 << 20));
  PAGODA_RETURN_IF_ERROR(
      between("piece_message_bytes_max", limits.piece_message_bytes_max, 2 << 20, 64 << 20));
  PAGODA_RETURN_IF_ERROR(between("sessions_max", limits.sessions_max, 1, 65536));
  PAGODA_RETURN_IF_ERROR(
      between("leases_per_session_max", limits.leases_per_session_max, 1, 65536));
  PAGODA_RETURN_IF_ERROR(
      between("sequences_per_session_max", limits.sequences_per_session_max, 1, 65536));
  PAGODA_RETURN_IF_ERROR(
      between("staged_pages_per_session_max", limits.staged_pages_per_session_max, 1, 1024));
  PAGODA_RETURN_IF_ERROR(between("models_max", limits.models_max, 1, 4096));
  return between("encode_queue_pages_max", limits.encode_queue_pages_max, 1, 1 << 24);
}

absl::Status ValidateTls(const ServerOptions& options, const ListenAddress& listen) {
  const TlsSettings& tls = options.tls;
  if (!tls.enabled()) return absl::OkStatus();
  if (listen.is_unix()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tls: is set, but listen is ", options.listen,
                     ", and a Unix socket has no TLS; leave tls out, or listen on HOST:PORT"));
  }
  if (options.insecure) {
    return absl::InvalidArgumentError(
        "insecure: is true, but tls is set; leave one of the two out");
  }
  if (tls.certificate.empty() || tls.key.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("tls.", tls.certificate.empty() ? "certificate" : "key",
                     ": is not set; TLS needs both tls.certificate and tls.key"));
  }
  if (tls.require_client_certificate && tls.client_ca.empty()) {
    return absl::InvalidArgumentError(
        "tls.client_ca: is not set; name the authority of the clients' certificates, or set "
        "tls.require_client_certificate: false and know callers by token alone");
  }
  return absl::OkStatus();
}

absl::Status ValidateListen(const ServerOptions& options) {
  const absl::StatusOr<ListenAddress> listen = ParseListenAddress(options.listen);
  if (!listen.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("listen: ", listen.status().message()));
  }
  PAGODA_RETURN_IF_ERROR(ValidateTls(options, *listen));
  const bool certified = options.tls.enabled() && options.tls.require_client_certificate;
  if (options.token_file.empty() && !certified && !listen->is_local()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "listen: ", options.listen,
        " is reachable from other machines, but there is neither a token_file nor tls with "
        "client certificates, so that everybody there could read and write every page; set one, "
        "or listen on 127.0.0.1 or unix:PATH"));
  }
  if (!options.tls.enabled() && !options.insecure && !listen->is_local()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "listen: ", options.listen,
        " is reachable from other machines, but tls is not set, so that tokens and pages could be "
        "read on their way; set tls, or insecure: true where the network itself is trusted"));
  }
  if (options.metrics_listen == "none") return absl::OkStatus();
  const absl::StatusOr<ListenAddress> metrics = ParseListenAddress(options.metrics_listen);
  if (!metrics.ok() || metrics->is_unix()) {
    return absl::InvalidArgumentError(absl::StrCat("metrics_listen: '", options.metrics_listen,
                                                   "' is not HOST:PORT; write 127.0.0.1:7072, or "
                                                   "none to have no metrics endpoint"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Duration LadderOptions::ShortestIdle() const {
  absl::Duration shortest = standard.idle_after;
  for (const auto& [name, ladder] : models) shortest = std::min(shortest, ladder.idle_after);
  return shortest;
}

std::optional<Precision> LadderOptions::LowestPressure() const {
  std::optional<Precision> lowest = standard.pressure;
  for (const auto& [name, ladder] : models) {
    if (!ladder.pressure.has_value()) continue;
    lowest = std::min(lowest.value_or(*ladder.pressure), *ladder.pressure);
  }
  return lowest;
}

absl::Status HbmSettings::Validate() const {
  constexpr int64_t kGranule = int64_t{2} << 20;  // the driver's
  int64_t index = 0;
  const bool named = absl::StartsWith(device, "GPU-") && device.size() == 40;
  if (device != "auto" && device != "none" && !named &&
      !(absl::SimpleAtoi(device, &index) && index >= 0)) {
    return Bad("hbm.device", absl::StrCat("'", device, "'"),
               "auto, none, an index, or a UUID as nvidia-smi -L prints it");
  }
  if (chunk_bytes < kGranule || chunk_bytes % kGranule != 0) {
    return Bad("hbm.chunk", absl::StrCat(chunk_bytes), "a multiple of 2MiB");
  }
  if (capacity_bytes < chunk_bytes || capacity_bytes / chunk_bytes > (1 << 16)) {
    return Bad("hbm.capacity", absl::StrCat(capacity_bytes),
               absl::StrCat("1 to 65536 chunks of ", chunk_bytes,
                            " bytes (hbm.chunk), or hbm.device: none"));
  }
  constexpr int32_t kPeerLinksMax = 64;
  if (peer_links_max < 0 || peer_links_max > kPeerLinksMax) {
    return Bad("hbm.peer_links_max", absl::StrCat(peer_links_max),
               absl::StrCat("0 to ", kPeerLinksMax));
  }
  if (peer_links_max > 0 && device == "none") {
    return Bad("hbm.peer_links_max", absl::StrCat(peer_links_max),
               "0 where hbm.device is none: pages are sent out of device memory");
  }
  return absl::OkStatus();
}

std::string ServerOptions::shm_socket() const {
  constexpr absl::string_view kUnix = "unix:";
  if (!shm.socket.empty()) return shm.socket;
  if (absl::StartsWith(listen, kUnix)) return absl::StrCat(listen.substr(kUnix.size()), ".shm");
  // A client has another working folder.
  return (std::filesystem::absolute(data_dir) / "shm.sock").lexically_normal().string();
}

absl::Status ServerOptions::Validate() const {
  if (data_dir.empty()) {
    return absl::InvalidArgumentError(
        "data_dir: is not set; give --data-dir FOLDER (it is created if absent)");
  }
  PAGODA_RETURN_IF_ERROR(ValidateListen(*this));
  if (absl::Status status = host.Validate(); !status.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("host: ", status.message()));
  }
  PAGODA_RETURN_IF_ERROR(
      policies.Validate(host.capacity_bytes, ssd.enabled ? ssd.capacity_bytes : 0));
  if (ssd.enabled && ssd.capacity_bytes < (int64_t{64} << 20)) {
    return Bad("ssd.capacity", absl::StrCat(ssd.capacity_bytes),
               "at least 64MiB, or ssd.enabled: false");
  }
  PAGODA_RETURN_IF_ERROR(hbm.Validate());
  if (!shm.enabled && hbm.peer_links_max == 0 && hbm.device != "auto" && hbm.device != "none") {
    return Bad("hbm.device", absl::StrCat("'", hbm.device, "'"),
               "auto or none: shm.enabled is false, and workers find device memory through it, "
               "unless they are on other GPUs (hbm.peer_links_max)");
  }
  PAGODA_RETURN_IF_ERROR(prefetch.Validate());
  PAGODA_RETURN_IF_ERROR(ValidateLimits(limits));
  if (page_tokens != 32 && page_tokens != 64 && page_tokens != 128 && page_tokens != 256) {
    return Bad("page_tokens", absl::StrCat(page_tokens), "32, 64, 128 or 256");
  }
  if (encode_threads < 1 || encode_threads > 256) {
    return Bad("encode_threads", absl::StrCat(encode_threads), "1 to 256");
  }
  if (heartbeat <= absl::ZeroDuration() || session_timeout < 2 * heartbeat) {
    return Bad("session_timeout_seconds", absl::FormatDuration(session_timeout),
               absl::StrCat("at least twice heartbeat_seconds (", absl::FormatDuration(heartbeat),
                            "), so that one late heartbeat ends no session"));
  }
  if (lease < absl::Seconds(1) || lease > absl::Minutes(10)) {
    return Bad("lease_seconds", absl::FormatDuration(lease), "1 to 600 seconds");
  }
  return absl::OkStatus();
}

}  // namespace pagoda
