#include "storage/base/yaml_section.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <numeric>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/byte_size.h"

namespace pagoda {
namespace {

// Levenshtein's distance: how far a mistyped key is from a known one.
size_t EditDistance(absl::string_view a, absl::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), size_t{0});
  for (size_t i = 0; i < a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
    }
  }
  return row.back();
}

// An error is one line, whatever the file holds.
std::string Quoted(absl::string_view value) {
  return absl::StrCat("'", absl::Utf8SafeCEscape(value), "'");
}

std::string TypeName(const YAML::Node& node) {
  if (node.IsMap()) return "a map";
  if (node.IsSequence()) return "a list";
  if (node.IsScalar()) return Quoted(node.Scalar());
  return "nothing";
}

}  // namespace

absl::StatusOr<YAML::Node> LoadYamlFile(const std::string& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file; check the path"));
  }
  try {
    YAML::Node node = YAML::LoadFile(path);
    if (node.IsNull()) return YAML::Node(YAML::NodeType::Map);
    if (!node.IsMap()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": holds ", TypeName(node), ", expected a map of settings"));
    }
    return node;
  } catch (const YAML::ParserException& error) {
    return absl::InvalidArgumentError(absl::StrFormat("%s:%d:%d: not YAML: %s", path,
                                                      error.mark.line + 1, error.mark.column + 1,
                                                      absl::Utf8SafeCEscape(error.msg)));
  } catch (const YAML::Exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": cannot be read: ", error.what(), "; check owner and mode"));
  }
}

YamlSection::YamlSection(std::string file, const YAML::Node& node, std::string path,
                         absl::Status& error)
    : file_(std::move(file)), node_(node), path_(std::move(path)), error_(&error) {
  if (error_->ok() && node_.IsDefined() && !node_.IsNull() && !node_.IsMap()) {
    *error_ = absl::InvalidArgumentError(
        absl::StrCat(file_, ": ", path_, ": is ", TypeName(node_), ", expected a map of settings"));
  }
}

std::string YamlSection::PathOf(absl::string_view key) const {
  const std::string name = absl::Utf8SafeCEscape(key);
  return path_.empty() ? name : absl::StrCat(path_, ".", name);
}

void YamlSection::Fail(absl::string_view key, absl::string_view value, absl::string_view accepted) {
  if (!error_->ok()) return;
  *error_ = absl::InvalidArgumentError(
      absl::StrCat(file_, ": ", PathOf(key), ": is ", value, ", expected ", accepted));
}

void YamlSection::Refuse(absl::string_view key, absl::string_view accepted) {
  const YAML::Node node = node_.IsMap() ? node_[std::string(key)] : YAML::Node();
  Fail(key, node.IsDefined() ? TypeName(node) : "absent", accepted);
}

void YamlSection::Report(absl::string_view key, absl::string_view problem) {
  if (!error_->ok()) return;
  *error_ = absl::InvalidArgumentError(absl::StrCat(file_, ": ", PathOf(key), ": ", problem));
}

YAML::Node YamlSection::Take(absl::string_view key) {
  asked_.emplace_back(key);
  if (!error_->ok() || !node_.IsDefined() || !node_.IsMap()) {
    return YAML::Node(YAML::NodeType::Undefined);
  }
  const YAML::Node& map = node_;  // The const operator[] does not insert.
  return map[std::string(key)];
}

bool YamlSection::Scalar(absl::string_view key, absl::string_view accepted, std::string& value) {
  const YAML::Node node = Take(key);
  if (!node.IsDefined()) return false;
  if (!node.IsScalar()) {
    Fail(key, TypeName(node), accepted);
    return false;
  }
  value = node.Scalar();
  return true;
}

void YamlSection::String(absl::string_view key, std::string& target) {
  std::string value;
  if (Scalar(key, "a text", value)) target = value;
}

void YamlSection::Strings(absl::string_view key, std::vector<std::string>& target) {
  const YAML::Node node = Take(key);
  if (!node.IsDefined()) return;
  constexpr char kAccepted[] = "a list of texts, as in [one, two]";
  if (!node.IsSequence()) return Fail(key, TypeName(node), kAccepted);
  target.clear();
  for (const YAML::Node& item : node) {
    if (!item.IsScalar()) return Fail(key, TypeName(item), kAccepted);
    target.push_back(item.Scalar());
  }
}

void YamlSection::Integers(absl::string_view key, std::vector<int32_t>& target, int32_t min,
                           int32_t max) {
  const YAML::Node node = Take(key);
  if (!node.IsDefined()) return;
  const std::string accepted =
      absl::StrFormat("a list of whole numbers from %d to %d, as in [3, 8]", min, max);
  if (!node.IsSequence()) return Fail(key, TypeName(node), accepted);
  target.clear();
  for (const YAML::Node& item : node) {
    int32_t value = 0;
    if (!item.IsScalar() || !absl::SimpleAtoi(item.Scalar(), &value) || value < min ||
        value > max) {
      return Fail(key, TypeName(item), accepted);
    }
    target.push_back(value);
  }
}

void YamlSection::Bool(absl::string_view key, bool& target) {
  std::string value;
  if (!Scalar(key, "true or false", value)) return;
  if (value != "true" && value != "false") {
    return Fail(key, Quoted(value), "true or false");
  }
  target = value == "true";
}

void YamlSection::Size(absl::string_view key, int64_t& target, int64_t min, int64_t max) {
  const std::string accepted = absl::StrCat("a size from ", FormatByteSize(min), " to ",
                                            FormatByteSize(max), ", as in 512MiB or 4GiB");
  std::string value;
  if (!Scalar(key, accepted, value)) return;
  const absl::StatusOr<int64_t> parsed = ParseByteSize(value);
  if (!parsed.ok() || *parsed < min || *parsed > max) {
    return Fail(key, Quoted(value), accepted);
  }
  target = *parsed;
}

void YamlSection::Integer(absl::string_view key, int64_t& target, int64_t min, int64_t max) {
  const std::string accepted = absl::StrFormat("a whole number from %d to %d", min, max);
  std::string value;
  if (!Scalar(key, accepted, value)) return;
  int64_t parsed = 0;
  if (!absl::SimpleAtoi(value, &parsed) || parsed < min || parsed > max) {
    return Fail(key, Quoted(value), accepted);
  }
  target = parsed;
}

void YamlSection::Integer(absl::string_view key, int32_t& target, int32_t min, int32_t max) {
  int64_t wide = target;
  Integer(key, wide, int64_t{min}, int64_t{max});
  target = static_cast<int32_t>(wide);
}

void YamlSection::Integer(absl::string_view key, uint32_t& target, uint32_t min, uint32_t max) {
  int64_t wide = target;
  Integer(key, wide, int64_t{min}, int64_t{max});
  target = static_cast<uint32_t>(wide);
}

void YamlSection::Fraction(absl::string_view key, double& target) {
  constexpr char kAccepted[] = "a fraction above 0 and at most 1, as in 0.85";
  std::string value;
  if (!Scalar(key, kAccepted, value)) return;
  double parsed = 0;
  if (!absl::SimpleAtod(value, &parsed) || !(parsed > 0) || parsed > 1) {
    return Fail(key, Quoted(value), kAccepted);
  }
  target = parsed;
}

void YamlSection::Number(absl::string_view key, double& target, double min, double max) {
  const std::string accepted = absl::StrFormat("a number from %g to %g", min, max);
  std::string value;
  if (!Scalar(key, accepted, value)) return;
  double parsed = 0;
  if (!absl::SimpleAtod(value, &parsed) || !(parsed >= min) || parsed > max) {
    return Fail(key, Quoted(value), accepted);
  }
  target = parsed;
}

void YamlSection::Seconds(absl::string_view key, absl::Duration& target, double min, double max) {
  const std::string accepted = absl::StrFormat("seconds from %g to %g", min, max);
  std::string value;
  if (!Scalar(key, accepted, value)) return;
  double parsed = 0;
  if (!absl::SimpleAtod(value, &parsed) || !(parsed >= min) || parsed > max) {
    return Fail(key, Quoted(value), accepted);
  }
  target = absl::Seconds(parsed);
}

void YamlSection::Time(absl::string_view key, absl::Duration& target, absl::Duration min,
                       absl::Duration max) {
  const std::string accepted = absl::StrCat("a time from ", absl::FormatDuration(min), " to ",
                                            absl::FormatDuration(max), ", as in 90s, 10m or 12h");
  std::string value;
  if (!Scalar(key, accepted, value)) return;
  absl::Duration parsed;
  if (!absl::ParseDuration(value, &parsed) || parsed < min || parsed > max) {
    return Fail(key, Quoted(value), accepted);
  }
  target = parsed;
}

void YamlSection::Ladder(absl::string_view key, Precision& target) {
  constexpr char kAccepted[] = "raw16, q8, q4, q3 or q2";
  std::string value;
  if (!Scalar(key, kAccepted, value)) return;
  const absl::StatusOr<Precision> parsed = ParsePrecision(value);
  if (!parsed.ok()) return Fail(key, Quoted(value), kAccepted);
  target = *parsed;
}

YamlSection YamlSection::Section(absl::string_view key) {
  return YamlSection(file_, Take(key), PathOf(key), *error_);
}

std::vector<YamlSection> YamlSection::Sections(absl::string_view key) {
  std::vector<YamlSection> sections;
  const YAML::Node node = Take(key);
  if (!node.IsDefined() || node.IsNull()) return sections;
  if (!node.IsSequence()) {
    Fail(key, TypeName(node), "a list of maps");
    return sections;
  }
  for (size_t i = 0; i < node.size(); ++i) {
    sections.emplace_back(file_, node[i], absl::StrFormat("%s[%d]", PathOf(key), i), *error_);
  }
  return sections;
}

std::vector<std::string> YamlSection::Names() const {
  std::vector<std::string> names;
  if (!error_->ok() || !node_.IsDefined() || !node_.IsMap()) return names;
  for (const auto& item : node_) {
    if (item.first.IsScalar()) names.push_back(item.first.Scalar());
  }
  return names;
}

bool YamlSection::Has(absl::string_view key) const {
  return node_.IsDefined() && node_.IsMap() && node_[std::string(key)].IsDefined();
}

bool YamlSection::HasMap(absl::string_view key) const {
  return Has(key) && node_[std::string(key)].IsMap();
}

void YamlSection::Finish() {
  if (error_->ok() && node_.IsDefined() && node_.IsMap()) {
    for (const auto& entry : node_) {
      if (entry.first.IsScalar()) continue;
      const std::string place = path_.empty() ? "" : absl::StrCat(path_, ": ");
      *error_ = absl::InvalidArgumentError(absl::StrCat(file_, ": ", place, "a key is ",
                                                        TypeName(entry.first),
                                                        ", expected the name of a setting"));
      return;
    }
  }
  for (const std::string& name : Names()) {
    if (std::find(asked_.begin(), asked_.end(), name) != asked_.end()) continue;
    const auto nearest =
        std::min_element(asked_.begin(), asked_.end(), [&](const auto& a, const auto& b) {
          return EditDistance(name, a) < EditDistance(name, b);
        });
    const bool close = nearest != asked_.end() && EditDistance(name, *nearest) <= 3;
    *error_ = absl::InvalidArgumentError(absl::StrCat(
        file_, ": ", PathOf(name), ": unknown key; ",
        close ? absl::StrCat("did you mean ", *nearest, "?") : "remove it or check its place"));
    return;
  }
}

}  // namespace pagoda
