#include "cache-server/lease_token.h"

#include "storage/base/bytes.h"

namespace pagoda {

std::string LeaseToken::Encode() const {
  ByteWriter out;
  out.Put(lease);
  out.Put(instance);
  out.Put(scope_index);
  return out.Take();
}

std::optional<LeaseToken> LeaseToken::Decode(absl::string_view bytes) {
  if (bytes.size() != 16) return std::nullopt;
  ByteReader in(AsBytes(bytes));
  LeaseToken token;
  token.lease = in.Get<uint64_t>();
  token.instance = in.Get<uint32_t>();
  token.scope_index = in.Get<uint32_t>();
  return token;
}

}  // namespace pagoda
