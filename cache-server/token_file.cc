#include "cache-server/token_file.h"

#include <sys/stat.h>

#include <algorithm>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"
#include "storage/base/yaml_section.h"

namespace pagoda {
namespace {

constexpr size_t kEntriesMax = 10000;

bool IsName(absl::string_view text) {
  if (text.empty() || text.size() > 64) return false;
  return std::all_of(text.begin(), text.end(), [](char c) {
    return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '.' || c == '_' || c == '-';
  });
}

bool IsToken(absl::string_view text) {
  if (text.size() < 16 || text.size() > 512) return false;
  return std::all_of(text.begin(), text.end(),
                     [](char c) { return absl::ascii_isgraph(static_cast<unsigned char>(c)); });
}

void ReadEntry(const std::string& file, YamlSection& section, size_t index, TokenEntry& entry,
               absl::Status& error) {
  section.String("token", entry.token);
  section.String("tenant", entry.tenant);
  section.Strings("groups", entry.groups);
  section.Bool("publish", entry.publish);
  section.Bool("admin", entry.admin);
  section.Bool("push", entry.push);
  section.Finish();
  if (!error.ok()) return;
  if (!IsToken(entry.token)) {
    error = absl::InvalidArgumentError(absl::StrFormat(
        "%s: tokens[%d].token: has %d characters, expected 16 to 512 visible ones; make one: "
        "openssl rand -hex 24",
        file, index, entry.token.size()));
    return;
  }
  constexpr char kName[] = "1 to 64 letters, digits, dots, underscores or hyphens";
  if (!IsName(entry.tenant)) section.Refuse("tenant", kName);
  for (const std::string& group : entry.groups) {
    if (!IsName(group)) section.Refuse("groups", absl::StrFormat("names of %s", kName));
  }
}

}  // namespace

absl::StatusOr<std::vector<TokenEntry>> ReadTokenFile(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) == 0 && (info.st_mode & 077) != 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("token file %s has mode %04o, others may read it; run: chmod 600 %s", path,
                        info.st_mode & 07777, path));
  }
  PAGODA_ASSIGN_OR_RETURN(const YAML::Node node, LoadYamlFile(path));
  absl::Status error;
  YamlSection root(path, node, "", error);
  std::vector<YamlSection> sections = root.Sections("tokens");
  root.Finish();
  PAGODA_RETURN_IF_ERROR(error);
  if (sections.empty() || sections.size() > kEntriesMax) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: tokens: has %d entries, expected 1 to %d; to run without tokens leave token_file out",
        path, sections.size(), kEntriesMax));
  }
  std::vector<TokenEntry> entries(sections.size());
  absl::flat_hash_set<std::string> seen;
  for (size_t i = 0; i < sections.size(); ++i) {
    ReadEntry(path, sections[i], i, entries[i], error);
    PAGODA_RETURN_IF_ERROR(error);
    if (!seen.insert(entries[i].token).second) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s: tokens[%d].token: is given twice; every entry needs its own", path, i));
    }
  }
  return entries;
}

}  // namespace pagoda
