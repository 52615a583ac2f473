// The PEM files of one end of a TLS connection: whether they are there, belong together, and are
// nobody else's. gRPC reads them itself, and again when they change; what it then does not like it
// only logs, so they are looked at before.
//
// Threads    pure functions of the files
// Errors     NOT_FOUND            no such file, or it may not be read
//            FAILED_PRECONDITION  others may read the key; the certificate is over
//            INVALID_ARGUMENT     not PEM of that kind, or a key of another certificate
//            Each names the setting, the file and the remedy.
#pragma once

#include <openssl/ssl.h>

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda {

struct TlsFiles {
  std::string certificate;  // its own first, then those up to the authority; empty: none
  std::string key;          // of the first certificate, without a passphrase
  std::string ca;           // authorities of whom the other end's certificate must be; empty: none
};

// What the settings are called that name them, for messages.
struct TlsNames {
  absl::string_view certificate = "tls.certificate";
  absl::string_view key = "tls.key";
  absl::string_view ca = "tls.ca";
};

// All files that are named, loaded. REQUIRES: certificate and key are both named or neither is.
absl::StatusOr<std::shared_ptr<SSL_CTX>> LoadTlsFiles(const TlsFiles& files, const TlsNames& names);

// FAILED_PRECONDITION when the certificate in `context` is over or not yet valid: the other end
// would refuse it. OK without a certificate.
absl::Status CheckTlsDates(const SSL_CTX& context, absl::string_view name);

// OpenSSL's last complaint of this thread, in its words; its queue is empty afterwards.
std::string TakeSslError();

}  // namespace pagoda
