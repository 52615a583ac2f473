// pagoda policy: what decides which pages go, seen and changed on a running daemon.
#include <memory>
#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/commands.h"
#include "client/cli/connection.h"
#include "client/cli/units.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

struct PolicyOptions {
  ConnectionOptions connection;
  JsonOptions json;
  std::string host;
  std::string ssd;
  std::string admission;
  std::vector<double> host_marks;
  std::vector<double> ssd_marks;
  int hot_uses = -1;
  double hot_share = -1;
};

std::string CheckPolicy(const PolicyOptions& options) {
  if ((options.hot_uses < 0) == (options.hot_share < 0)) return "";
  return "--hot-uses and --hot-share go together";
}

void SetMarks(const std::vector<double>& marks, v1::TierPolicy& tier) {
  if (marks.empty()) return;
  tier.mutable_watermarks()->set_start(marks[0]);
  tier.mutable_watermarks()->set_stop(marks[1]);
  tier.mutable_watermarks()->set_hard(marks[2]);
}

v1::SetPolicyRequest RequestOf(const PolicyOptions& options) {
  v1::PolicySet set;
  if (!options.host.empty()) set.mutable_host()->set_eviction(options.host);
  if (!options.ssd.empty()) set.mutable_ssd()->set_eviction(options.ssd);
  if (!options.host_marks.empty()) SetMarks(options.host_marks, *set.mutable_host());
  if (!options.ssd_marks.empty()) SetMarks(options.ssd_marks, *set.mutable_ssd());
  set.set_ssd_admission(options.admission);
  if (options.hot_uses >= 0) {
    set.mutable_hot_pin()->set_uses(static_cast<uint32_t>(options.hot_uses));
    set.mutable_hot_pin()->set_share(options.hot_share);
  }
  v1::SetPolicyRequest request;
  if (set.ByteSizeLong() > 0) *request.mutable_policy() = set;  // else it only asks
  return request;
}

std::string TierText(absl::string_view name, const v1::TierPolicy& tier) {
  return absl::StrFormat("%-4s  eviction %s, from %g of the capacity down to %g, hard stop %g\n",
                         name, tier.eviction(), tier.watermarks().start(), tier.watermarks().stop(),
                         tier.watermarks().hard());
}

Json TierJson(const v1::TierPolicy& tier) {
  return {{"eviction", tier.eviction()},
          {"start", tier.watermarks().start()},
          {"stop", tier.watermarks().stop()},
          {"hard", tier.watermarks().hard()}};
}

absl::Status RunPolicy(const PolicyOptions& options) {
  PAGODA_RETURN_IF_ERROR(CheckJsonPath(options.json));
  AdminConnection admin(options.connection);
  PAGODA_ASSIGN_OR_RETURN(const v1::SetPolicyResponse response,
                          admin.Call(&v1::Admin::Stub::SetPolicy, RequestOf(options)));
  const v1::PolicySet& set = response.policy();
  std::string text = TierText("host", set.host()) + TierText("ssd", set.ssd());
  absl::StrAppend(&text, "ssd   admission ", set.ssd_admission(), "\n");
  absl::StrAppend(
      &text, set.hot_pin().uses() == 0
                 ? std::string("hot   no page counts as pinned by its use\n")
                 : absl::StrFormat("hot   pages of %d uses stay, up to %s of a tier\n",
                                   set.hot_pin().uses(), FormatPercent(set.hot_pin().share())));
  Json floors = Json::array();
  for (const v1::ScopeFloor& floor : set.floors()) {
    const std::string scope = absl::BytesToHexString(floor.scope_id());
    absl::StrAppend(&text, "floor of scope ", scope, ": host ",
                    FormatBytes(static_cast<double>(floor.host_bytes())), ", ssd ",
                    FormatBytes(static_cast<double>(floor.ssd_bytes())), "\n");
    floors.push_back({{"scope_id", scope},
                      {"host_bytes", floor.host_bytes()},
                      {"ssd_bytes", floor.ssd_bytes()}});
  }
  absl::StrAppend(&text, "eviction policies: ", absl::StrJoin(response.evictions(), ", "), "\n");
  PrintText(options.json, text);
  return WriteJson(options.json,
                   {{"host", TierJson(set.host())},
                    {"ssd", TierJson(set.ssd())},
                    {"ssd_admission", set.ssd_admission()},
                    {"hot_pin", {{"uses", set.hot_pin().uses()}, {"share", set.hot_pin().share()}}},
                    {"floors", floors},
                    {"evictions", std::vector<std::string>(response.evictions().begin(),
                                                           response.evictions().end())}});
}

}  // namespace

void AddPolicyCommand(CommandLine& commands) {
  auto options = std::make_shared<PolicyOptions>();
  CLI::App* const app = commands.AddApp(
      "policy", "Show or change what decides which pages go",
      "Without flags it only shows. What is not named stays as it is; a change takes effect at\n"
      "once and lasts until the restart, which reads the configuration again.\n\n"
      "Example: pagoda policy\n"
      "         pagoda policy --host lru --admission second_touch\n"
      "         pagoda policy --host-marks 0.9 0.8 0.97 --hot-uses 8 --hot-share 0.2\n\n"
      "JSON keys: host and ssd {eviction, start, stop, hard}, ssd_admission, hot_pin {uses, "
      "share},\n"
      "           floors[] {scope_id, host_bytes, ssd_bytes}, evictions[]\n");
  app->add_option("--host", options->host, "eviction policy of host memory")->type_name("NAME");
  app->add_option("--ssd", options->ssd, "eviction policy of the SSD tier")->type_name("NAME");
  app->add_option("--admission", options->admission, "which pages are written to SSD")
      ->check(CLI::IsMember({"always", "second_touch", "s3fifo_ghost"}));
  app->add_option("--host-marks", options->host_marks, "start, stop and hard mark, as shares")
      ->expected(3);
  app->add_option("--ssd-marks", options->ssd_marks, "the same of the SSD tier")->expected(3);
  app->add_option("--hot-uses", options->hot_uses, "uses that make a page hot; 0: none is")
      ->check(CLI::Range(0, 255));
  app->add_option("--hot-share", options->hot_share, "share of a tier that hot pages may hold")
      ->check(CLI::Range(0.0, 0.5));
  AddConnectionFlags(*app, options->connection);
  AddJsonFlag(*app, options->json);
  commands.Add({app, [options] { return CheckPolicy(*options); },
                [options] { return RunPolicy(*options); }});
}

}  // namespace pagoda::cli
