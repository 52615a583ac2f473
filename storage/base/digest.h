// Fixed-size ids and the two hash functions behind them (SHA-256 and HMAC-SHA256, by OpenSSL).
// DigestId<Tag, N> makes ids of different meaning different types: a page key is not an identity.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/escaping.h"
#include "absl/strings/string_view.h"
#include "storage/base/bytes.h"

namespace pagoda {

template <typename Tag, size_t N = 32>
struct DigestId {
  static constexpr size_t kBytes = N;
  std::array<uint8_t, N> bytes{};

  // Copies exactly kBytes bytes. INVALID_ARGUMENT for any other length.
  static absl::StatusOr<DigestId> FromBytes(absl::string_view raw) {
    if (raw.size() != N) {
      return absl::InvalidArgumentError("id of " + std::to_string(raw.size()) +
                                        " bytes, expected " + std::to_string(N));
    }
    DigestId id;
    std::memcpy(id.bytes.data(), raw.data(), N);
    return id;
  }
  absl::string_view view() const {
    return absl::string_view(reinterpret_cast<const char*>(bytes.data()), N);
  }
  std::string hex() const { return absl::BytesToHexString(view()); }
  bool is_zero() const { return bytes == std::array<uint8_t, N>{}; }

  auto operator<=>(const DigestId&) const = default;

  template <typename H>
  friend H AbslHashValue(H h, const DigestId& id) {
    uint64_t head;  // Already uniformly distributed: eight bytes of it are a hash.
    std::memcpy(&head, id.bytes.data(), sizeof(head));
    return H::combine(std::move(h), head);
  }
};

using Sha256Digest = std::array<uint8_t, 32>;

Sha256Digest Sha256(absl::string_view data);
Sha256Digest HmacSha256(absl::string_view key, absl::string_view data);

// 32 bytes from the operating system's random source. INTERNAL if it has none.
absl::StatusOr<Sha256Digest> RandomBytes32();

}  // namespace pagoda
