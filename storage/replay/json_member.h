// Members of JSON objects from outside: present and of the right kind, or an error that names them.
// Without exceptions.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"

namespace pagoda::replay {

using Json = nlohmann::json;

inline absl::StatusOr<Json> ParseJsonObject(absl::string_view text) {
  Json value = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (value.is_object()) return value;
  return absl::InvalidArgumentError(
      "it is no JSON object; the format has one on each line: mend or delete the line");
}

inline absl::Status WrongMember(const char* name, const char* kind) {
  return absl::InvalidArgumentError(absl::StrFormat(
      "member \"%s\" is missing or is not %s; mend or delete the line", name, kind));
}

inline absl::StatusOr<double> NumberMember(const Json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_number()) return WrongMember(name, "a number");
  return it->get<double>();
}

inline absl::StatusOr<int64_t> CountMember(const Json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_number_unsigned() ||
      it->get<uint64_t>() > uint64_t{INT64_MAX}) {
    return WrongMember(name, "a whole number, 0 or more");
  }
  return it->get<int64_t>();
}

// It lives as long as the object.
inline absl::StatusOr<const Json*> ArrayMember(const Json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end() || !it->is_array()) return WrongMember(name, "an array");
  return &*it;
}

}  // namespace pagoda::replay
