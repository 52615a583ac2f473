#include "model.h"

#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/client.h"
#include "convert.h"
#include "storage/base/model_spec.h"
#include "storage/base/scope.h"

namespace pagoda::python {
namespace nb = nanobind;
using nb::literals::operator""_a;
namespace {

template <typename Value>
struct Word {
  const char* word;
  Value value;
};

constexpr Word<GroupKind> kGroupKinds[] = {{"full", GroupKind::kFull},
                                           {"sliding_window", GroupKind::kSlidingWindow},
                                           {"mla", GroupKind::kMla},
                                           {"state", GroupKind::kState}};
constexpr Word<KvDtype> kDtypes[] = {{"bf16", KvDtype::kBf16},
                                     {"f16", KvDtype::kF16},
                                     {"f32", KvDtype::kF32},
                                     {"opaque", KvDtype::kOpaque}};
constexpr Word<RopeStyle> kRopeStyles[] = {{"none", RopeStyle::kNone},
                                           {"half_split", RopeStyle::kHalfSplit},
                                           {"interleaved", RopeStyle::kInterleaved}};

template <typename Value, size_t N>
Value ValueOf(const Word<Value> (&words)[N], const std::string& word, const char* name) {
  std::string accepted;
  for (const Word<Value>& known : words) {
    if (word == known.word) return known.value;
    absl::StrAppend(&accepted, accepted.empty() ? "" : ", ", known.word);
  }
  Raise(absl::InvalidArgumentError(absl::StrCat(name, " is '", word, "'; accepted: ", accepted)));
}

template <typename Value, size_t N>
const char* WordOf(const Word<Value> (&words)[N], Value value) {
  for (const Word<Value>& known : words) {
    if (known.value == value) return known.word;
  }
  return "unknown";
}

void RegisterLayerGroup(nb::module_& module) {
  nb::class_<LayerGroup>(module, "LayerGroup", "Layers with the same cache shape.")
      .def(
          "__init__",
          [](LayerGroup* self, uint32_t layer_count, uint32_t kv_head_count, uint32_t head_dim,
             const std::string& kind, uint32_t window_tokens) {
            new (self) LayerGroup{ValueOf(kGroupKinds, kind, "kind"), layer_count, kv_head_count,
                                  head_dim, window_tokens};
          },
          "layer_count"_a, "kv_head_count"_a, "head_dim"_a, "kind"_a = "full",
          "window_tokens"_a = 0)
      .def_rw("layer_count", &LayerGroup::layer_count)
      .def_rw("kv_head_count", &LayerGroup::kv_head_count)
      .def_rw("head_dim", &LayerGroup::head_dim)
      .def_rw("window_tokens", &LayerGroup::window_tokens)
      .def_prop_rw(
          "kind", [](const LayerGroup& self) { return WordOf(kGroupKinds, self.kind); },
          [](LayerGroup& self, const std::string& kind) {
            self.kind = ValueOf(kGroupKinds, kind, "kind");
          });
}

void RegisterModelSpec(nb::module_& module) {
  nb::class_<ModelSpec>(module, "ModelSpec",
                        "What makes the K and V of two workers comparable. Every field is part of "
                        "the identity, and so of every key.")
      .def(
          "__init__",
          [](ModelSpec* self, std::string model, std::vector<LayerGroup> groups,
             std::string weights_revision, std::string adapter, const std::string& kv_dtype,
             const std::string& rope_style, double rope_theta, uint32_t rope_rotary_dims,
             std::string rope_scaling, std::string attention_mode, std::string opaque_layout) {
            ModelSpec spec;
            spec.model = std::move(model);
            spec.weights_revision = std::move(weights_revision);
            spec.adapter = std::move(adapter);
            spec.kv_dtype = ValueOf(kDtypes, kv_dtype, "kv_dtype");
            spec.groups = std::move(groups);
            spec.rope = {ValueOf(kRopeStyles, rope_style, "rope_style"), rope_theta,
                         rope_rotary_dims, std::move(rope_scaling)};
            spec.attention_mode = std::move(attention_mode);
            spec.opaque_layout = std::move(opaque_layout);
            RaiseIfError(ValidateModelSpec(spec));
            new (self) ModelSpec(std::move(spec));
          },
          "model"_a, "groups"_a, nb::kw_only(), "weights_revision"_a = "", "adapter"_a = "",
          "kv_dtype"_a = "bf16", "rope_style"_a = "half_split", "rope_theta"_a = 0.0,
          "rope_rotary_dims"_a = 0, "rope_scaling"_a = "", "attention_mode"_a = "dense",
          "opaque_layout"_a = "")
      .def_ro("model", &ModelSpec::model)
      .def("identity", [](const ModelSpec& self) { return PyBytes(IdentityOf(self).view()); });
}

void RegisterScope(nb::module_& module) {
  using client::ScopeInfo;
  nb::class_<ScopeInfo>(module, "Scope", "Who may share. `root` is the parent of first pages.")
      .def_prop_ro("kind",
                   [](const ScopeInfo& self) { return PyStr(ScopeKindName(self.scope.kind)); })
      .def_prop_ro("name", [](const ScopeInfo& self) { return self.scope.name; })
      .def_prop_ro("id", [](const ScopeInfo& self) { return PyBytes(self.id.view()); })
      .def_prop_ro("root", [](const ScopeInfo& self) { return PyBytes(self.root.view()); })
      .def_ro("may_push", &ScopeInfo::may_push)
      .def("__repr__", [](const ScopeInfo& self) {
        return absl::StrCat("<pagoda_kv.Scope ", ScopeName(self.scope), ">");
      });
}

void RegisterServerInfo(nb::module_& module) {
  using client::ServerInfo;
  nb::class_<ServerInfo>(module, "ServerInfo", "What the daemon said when the session began.")
      .def_ro("version", &ServerInfo::version)
      .def_ro("instance_id", &ServerInfo::instance_id)
      .def_ro("tenant", &ServerInfo::tenant)
      .def_prop_ro("identity", [](const ServerInfo& self) { return PyBytes(self.identity.view()); })
      .def_prop_ro("scopes", [](const ServerInfo& self) { return self.scopes; })
      .def_ro("page_tokens", &ServerInfo::page_tokens)
      .def_ro("batch_pages_max", &ServerInfo::batch_pages_max)
      .def_prop_ro("ladder",
                   [](const ServerInfo& self) { return PyStr(PrecisionName(self.ladder)); })
      .def_ro("shm_socket", &ServerInfo::shm_socket);
}

}  // namespace

void RegisterModel(nb::module_& module) {
  RegisterLayerGroup(module);
  RegisterModelSpec(module);
  RegisterScope(module);
  RegisterServerInfo(module);
}

}  // namespace pagoda::python
