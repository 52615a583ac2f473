#include "client/cli/page_filter.h"

#include <algorithm>
#include <cctype>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "proto/wire.h"
#include "storage/base/check.h"
#include "storage/base/precision.h"

namespace pagoda::cli {
namespace {

// CLI11 puts the flag's name in front.
std::function<std::string(const std::string&)> HexOf(size_t byte_count) {
  return [byte_count](const std::string& value) -> std::string {
    const bool hex = std::all_of(value.begin(), value.end(),
                                 [](unsigned char c) { return std::isxdigit(c) != 0; });
    if (hex && value.size() == 2 * byte_count) return "";
    return absl::StrFormat("\"%s\" is not %d hex digits; `pagoda pages --full` shows them", value,
                           2 * byte_count);
  };
}

v1::Tier TierOf(const std::string& name) {
  for (const v1::Tier tier : {v1::TIER_HBM, v1::TIER_HOST, v1::TIER_SSD}) {
    if (TierName(tier) == name) return tier;
  }
  return v1::TIER_UNSPECIFIED;
}

}  // namespace

void AddPageFilterFlags(CLI::App& app, PageFilterOptions& options) {
  app.add_option("--key", options.key, "the page of this key")->type_name("HEX")->check(HexOf(32));
  app.add_option("--identity", options.identity, "pages of this model identity (`pagoda models`)")
      ->type_name("HEX")
      ->check(HexOf(32));
  app.add_option("--scope-id", options.scope_id, "pages of this scope")
      ->type_name("HEX")
      ->check(HexOf(16));
  app.add_option("--tier", options.tier, "pages in this tier: hbm, host or ssd")
      ->type_name("TIER")
      ->check(CLI::IsMember({"hbm", "host", "ssd"}));
  app.add_option("--precision", options.precision, "pages stored at raw16, q8, q4, q3 or q2")
      ->type_name("PRECISION")
      ->check(CLI::IsMember({"raw16", "q8", "q4", "q3", "q2"}));
}

bool MatchesEverything(const PageFilterOptions& options) {
  return options.key.empty() && options.identity.empty() && options.scope_id.empty() &&
         options.tier.empty() && options.precision.empty();
}

v1::PageFilter ToWire(const PageFilterOptions& options) {
  v1::PageFilter filter;
  filter.set_key(absl::HexStringToBytes(options.key));
  filter.set_identity(absl::HexStringToBytes(options.identity));
  filter.set_scope_id(absl::HexStringToBytes(options.scope_id));
  filter.set_tier(TierOf(options.tier));
  if (!options.precision.empty()) {
    const absl::StatusOr<Precision> precision = ParsePrecision(options.precision);
    PAGODA_CHECK(precision.ok());
    filter.set_precision(::pagoda::ToWire(*precision));
  }
  return filter;
}

std::string Describe(const PageFilterOptions& options) {
  std::vector<std::string> parts;
  const auto add = [&parts](const char* name, const std::string& value) {
    if (!value.empty()) parts.push_back(absl::StrCat(name, " ", value));
  };
  add("key", options.key);
  add("identity", options.identity);
  add("scope", options.scope_id);
  add("tier", options.tier);
  add("precision", options.precision);
  return parts.empty() ? "every page" : absl::StrCat("pages with ", absl::StrJoin(parts, ", "));
}

std::string PrecisionText(v1::Precision precision) {
  const auto value = static_cast<int>(precision);
  if (value < 0 || value > 255 || !IsKnownPrecision(static_cast<uint8_t>(value))) {
    return absl::StrCat(value, " bits");
  }
  return std::string(PrecisionName(static_cast<Precision>(value)));
}

}  // namespace pagoda::cli
