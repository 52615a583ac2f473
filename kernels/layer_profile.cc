#include "kernels/layer_profile.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/page_layout.h"
#include "storage/base/status_macros.h"
#include "storage/base/yaml_section.h"

namespace pagoda {
namespace {

constexpr int32_t kLayersMax = 512;

// A YAML text in double quotes; names of models come from files.
std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) quoted += c;
  }
  return quoted + "\"";
}

bool IsIdentity(const std::string& hex) {
  if (hex.size() != 2 * Identity::kBytes) return false;
  for (const char c : hex) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

}  // namespace

absl::Status LayerProfile::Check(const Identity& model_identity, const ModelSpec& spec) const {
  if (model_identity != identity) {
    return absl::FailedPreconditionError(
        absl::StrFormat("profile: of model %s, this one is %s; measure it with `pagoda eval "
                        "profile`",
                        identity.hex().substr(0, 12), model_identity.hex().substr(0, 12)));
  }
  if (spec.groups.size() == 1 && spec.groups[0].layer_count == static_cast<uint32_t>(layer_count)) {
    return absl::OkStatus();
  }
  uint32_t layers = 0;
  for (const LayerGroup& group : spec.groups) layers += group.layer_count;
  return absl::FailedPreconditionError(absl::StrFormat(
      "profile: of %d layers, the model has %d in %d groups; measure it with `pagoda eval profile`",
      layer_count, layers, spec.groups.size()));
}

absl::StatusOr<LayerProfile> ReadLayerProfile(const std::string& path) {
  PAGODA_ASSIGN_OR_RETURN(const YAML::Node node, LoadYamlFile(path));
  absl::Status error;
  YamlSection root(path, node, "", error);
  LayerProfile profile;
  std::string identity;
  root.String("model", profile.model);
  root.String("identity", identity);
  root.Integer("layers", profile.layer_count, 1, kLayersMax);
  root.Integers("k_lo_layers", profile.k_lo_layers, 0, kLayersMax - 1);
  root.Number("bits", profile.bits, 1, 16);
  root.Finish();
  for (const char* key : {"layers", "k_lo_layers"}) {
    if (!root.Has(key)) root.Refuse(key, "a value; write the file with `pagoda eval profile`");
  }
  if (!IsIdentity(identity)) root.Refuse("identity", "64 hexadecimal digits");
  PAGODA_RETURN_IF_ERROR(error);
  PAGODA_ASSIGN_OR_RETURN(profile.identity, Identity::FromBytes(absl::HexStringToBytes(identity)));
  const absl::Status layers = kernels::ValidateKLoLayers(profile.k_lo_layers, profile.layer_count);
  if (layers.ok()) return profile;
  return absl::InvalidArgumentError(absl::StrCat(path, ": k_lo_layers: ", layers.message()));
}

std::string LayerProfileYaml(const LayerProfile& profile) {
  return absl::StrCat("# pagoda eval profile: layers whose K keeps its lo plane at q4\n",
                      "model: ", Quoted(profile.model), "\nidentity: ", profile.identity.hex(),
                      "\nlayers: ", profile.layer_count, "\nk_lo_layers: [",
                      absl::StrJoin(profile.k_lo_layers, ", "),
                      "]\nbits: ", absl::StrFormat("%.3f", profile.bits), "\n");
}

}  // namespace pagoda
