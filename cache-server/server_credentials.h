// How the gRPC port is secured: TLS 1.2 or later with the configured files, clients' certificates
// verified, or nothing. The files are looked at every second and used again when they changed, for
// new connections; those that are open stay. What does not load then is not used, and connections
// fail until it does: replace certificate and key in one step, as orchestrators do.
//
// Errors  those of proto/tls_files.h
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "cache-server/options.h"

namespace pagoda {

// Whether the files are sound, and the certificate is valid now. OK without TLS.
absl::Status CheckTls(const TlsSettings& tls);

// The same, and what gRPC needs.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsSettings& tls);

// "off", "on" (callers may come without a certificate) or "mutual", for the log.
absl::string_view TlsMode(const TlsSettings& tls);

}  // namespace pagoda
