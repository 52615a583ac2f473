#include "proto/tls_files.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

absl::Status CheckReadable(absl::string_view name, const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0 || ::access(path.c_str(), R_OK) != 0) {
    return absl::NotFoundError(absl::StrCat(name, ": cannot read ", path, ": ",
                                            std::strerror(errno),
                                            "; name a PEM file that this user may read"));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrCat(name, ": ", path, " is not a file; name a PEM file"));
  }
  return absl::OkStatus();
}

// Its group may read it: that is how orchestrators hand out secrets.
absl::Status CheckPrivate(absl::string_view name, const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && (info.st_mode & 027) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: %s has mode %04o, others may read or change it; run: chmod 600 %s",
                        name, path, info.st_mode & 07777, path));
  }
  return absl::OkStatus();
}

// Nobody is there to be asked: a key with a passphrase is refused.
int NoPassphrase(char*, int, int, void*) { return -1; }

std::string DateText(const ASN1_TIME* time) {
  BIO* const memory = BIO_new(BIO_s_mem());
  ASN1_TIME_print(memory, time);
  char* text = nullptr;
  const long size = BIO_get_mem_data(memory, &text);
  std::string date(text, static_cast<size_t>(size));
  BIO_free(memory);
  return date;
}

absl::Status LoadIdentity(SSL_CTX* context, const TlsFiles& files, const TlsNames& names) {
  PAGODA_RETURN_IF_ERROR(CheckReadable(names.certificate, files.certificate));
  PAGODA_RETURN_IF_ERROR(CheckReadable(names.key, files.key));
  PAGODA_RETURN_IF_ERROR(CheckPrivate(names.key, files.key));
  if (SSL_CTX_use_certificate_chain_file(context, files.certificate.c_str()) != 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        names.certificate, ": ", files.certificate, " holds no certificate in PEM (",
        TakeSslError(), "); name the file that begins with -----BEGIN CERTIFICATE-----"));
  }
  // The certificate stands first, so that this compares the two as well.
  if (SSL_CTX_use_PrivateKey_file(context, files.key.c_str(), SSL_FILETYPE_PEM) == 1) {
    return absl::OkStatus();
  }
  const bool mismatch = ERR_GET_REASON(ERR_peek_error()) == X509_R_KEY_VALUES_MISMATCH ||
                        ERR_GET_REASON(ERR_peek_error()) == X509_R_KEY_TYPE_MISMATCH;
  const std::string cause = TakeSslError();
  if (mismatch) {
    return absl::InvalidArgumentError(
        absl::StrCat(names.key, ": ", files.key, " is not the key of ", names.certificate, " ",
                     files.certificate, "; name the two files that were issued together"));
  }
  return absl::InvalidArgumentError(absl::StrCat(
      names.key, ": ", files.key, " holds no private key in PEM without a passphrase (", cause,
      "); take a passphrase off with: openssl pkey -in KEY -out NEW_KEY"));
}

}  // namespace

std::string TakeSslError() {
  const unsigned long error = ERR_peek_last_error();
  ERR_clear_error();
  const char* const reason = ERR_reason_error_string(error);
  return reason != nullptr ? reason : "unknown reason";
}

absl::StatusOr<std::shared_ptr<SSL_CTX>> LoadTlsFiles(const TlsFiles& files,
                                                      const TlsNames& names) {
  ERR_clear_error();
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_method()), SSL_CTX_free);
  if (context == nullptr) return absl::ResourceExhaustedError("no memory for TLS");
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  SSL_CTX_set_default_passwd_cb(context.get(), NoPassphrase);
  if (!files.ca.empty()) {
    PAGODA_RETURN_IF_ERROR(CheckReadable(names.ca, files.ca));
    if (SSL_CTX_load_verify_locations(context.get(), files.ca.c_str(), nullptr) != 1) {
      return absl::InvalidArgumentError(absl::StrCat(
          names.ca, ": ", files.ca, " holds no certificate in PEM (", TakeSslError(),
          "); name the file of the authority, which begins with -----BEGIN CERTIFICATE-----"));
    }
  }
  if (!files.certificate.empty()) {
    PAGODA_RETURN_IF_ERROR(LoadIdentity(context.get(), files, names));
  }
  return context;
}

absl::Status CheckTlsDates(const SSL_CTX& context, absl::string_view name) {
  const X509* const certificate = SSL_CTX_get0_certificate(&context);
  if (certificate == nullptr) return absl::OkStatus();
  const ASN1_TIME* const end = X509_get0_notAfter(certificate);
  const ASN1_TIME* const begin = X509_get0_notBefore(certificate);
  if (X509_cmp_current_time(end) < 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": the certificate expired on ", DateText(end), "; have it renewed"));
  }
  if (X509_cmp_current_time(begin) > 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(name, ": the certificate is valid from ", DateText(begin),
                     " on; look at this machine's clock, or wait"));
  }
  return absl::OkStatus();
}

}  // namespace pagoda
