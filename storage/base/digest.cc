#include "storage/base/digest.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "storage/base/check.h"

namespace pagoda {

Sha256Digest Sha256(absl::string_view data) {
  Sha256Digest digest;
  unsigned int size = 0;
  // Looked up once: EVP_sha256() is looked up again by each call, which takes longer than the hash
  // of a short text.
  static const EVP_MD* const sha256 = EVP_MD_fetch(nullptr, "SHA256", nullptr);
  PAGODA_CHECK(sha256 != nullptr);
  const int ok = EVP_Digest(data.data(), data.size(), digest.data(), &size, sha256, nullptr);
  PAGODA_CHECK(ok == 1);
  PAGODA_CHECK(size == digest.size());
  return digest;
}

Sha256Digest HmacSha256(absl::string_view key, absl::string_view data) {
  Sha256Digest digest;
  unsigned int size = 0;
  const unsigned char* out =
      HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()),
           reinterpret_cast<const unsigned char*>(data.data()), data.size(), digest.data(), &size);
  PAGODA_CHECK(out != nullptr);
  PAGODA_CHECK(size == digest.size());
  return digest;
}

absl::StatusOr<Sha256Digest> RandomBytes32() {
  Sha256Digest bytes;
  if (RAND_bytes(bytes.data(), static_cast<int>(bytes.size())) != 1) {
    return absl::InternalError("the system's random source gave no bytes");
  }
  return bytes;
}

}  // namespace pagoda
