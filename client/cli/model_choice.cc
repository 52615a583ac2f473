#include "client/cli/model_choice.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace pagoda::cli {
namespace {

constexpr size_t kPrefixDigitsMin = 6;
constexpr size_t kNamesMax = 8;  // in a message

std::string ShortId(const v1::ModelStatus& model) {
  return absl::BytesToHexString(model.identity()).substr(0, 12);
}

std::string Names(absl::Span<const v1::ModelStatus> models) {
  std::vector<std::string> names;
  for (const v1::ModelStatus& model : models.subspan(0, std::min(models.size(), kNamesMax))) {
    names.push_back(model.model().empty() ? ShortId(model) : model.model());
  }
  if (models.size() > kNamesMax) names.push_back("...");
  return absl::StrJoin(names, ", ");
}

}  // namespace

absl::StatusOr<std::string> ChooseModel(const std::string& word,
                                        absl::Span<const v1::ModelStatus> models) {
  if (word == "all") return std::string();
  std::vector<v1::ModelStatus> found;
  for (const v1::ModelStatus& model : models) {
    if (!word.empty() && model.model() == word) found.push_back(model);
  }
  if (found.empty() && word.size() >= kPrefixDigitsMin) {
    const std::string digits = absl::AsciiStrToLower(word);
    for (const v1::ModelStatus& model : models) {
      if (absl::StartsWith(absl::BytesToHexString(model.identity()), digits)) {
        found.push_back(model);
      }
    }
  }
  if (found.size() == 1) return found.front().identity();
  if (found.size() > 1) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" names %d models; give the identity of one: %s", word, found.size(),
        absl::StrJoin(found, ", ", [](std::string* out, const v1::ModelStatus& model) {
          out->append(ShortId(model));
        })));
  }
  if (models.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "no model \"%s\": the daemon knows none yet; start a worker first, or say all", word));
  }
  return absl::NotFoundError(absl::StrFormat(
      "no model \"%s\"; the daemon knows %s (`pagoda models` lists them)", word, Names(models)));
}

}  // namespace pagoda::cli
