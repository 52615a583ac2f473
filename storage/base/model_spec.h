// What makes two KV bytes comparable. Its SHA-256 is the identity, the first thing in every key.
// Not in it: tensor-parallel shard, layer group of one page, codec, page size (design: a page of
// another size or precision is another record of the same content).
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "storage/base/digest.h"

namespace pagoda {

struct IdentityTag;
using Identity = DigestId<IdentityTag>;

enum class KvDtype : uint8_t { kBf16 = 1, kF16 = 2, kF32 = 3, kOpaque = 4 };
enum class GroupKind : uint8_t { kFull = 1, kSlidingWindow = 2, kMla = 3, kState = 4 };
enum class RopeStyle : uint8_t { kNone = 0, kHalfSplit = 1, kInterleaved = 2 };

// Layers with the same cache shape.
struct LayerGroup {
  GroupKind kind = GroupKind::kFull;
  uint32_t layer_count = 0;
  uint32_t kv_head_count = 0;
  uint32_t head_dim = 0;
  uint32_t window_tokens = 0;  // sliding window only
  bool operator==(const LayerGroup&) const = default;
};

struct RopeSpec {
  RopeStyle style = RopeStyle::kHalfSplit;
  double theta = 0;
  uint32_t rotary_dims = 0;
  std::string scaling;  // "" or a canonical text such as "linear:4"
  bool operator==(const RopeSpec&) const = default;
};

struct ModelSpec {
  std::string model;             // human name; part of the identity
  std::string weights_revision;  // hash of the weights, or a hub revision
  std::string adapter;           // LoRA revision, empty for none
  KvDtype kv_dtype = KvDtype::kBf16;
  std::vector<LayerGroup> groups;
  RopeSpec rope;
  std::string attention_mode = "dense";
  std::string opaque_layout;  // opaque blocks only: block size, layout, instruction set
  bool operator==(const ModelSpec&) const = default;
};

// INVALID_ARGUMENT names the field, its value and what is accepted.
// Limits  1 to 8 groups, 1 to 1024 layers, 1 to 1024 heads, head_dim 1 to 1024, texts of 256 bytes.
absl::Status ValidateModelSpec(const ModelSpec& spec);

// SHA-256 of the canonical bytes: "pagoda/model/v1", then every field in the order above, numbers
// little-endian, texts as u32 length and bytes.
Identity IdentityOf(const ModelSpec& spec);

}  // namespace pagoda
