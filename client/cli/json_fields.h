// Members of a JSON object that came from a file: false when one is missing or of another kind.
//
// Threads    pure functions
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>

#include "client/cli/json_output.h"

namespace pagoda::cli {

inline bool ReadField(const Json& object, const char* key, std::string* value) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string()) return false;
  *value = found->get<std::string>();
  return true;
}
inline bool ReadField(const Json& object, const char* key, double* value) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number()) return false;
  *value = found->get<double>();
  return true;
}
inline bool ReadField(const Json& object, const char* key, int64_t* value) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_number_integer()) return false;
  *value = found->get<int64_t>();
  return true;
}

}  // namespace pagoda::cli
