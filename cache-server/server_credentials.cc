#include "cache-server/server_credentials.h"

#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "proto/tls_files.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr unsigned kWatchSeconds = 1;
constexpr TlsNames kNames{.ca = "tls.client_ca"};

}  // namespace

absl::Status CheckTls(const TlsSettings& tls) {
  if (!tls.enabled()) return absl::OkStatus();
  PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<SSL_CTX> context,
                          LoadTlsFiles({tls.certificate, tls.key, tls.client_ca}, kNames));
  return CheckTlsDates(*context, kNames.certificate);
}

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const TlsSettings& tls) {
  if (!tls.enabled()) return grpc::InsecureServerCredentials();
  PAGODA_RETURN_IF_ERROR(CheckTls(tls));
  auto files = std::make_shared<grpc::experimental::FileWatcherCertificateProvider>(
      tls.key, tls.certificate, tls.client_ca, kWatchSeconds);
  grpc::experimental::TlsServerCredentialsOptions options(std::move(files));
  options.watch_identity_key_cert_pairs();
  if (!tls.client_ca.empty()) options.watch_root_certs();
  options.set_cert_request_type(
      tls.require_client_certificate ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
      : tls.client_ca.empty()        ? GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE
                                     : GRPC_SSL_REQUEST_CLIENT_CERTIFICATE_AND_VERIFY);
  return grpc::experimental::TlsServerCredentials(options);
}

absl::string_view TlsMode(const TlsSettings& tls) {
  if (!tls.enabled()) return "off";
  return tls.require_client_certificate ? "mutual" : "on";
}

}  // namespace pagoda
