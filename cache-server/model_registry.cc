#include "cache-server/model_registry.h"

#include <google/protobuf/util/json_util.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "proto/wire.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr int kFileVersion = 1;

std::string SpecToJson(const ModelSpec& spec) {
  std::string text;
  const auto status = google::protobuf::util::MessageToJsonString(ToWire(spec), &text);
  return status.ok() ? text : "{}";
}

absl::StatusOr<KnownModel> FromJson(const nlohmann::json& item) {
  v1::ModelSpec wire;
  const auto parsed = google::protobuf::util::JsonStringToMessage(
      item.value("spec", nlohmann::json()).dump(), &wire);
  if (!parsed.ok()) return absl::InvalidArgumentError("a model spec is not readable");
  KnownModel model;
  PAGODA_ASSIGN_OR_RETURN(model.spec, FromWire(wire));
  if (model.spec.kv_dtype != KvDtype::kOpaque) {
    PAGODA_ASSIGN_OR_RETURN(model.ladder.fresh, ParsePrecision(item.value("ladder", "")));
  }
  model.page_tokens = item.value("page_tokens", 0u);
  model.identity = IdentityOf(model.spec);
  return model;
}

}  // namespace

ModelRegistry::ModelRegistry(const LadderOptions& ladder, uint32_t models_max, std::string path)
    : configured_(ladder), models_max_(models_max), path_(std::move(path)) {}

Ladder ModelRegistry::ConfiguredLadder(const ModelSpec& spec) const {
  if (spec.kv_dtype == KvDtype::kOpaque) return Ladder(Precision::kOpaque);
  const auto found = configured_.models.find(spec.model);
  return found == configured_.models.end() ? configured_.standard : found->second;
}

absl::StatusOr<Precision> ModelRegistry::Announce(const Identity& identity, const ModelSpec& spec,
                                                  uint32_t page_tokens) {
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(identity);
  if (found != models_.end()) {
    changed_ |= found->second.page_tokens != page_tokens;
    found->second.page_tokens = page_tokens;
    return found->second.ladder.fresh;
  }
  if (models_.size() >= models_max_) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d models are known, models_max", models_.size()));
  }
  KnownModel& model = models_[identity];
  model = {identity, spec, ConfiguredLadder(spec), page_tokens, {}, {}};
  TakeProfile(model);
  changed_ = true;
  return model.ladder.fresh;
}

std::optional<KnownModel> ModelRegistry::Find(const Identity& identity) const {
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(identity);
  if (found == models_.end()) return std::nullopt;
  return found->second;
}

Ladder ModelRegistry::LadderOf(const Identity& identity) const {
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(identity);
  return found == models_.end() ? configured_.standard : found->second.ladder;
}

std::vector<int32_t> ModelRegistry::KLoLayersOf(const Identity& identity) const {
  absl::MutexLock lock(&mutex_);
  const auto found = models_.find(identity);
  return found == models_.end() ? std::vector<int32_t>() : found->second.k_lo_layers;
}

void ModelRegistry::TakeProfile(KnownModel& model) const {
  const auto found = configured_.profiles.find(model.spec.model);
  if (found == configured_.profiles.end()) return;
  const absl::Status fits = found->second.Check(model.identity, model.spec);
  if (fits.ok()) {
    model.k_lo_layers = found->second.k_lo_layers;
    return;
  }
  model.profile_problem = std::string(fits.message());
  LogWarning("profile_not_used", {{"model", model.spec.model},
                                  {"cause", model.profile_problem},
                                  {"effect", "its pages come down to q4 without it"}});
}

absl::Status ModelRegistry::SetLadder(const std::optional<Identity>& identity, Precision ladder) {
  absl::MutexLock lock(&mutex_);
  if (identity.has_value() && !models_.contains(*identity)) {
    return absl::NotFoundError(absl::StrCat("model ", identity->hex(), " is not known here"));
  }
  if (identity.has_value() && models_[*identity].spec.kv_dtype == KvDtype::kOpaque) {
    return absl::InvalidArgumentError(
        absl::StrCat("ladder: pages of ", models_[*identity].spec.model,
                     " are an engine's own bytes (opaque) and have no other precision"));
  }
  for (auto& [id, model] : models_) {
    if (model.spec.kv_dtype == KvDtype::kOpaque) continue;
    if (!identity.has_value() || id == *identity) model.ladder.fresh = ladder;
  }
  changed_ = true;
  return absl::OkStatus();
}

std::vector<KnownModel> ModelRegistry::All() const {
  absl::MutexLock lock(&mutex_);
  std::vector<KnownModel> all;
  for (const auto& [identity, model] : models_) all.push_back(model);
  return all;
}

void ModelRegistry::Load() {
  if (path_.empty()) return;
  std::ifstream file(path_);
  if (!file) return;  // The first start.
  const auto ignore = [&](absl::string_view cause) {
    LogWarning("models_file_ignored", {{"path", path_}, {"cause", std::string(cause)}});
  };
  const nlohmann::json root = nlohmann::json::parse(file, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("version") || root["version"] != kFileVersion ||
      !root.contains("models") || !root["models"].is_array()) {
    return ignore("not a models file of this version");
  }
  absl::MutexLock lock(&mutex_);
  for (const nlohmann::json& item : root["models"]) {
    try {  // value() throws when a field is of another type.
      const absl::StatusOr<KnownModel> model = FromJson(item);
      if (!model.ok()) return ignore(model.status().message());
      if (models_.size() >= models_max_) return ignore("more models than models_max");
      KnownModel& known = models_[model->identity];
      known = *model;
      TakeProfile(known);
      // The configuration wins over what was set by hand before the restart.
      known.ladder = ConfiguredLadder(model->spec);
      if (!configured_.models.contains(model->spec.model) &&
          model->spec.kv_dtype != KvDtype::kOpaque) {
        known.ladder.fresh = model->ladder.fresh;
      }
    } catch (const nlohmann::json::exception&) {
      return ignore("a field is of another type");
    }
  }
}

absl::Status ModelRegistry::SaveIfChanged() {
  if (path_.empty()) return absl::OkStatus();
  nlohmann::json models = nlohmann::json::array();
  {
    absl::MutexLock lock(&mutex_);
    if (!changed_) return absl::OkStatus();
    changed_ = false;
    for (const auto& [identity, model] : models_) {
      models.push_back({{"identity", identity.hex()},
                        {"ladder", std::string(PrecisionName(model.ladder.fresh))},
                        {"page_tokens", model.page_tokens},
                        {"spec", nlohmann::json::parse(SpecToJson(model.spec), nullptr, false)}});
    }
  }
  const std::string aside = path_ + ".new";
  {
    std::ofstream file(aside, std::ios::trunc);
    // Model names come from clients and may not be UTF-8: replaced rather than thrown about.
    file << nlohmann::json{{"version", kFileVersion}, {"models", models}}.dump(
                2, ' ', false, nlohmann::json::error_handler_t::replace)
         << "\n";
    file.flush();
    if (!file) {
      absl::MutexLock lock(&mutex_);
      changed_ = true;
      return absl::UnavailableError(absl::StrCat("cannot write ", aside));
    }
  }
  if (std::rename(aside.c_str(), path_.c_str()) != 0) {
    absl::MutexLock lock(&mutex_);
    changed_ = true;
    return absl::UnavailableError(absl::StrCat("cannot write ", path_, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace pagoda
