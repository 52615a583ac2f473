// pagoda pages: the pages a daemon holds.
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "client/cli/page_filter.h"
#include "client/cli/text_table.h"
#include "client/cli/units.h"
#include "storage/base/scope.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct PagesOptions {
  ConnectionOptions connection;
  JsonOptions json;
  PageFilterOptions filter;
  uint32_t limit = 1000;
  bool full = false;
};

std::string KindText(v1::ScopeKind kind) {
  return std::string(ScopeKindName(static_cast<ScopeKind>(kind)));
}

std::vector<std::string> TierNames(const v1::PageRecord& page) {
  std::vector<std::string> names;
  for (const int tier : page.tiers()) {
    names.push_back(std::string(TierName(static_cast<v1::Tier>(tier))));
  }
  return names;
}

Json PageJson(const v1::PageRecord& page) {
  return {{"key", absl::BytesToHexString(page.key())},
          {"parent", absl::BytesToHexString(page.parent())},
          {"identity", absl::BytesToHexString(page.identity())},
          {"scope_kind", KindText(page.scope_kind())},
          {"scope_id", absl::BytesToHexString(page.scope_id())},
          {"group", page.part().group()},
          {"head_begin", page.part().head_begin()},
          {"head_count", page.part().head_count()},
          {"page_tokens", page.page_tokens()},
          {"base_position", page.base_position()},
          {"precision", PrecisionText(page.precision())},
          {"fidelity", PrecisionText(page.fidelity())},
          {"tiers", TierNames(page)},
          {"bytes", page.bytes()},
          {"leases", page.leases()},
          {"pinned", page.pinned()}};
}

std::vector<std::string> PageRow(const v1::PageRecord& page, bool full) {
  const size_t digits = full ? absl::string_view::npos : 12;
  return {absl::BytesToHexString(page.key()).substr(0, digits),
          absl::BytesToHexString(page.identity()).substr(0, digits),
          absl::StrCat(KindText(page.scope_kind()), " ",
                       absl::BytesToHexString(page.scope_id()).substr(0, full ? 32 : 8)),
          FormatCount(static_cast<int64_t>(page.base_position())),
          PrecisionText(page.precision()),
          PrecisionText(page.fidelity()),
          absl::StrJoin(TierNames(page), "+"),
          FormatBytes(static_cast<double>(page.bytes())),
          absl::StrCat(page.leases()),
          page.pinned() ? "yes" : ""};
}

absl::Status RunPages(const PagesOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  AdminConnection admin(options.connection);
  v1::ListPagesRequest request;
  *request.mutable_filter() = ToWire(options.filter);
  request.set_limit(options.limit);
  PAGODA_ASSIGN_OR_RETURN(const std::vector<v1::PageRecord> pages, admin.Pages(request));
  TextTable table({{"key"},
                   {"identity"},
                   {"scope"},
                   {"position", Align::kRight},
                   {"precision"},
                   {"fidelity"},
                   {"tiers"},
                   {"bytes", Align::kRight},
                   {"leases", Align::kRight},
                   {"pinned"}});
  Json json = Json::array();
  double bytes = 0;
  for (const v1::PageRecord& page : pages) {
    table.AddRow(PageRow(page, options.full));
    json.push_back(PageJson(page));
    bytes += static_cast<double>(page.bytes());
  }
  std::string text = table.empty() ? "" : absl::StrCat(table.Render(), "\n");
  absl::StrAppend(
      &text, FormatCount(static_cast<int64_t>(pages.size())), " pages, ", FormatBytes(bytes),
      pages.size() == options.limit ? "; stopped at --limit, there may be more\n" : "\n");
  PrintText(options.json, text);
  return WriteJson(options.json, {{"pages", std::move(json)}});
}

}  // namespace

void AddPagesCommand(CommandLine& commands) {
  auto options = std::make_shared<PagesOptions>();
  CLI::App* const app = commands.AddApp(
      "pages", "List pages: scope, position, precision, tiers, size",
      "Ids are shortened in the table; --full and --json show them whole.\n\n"
      "Example: pagoda pages --precision raw16 --tier host --limit 20\n\n"
      "JSON keys: pages[] {key, parent, identity, scope_kind, scope_id, group, head_begin,\n"
      "  head_count, page_tokens, base_position, precision, fidelity, tiers[], bytes, leases,\n"
      "  pinned}\n");
  AddConnectionFlags(*app, options->connection);
  AddPageFilterFlags(*app, options->filter);
  app->add_option("--limit", options->limit, "pages to list at most")
      ->type_name("N")
      ->check(CLI::Range(1, 100000))
      ->capture_default_str();
  app->add_flag("--full", options->full, "show ids whole");
  AddJsonFlag(*app, options->json);
  commands.Add({app, nullptr, [options] { return RunPages(*options); }});
}

}  // namespace pagoda::cli
