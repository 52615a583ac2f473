#include "storage/base/model_spec.h"

#include <cmath>

#include "absl/strings/str_format.h"
#include "storage/base/bytes.h"

namespace pagoda {
namespace {

absl::Status CheckText(absl::string_view field, absl::string_view value) {
  if (value.size() <= 256) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("model spec: %s has %d bytes, at most 256", field, value.size()));
}

absl::Status CheckRange(absl::string_view field, uint32_t value, uint32_t min, uint32_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("model spec: %s is %d, expected %d to %d", field, value, min, max));
}

}  // namespace

absl::Status ValidateModelSpec(const ModelSpec& spec) {
  if (spec.model.empty()) return absl::InvalidArgumentError("model spec: model is empty");
  for (const auto& [field, value] :
       {std::pair<absl::string_view, absl::string_view>{"model", spec.model},
        {"weights_revision", spec.weights_revision},
        {"adapter", spec.adapter},
        {"rope.scaling", spec.rope.scaling},
        {"attention_mode", spec.attention_mode},
        {"opaque_layout", spec.opaque_layout}}) {
    if (absl::Status status = CheckText(field, value); !status.ok()) return status;
  }
  const auto dtype = static_cast<uint32_t>(spec.kv_dtype);
  if (absl::Status s = CheckRange("kv_dtype", dtype, 1, 4); !s.ok()) return s;
  const auto style = static_cast<uint32_t>(spec.rope.style);
  if (absl::Status s = CheckRange("rope.style", style, 0, 2); !s.ok()) return s;
  if (!std::isfinite(spec.rope.theta) || spec.rope.theta < 0) {
    return absl::InvalidArgumentError("model spec: rope.theta is not a finite positive number");
  }
  if (spec.groups.empty() || spec.groups.size() > 8) {
    return absl::InvalidArgumentError(
        absl::StrFormat("model spec: %d layer groups, expected 1 to 8", spec.groups.size()));
  }
  for (const LayerGroup& group : spec.groups) {
    const auto kind = static_cast<uint32_t>(group.kind);
    if (absl::Status s = CheckRange("group.kind", kind, 1, 4); !s.ok()) return s;
    if (absl::Status s = CheckRange("layer_count", group.layer_count, 1, 1024); !s.ok()) return s;
    if (absl::Status s = CheckRange("kv_head_count", group.kv_head_count, 1, 1024); !s.ok()) {
      return s;
    }
    if (absl::Status s = CheckRange("head_dim", group.head_dim, 1, 1024); !s.ok()) return s;
  }
  return absl::OkStatus();
}

Identity IdentityOf(const ModelSpec& spec) {
  ByteWriter out;
  out.PutString("pagoda/model/v1");
  out.PutString(spec.model);
  out.PutString(spec.weights_revision);
  out.PutString(spec.adapter);
  out.Put(static_cast<uint8_t>(spec.kv_dtype));
  out.Put(static_cast<uint32_t>(spec.groups.size()));
  for (const LayerGroup& group : spec.groups) {
    out.Put(static_cast<uint8_t>(group.kind));
    out.Put(group.layer_count);
    out.Put(group.kv_head_count);
    out.Put(group.head_dim);
    out.Put(group.window_tokens);
  }
  out.Put(static_cast<uint8_t>(spec.rope.style));
  out.Put(spec.rope.theta);
  out.Put(spec.rope.rotary_dims);
  out.PutString(spec.rope.scaling);
  out.PutString(spec.attention_mode);
  out.PutString(spec.opaque_layout);
  return Identity{Sha256(out.text())};
}

}  // namespace pagoda
