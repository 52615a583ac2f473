// Names of pages. A key says: these tokens, after that parent, of this model, in this scope.
//
//   root = SHA-256("pagoda/v1" | identity | u8 scope kind | 32-byte scope secret)
//   key  = SHA-256("pagoda/page/v1" | parent key or root | u32 n | n x u32 token ids | u32 len |
//   extra) key of an engine's own block hash = SHA-256("pagoda/ext/v1" | root | u32 len | hash)
//
// Numbers are little-endian. Test vectors: proto/README.md.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "storage/base/digest.h"
#include "storage/base/model_spec.h"
#include "storage/base/scope.h"

namespace pagoda {

struct PageKeyTag;
using PageKey = DigestId<PageKeyTag>;  // A chain's root has the same form; it names no page.

PageKey RootOf(const Identity& identity, ScopeKind kind, const ScopeSecret& secret);

// `extra` is a sequence of sorted typed TLVs (multimodal hash, derived-sequence policy, ...).
PageKey KeyOf(const PageKey& parent, absl::Span<const uint32_t> token_ids,
              absl::string_view extra = {});

PageKey ExternalKeyOf(const PageKey& root, absl::string_view engine_hash);

// Keys of all full pages of `token_ids`, in order. Cost: one SHA-256 of 4 * page_tokens bytes each.
std::vector<PageKey> KeyChain(const PageKey& root, absl::Span<const uint32_t> token_ids,
                              uint32_t page_tokens);

// Position-free name of the same tokens, for reuse at other places:
// SHA-256("pagoda/chunk/v1" | root | u32 n | n x u32 token ids).
PageKey ChunkKeyOf(const PageKey& root, absl::Span<const uint32_t> token_ids);

// A page belongs to one layer group and one range of kv heads (a tensor-parallel shard).
struct RecordKey {
  PageKey key;
  uint8_t group = 0;
  uint16_t head_begin = 0;
  uint16_t head_count = 0;

  static constexpr size_t kEncodedBytes = 37;
  std::string Encode() const;  // Sorts by key first; fixed length.
  static std::optional<RecordKey> Decode(absl::string_view encoded);

  auto operator<=>(const RecordKey&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const RecordKey& k) {
    return H::combine(std::move(h), k.key, k.group, k.head_begin, k.head_count);
  }
};

}  // namespace pagoda
