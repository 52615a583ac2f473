#include "storage/base/page_key.h"

#include "storage/base/bytes.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

void PutTag(ByteWriter& out, absl::string_view tag) { out.PutBytes(tag.data(), tag.size()); }

void PutTokens(ByteWriter& out, absl::Span<const uint32_t> token_ids) {
  out.Put(static_cast<uint32_t>(token_ids.size()));
  out.PutBytes(token_ids.data(), token_ids.size() * sizeof(uint32_t));
}

}  // namespace

PageKey RootOf(const Identity& identity, ScopeKind kind, const ScopeSecret& secret) {
  ByteWriter out;
  PutTag(out, "pagoda/v1");
  out.Put(identity.bytes);
  out.Put(static_cast<uint8_t>(kind));
  out.Put(secret.bytes);
  return PageKey{Sha256(out.text())};
}

PageKey KeyOf(const PageKey& parent, absl::Span<const uint32_t> token_ids,
              absl::string_view extra) {
  ByteWriter out;
  PutTag(out, "pagoda/page/v1");
  out.Put(parent.bytes);
  PutTokens(out, token_ids);
  out.PutString(extra);
  return PageKey{Sha256(out.text())};
}

PageKey ExternalKeyOf(const PageKey& root, absl::string_view engine_hash) {
  ByteWriter out;
  PutTag(out, "pagoda/ext/v1");
  out.Put(root.bytes);
  out.PutString(engine_hash);
  return PageKey{Sha256(out.text())};
}

PageKey ChunkKeyOf(const PageKey& root, absl::Span<const uint32_t> token_ids) {
  ByteWriter out;
  PutTag(out, "pagoda/chunk/v1");
  out.Put(root.bytes);
  PutTokens(out, token_ids);
  return PageKey{Sha256(out.text())};
}

std::vector<PageKey> KeyChain(const PageKey& root, absl::Span<const uint32_t> token_ids,
                              uint32_t page_tokens) {
  PAGODA_CHECK(page_tokens > 0);
  std::vector<PageKey> keys;
  keys.reserve(token_ids.size() / page_tokens);
  const PageKey* parent = &root;
  for (size_t begin = 0; begin + page_tokens <= token_ids.size(); begin += page_tokens) {
    keys.push_back(KeyOf(*parent, token_ids.subspan(begin, page_tokens)));
    parent = &keys.back();
  }
  return keys;
}

std::string RecordKey::Encode() const {
  ByteWriter out;
  out.Put(key.bytes);
  out.Put(group);
  out.Put(head_begin);
  out.Put(head_count);
  PAGODA_CHECK(out.size() == kEncodedBytes);
  return out.Take();
}

std::optional<RecordKey> RecordKey::Decode(absl::string_view encoded) {
  if (encoded.size() != kEncodedBytes) return std::nullopt;
  ByteReader in(AsBytes(encoded));
  RecordKey key;
  key.key.bytes = in.Get<std::array<uint8_t, 32>>();
  key.group = in.Get<uint8_t>();
  key.head_begin = in.Get<uint16_t>();
  key.head_count = in.Get<uint16_t>();
  return key;
}

}  // namespace pagoda
