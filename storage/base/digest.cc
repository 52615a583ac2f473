#include "storage/base/digest.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "storage/base/check.h"

namespace pagoda {

Sha256Digest Sha256(absl::string_view data) {
  Sha256Digest digest;
  unsigned int size = 0;
  const int ok = EVP_Digest(data.data(), data.size(), digest.data(), &size, EVP_sha256(), nullptr);
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
