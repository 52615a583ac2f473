// Fields of requests, checked on the way in. Every error is INVALID_ARGUMENT and names the field.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "cache-server/model_registry.h"
#include "pagoda/v1/cache.pb.h"
#include "storage/base/page_key.h"

namespace pagoda {

// An id of exactly Id::kBytes bytes.
template <typename Id>
absl::StatusOr<Id> ParseId(absl::string_view field, absl::string_view bytes) {
  absl::StatusOr<Id> id = Id::FromBytes(bytes);
  if (!id.ok()) return absl::InvalidArgumentError(absl::StrCat(field, ": ", id.status().message()));
  return id;
}

// A layer group and a range of kv heads, against the model's spec.
struct PartRange {
  uint8_t group = 0;
  uint16_t head_begin = 0;
  uint16_t head_count = 0;
  RecordKey RecordOf(const PageKey& key) const { return {key, group, head_begin, head_count}; }
};
absl::StatusOr<PartRange> ParsePart(const v1::Part& part, const ModelSpec& spec);

// Tokens of an opaque page: an engine's own blocks are as long as it likes.
constexpr uint32_t kOpaqueTokensMax = 4096;

}  // namespace pagoda
