// Strict reading of YAML settings: every key must be known, of the right type and in range. The
// first mistake wins and is one line: file, key path, value, what is accepted, remedy.
//
//   YamlSection root(file, node, "", error);
//   root.String("listen", options.listen);
//   YamlSection host = root.Section("host"); host.Size("capacity", ..., min, max); host.Finish();
//   root.Finish();                            // complains about keys that nobody asked for
//
// Threads  one.   Errors  INVALID_ARGUMENT in `error`; targets keep their value when a key is
// absent
#pragma once

#include <yaml-cpp/yaml.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "storage/base/precision.h"

namespace pagoda {

// Parses the file. NOT_FOUND, or INVALID_ARGUMENT with line and column. yaml-cpp's exceptions end
// here. An empty file is an empty map.
absl::StatusOr<YAML::Node> LoadYamlFile(const std::string& path);

class YamlSection {
 public:
  // `error` must outlive this.
  YamlSection(std::string file, const YAML::Node& node, std::string path, absl::Status& error);

  void String(absl::string_view key, std::string& target);
  void Strings(absl::string_view key, std::vector<std::string>& target);
  // A list of whole numbers.
  void Integers(absl::string_view key, std::vector<int32_t>& target, int32_t min, int32_t max);
  void Bool(absl::string_view key, bool& target);
  void Size(absl::string_view key, int64_t& target, int64_t min, int64_t max);
  void Integer(absl::string_view key, int64_t& target, int64_t min, int64_t max);
  void Integer(absl::string_view key, int32_t& target, int32_t min, int32_t max);
  void Integer(absl::string_view key, uint32_t& target, uint32_t min, uint32_t max);
  void Fraction(absl::string_view key, double& target);
  void Number(absl::string_view key, double& target, double min, double max);
  void Seconds(absl::string_view key, absl::Duration& target, double min, double max);
  // With a unit, as in 90s, 10m or 12h.
  void Time(absl::string_view key, absl::Duration& target, absl::Duration min, absl::Duration max);
  void Ladder(absl::string_view key, Precision& target);  // raw16, q8, q4, q3 or q2

  // An absent key gives an empty section.
  YamlSection Section(absl::string_view key);
  // Elements of a list of maps, each to be finished by the caller.
  std::vector<YamlSection> Sections(absl::string_view key);
  // Keys as written, for maps whose keys are names.
  std::vector<std::string> Names() const;
  bool Has(absl::string_view key) const;
  bool HasMap(absl::string_view key) const;

  // Refuses keys that were never asked for and names the nearest one that was.
  void Finish();
  // Refuses one value with a text of the caller.
  void Refuse(absl::string_view key, absl::string_view accepted);
  // The same for a value that stands for something else, a file for one: what is wrong there.
  void Report(absl::string_view key, absl::string_view problem);

 private:
  // The value of a scalar key; false when absent or when an error stands.
  bool Scalar(absl::string_view key, absl::string_view accepted, std::string& value);
  YAML::Node Take(absl::string_view key);
  std::string PathOf(absl::string_view key) const;
  void Fail(absl::string_view key, absl::string_view value, absl::string_view accepted);

  const std::string file_;
  const YAML::Node node_;
  const std::string path_;
  absl::Status* error_;
  std::vector<std::string> asked_;
};

}  // namespace pagoda
