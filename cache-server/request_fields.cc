#include "cache-server/request_fields.h"

#include "absl/strings/str_format.h"

namespace pagoda {

absl::StatusOr<PartRange> ParsePart(const v1::Part& part, const ModelSpec& spec) {
  if (part.group() >= spec.groups.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "part.group: is %d, the model has %d layer groups", part.group(), spec.groups.size()));
  }
  const uint32_t heads = spec.groups[part.group()].kv_head_count;
  if (part.head_begin() >= heads || part.head_count() > heads - part.head_begin()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("part: heads %d+%d, the group has %d kv heads", part.head_begin(),
                        part.head_count(), heads));
  }
  PartRange range;
  range.group = static_cast<uint8_t>(part.group());
  range.head_begin = static_cast<uint16_t>(part.head_begin());
  range.head_count =
      static_cast<uint16_t>(part.head_count() == 0 ? heads - part.head_begin() : part.head_count());
  return range;
}

}  // namespace pagoda
