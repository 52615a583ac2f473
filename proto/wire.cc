#include "proto/wire.h"

#include <cstring>

#include "absl/strings/str_format.h"

namespace pagoda {

v1::ModelSpec ToWire(const ModelSpec& spec) {
  v1::ModelSpec out;
  out.set_model(spec.model);
  out.set_weights_revision(spec.weights_revision);
  out.set_adapter(spec.adapter);
  out.set_kv_dtype(static_cast<v1::KvDtype>(spec.kv_dtype));
  for (const LayerGroup& group : spec.groups) {
    v1::LayerGroup& target = *out.add_groups();
    target.set_kind(static_cast<v1::GroupKind>(group.kind));
    target.set_layer_count(group.layer_count);
    target.set_kv_head_count(group.kv_head_count);
    target.set_head_dim(group.head_dim);
    target.set_window_tokens(group.window_tokens);
  }
  out.set_rope_style(static_cast<v1::RopeStyle>(spec.rope.style));
  out.set_rope_theta(spec.rope.theta);
  out.set_rope_rotary_dims(spec.rope.rotary_dims);
  out.set_rope_scaling(spec.rope.scaling);
  out.set_attention_mode(spec.attention_mode);
  out.set_opaque_layout(spec.opaque_layout);
  return out;
}

absl::StatusOr<ModelSpec> FromWire(const v1::ModelSpec& spec) {
  ModelSpec out;
  out.model = spec.model();
  out.weights_revision = spec.weights_revision();
  out.adapter = spec.adapter();
  // Enum values beyond 255 would wrap: clamp them to one that validation refuses.
  const auto narrow = [](int value) {
    return static_cast<uint8_t>(value < 0 || value > 254 ? 255 : value);
  };
  out.kv_dtype = static_cast<KvDtype>(narrow(spec.kv_dtype()));
  if (spec.groups_size() > 8) {
    return absl::InvalidArgumentError(
        absl::StrFormat("model spec: %d layer groups, expected 1 to 8", spec.groups_size()));
  }
  for (const v1::LayerGroup& group : spec.groups()) {
    out.groups.push_back({static_cast<GroupKind>(narrow(group.kind())), group.layer_count(),
                          group.kv_head_count(), group.head_dim(), group.window_tokens()});
  }
  out.rope.style = static_cast<RopeStyle>(narrow(spec.rope_style()));
  out.rope.theta = spec.rope_theta();
  out.rope.rotary_dims = spec.rope_rotary_dims();
  out.rope.scaling = spec.rope_scaling();
  out.attention_mode = spec.attention_mode();
  out.opaque_layout = spec.opaque_layout();
  if (absl::Status status = ValidateModelSpec(out); !status.ok()) return status;
  return out;
}

v1::Precision ToWire(Precision precision) { return static_cast<v1::Precision>(precision); }

absl::StatusOr<Precision> FromWire(v1::Precision precision, Precision fallback) {
  if (precision == v1::PRECISION_UNSPECIFIED) return fallback;
  const int value = precision;
  if (value < 0 || value > 255 || !IsKnownPrecision(static_cast<uint8_t>(value))) {
    return absl::InvalidArgumentError(absl::StrFormat("precision %d is unknown", value));
  }
  return static_cast<Precision>(value);
}

v1::ScopeKind ToWire(ScopeKind kind) { return static_cast<v1::ScopeKind>(kind); }

absl::string_view TierName(v1::Tier tier) {
  switch (tier) {
    case v1::TIER_HBM:
      return "hbm";
    case v1::TIER_HOST:
      return "host";
    case v1::TIER_SSD:
      return "ssd";
    case v1::TIER_PEER:
      return "peer";
    default:
      return "none";
  }
}

grpc::Status ToGrpc(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  return grpc::Status(static_cast<grpc::StatusCode>(status.code()), std::string(status.message()));
}

absl::Status FromGrpc(const grpc::Status& status) {
  if (status.ok()) return absl::OkStatus();
  return absl::Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
}

PageKey KnownAnswer() { return KeyOf(PageKey{}, {0, 1, 2, 3}); }

uint64_t BackendTagOf(absl::string_view description) {
  const Sha256Digest digest = Sha256(description);
  uint64_t tag;
  std::memcpy(&tag, digest.data(), sizeof(tag));
  return tag;
}

}  // namespace pagoda
