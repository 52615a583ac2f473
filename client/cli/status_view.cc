#include "client/cli/status_view.h"

#include <map>
#include <nlohmann/json.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/cli/text_table.h"
#include "client/cli/units.h"
#include "proto/wire.h"

namespace pagoda::cli {
namespace {

constexpr int kBarWidth = 20;

double Share(uint64_t part, uint64_t whole) {
  return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
}

// "raw16 12, q8 340": the most exact first.
std::string ByPrecision(const v1::TierStatus& tier) {
  std::vector<std::string> parts;
  for (const char* name : {"opaque", "raw16", "q8", "q4", "q3", "q2"}) {
    const auto found = tier.pages_by_precision().find(name);
    if (found == tier.pages_by_precision().end() || found->second == 0) continue;
    parts.push_back(absl::StrCat(name, " ", FormatCount(static_cast<int64_t>(found->second))));
  }
  return parts.empty() ? "-" : absl::StrJoin(parts, ", ");
}

std::string CounterValue(const std::string& name, uint64_t value) {
  if (absl::StrContains(name, "_bytes")) return FormatBytes(static_cast<double>(value));
  return FormatCount(static_cast<int64_t>(value));
}

// protobuf maps have no order.
std::map<std::string, uint64_t> Ordered(const google::protobuf::Map<std::string, uint64_t>& map) {
  return std::map<std::string, uint64_t>(map.begin(), map.end());
}

}  // namespace

Json StatusJson(const v1::StatusResponse& status) {
  Json tiers = Json::array();
  for (const v1::TierStatus& tier : status.tiers()) {
    Json by_precision = Json::object();
    for (const auto& [name, pages] : Ordered(tier.pages_by_precision())) by_precision[name] = pages;
    tiers.push_back({{"tier", std::string(TierName(tier.tier()))},
                     {"present", tier.present()},
                     {"capacity_bytes", tier.capacity_bytes()},
                     {"used_bytes", tier.used_bytes()},
                     {"reserved_bytes", tier.reserved_bytes()},
                     {"pages", tier.pages()},
                     {"pages_by_precision", std::move(by_precision)}});
  }
  Json paths = Json::array();
  for (const v1::PathStatus& path : status.paths()) {
    paths.push_back({{"path", path.path()},
                     {"bytes_out", path.bytes_out()},
                     {"bytes_in", path.bytes_in()},
                     {"fetches", path.fetches()},
                     {"pushed_pages", path.pushed_pages()},
                     {"failures", path.failures()},
                     {"fetch_p50_seconds", path.fetch_p50_seconds()},
                     {"fetch_p99_seconds", path.fetch_p99_seconds()},
                     {"push_p50_seconds", path.push_p50_seconds()},
                     {"push_p99_seconds", path.push_p99_seconds()}});
  }
  Json counters = Json::object();
  for (const auto& [name, total] : Ordered(status.counters())) counters[name] = total;
  return {{"version", status.version()},
          {"instance_id", status.instance_id()},
          {"uptime_seconds", status.uptime_seconds()},
          {"state", status.state()},
          {"listen", status.listen()},
          {"data_dir", status.data_dir()},
          {"tiers", std::move(tiers)},
          {"paths", std::move(paths)},
          {"pages", status.pages()},
          {"sessions", status.sessions()},
          {"sequences", status.sequences()},
          {"leases", status.leases()},
          {"leased_pages", status.leased_pages()},
          {"staged_pages", status.staged_pages()},
          {"staged_bytes", status.staged_bytes()},
          {"pinned_pages", status.pinned_pages()},
          {"persist_queue_pages", status.persist_queue_pages()},
          {"unflushed_pages", status.unflushed_pages()},
          {"encode_queue_pages", status.encode_queue_pages()},
          {"counters", std::move(counters)}};
}

std::string StatusHeadline(const v1::StatusResponse& status) {
  return absl::StrFormat("pagodad %s  %s  %s  up %s  data %s\n", status.version(), status.state(),
                         status.listen(), FormatAge(status.uptime_seconds()), status.data_dir());
}

std::string TierTable(const v1::StatusResponse& status) {
  TextTable table({{"tier"},
                   {"used", Align::kRight},
                   {"capacity", Align::kRight},
                   {absl::StrFormat("%-*s", kBarWidth + 2, "fill")},
                   {"", Align::kRight},
                   {"reserved", Align::kRight},
                   {"pages", Align::kRight},
                   {"by precision"}});
  std::string absent;
  for (const v1::TierStatus& tier : status.tiers()) {
    const std::string name(TierName(tier.tier()));
    if (!tier.present()) {
      absl::StrAppend(&absent, absent.empty() ? "absent: " : ", ", name);
      continue;
    }
    const double share = Share(tier.used_bytes(), tier.capacity_bytes());
    table.AddRow({name, FormatBytes(static_cast<double>(tier.used_bytes())),
                  FormatBytes(static_cast<double>(tier.capacity_bytes())), Bar(share, kBarWidth),
                  FormatPercent(share), FormatBytes(static_cast<double>(tier.reserved_bytes())),
                  FormatCount(static_cast<int64_t>(tier.pages())), ByPrecision(tier)});
  }
  return absl::StrCat(table.Render(), absent, absent.empty() ? "" : "\n");
}

std::string ActivityLines(const v1::StatusResponse& status) {
  const auto count = [](uint64_t value) { return FormatCount(static_cast<int64_t>(value)); };
  return absl::StrCat("pages     ", count(status.pages()), " distinct, ",
                      count(status.pinned_pages()), " pinned, ", count(status.staged_pages()),
                      " staged (", FormatBytes(static_cast<double>(status.staged_bytes())), ")\n",
                      "clients   ", count(status.sessions()), " sessions, ",
                      count(status.sequences()), " sequences, ", count(status.leases()),
                      " leases over ", count(status.leased_pages()), " pages\n", "queues    ",
                      count(status.encode_queue_pages()), " to encode, ",
                      count(status.persist_queue_pages()), " to persist, ",
                      count(status.unflushed_pages()), " not on SSD yet\n");
}

std::string PathLines(const v1::StatusResponse& status) {
  const auto times = [](double p50, double p99) {
    return absl::StrFormat(" (p50 %.3g ms, p99 %.3g ms)", p50 * 1e3, p99 * 1e3);
  };
  std::string lines;
  for (const v1::PathStatus& path : status.paths()) {
    if (path.fetches() + path.pushed_pages() + path.bytes_out() + path.bytes_in() == 0) continue;
    absl::StrAppend(&lines, absl::StrFormat("%-10s", path.path()), "out ",
                    FormatBytes(static_cast<double>(path.bytes_out())), " in ",
                    FormatCount(static_cast<int64_t>(path.fetches())), " answers");
    if (path.fetches() > 0) {
      absl::StrAppend(&lines, times(path.fetch_p50_seconds(), path.fetch_p99_seconds()));
    }
    absl::StrAppend(&lines, ", in ", FormatBytes(static_cast<double>(path.bytes_in())), " in ",
                    FormatCount(static_cast<int64_t>(path.pushed_pages())), " pages");
    if (path.pushed_pages() > 0) {
      absl::StrAppend(&lines, times(path.push_p50_seconds(), path.push_p99_seconds()));
    }
    absl::StrAppend(&lines, ", ", FormatCount(static_cast<int64_t>(path.failures())),
                    " failures\n");
  }
  return lines;
}

std::string CounterTable(const v1::StatusResponse& status) {
  if (status.counters().empty()) return "";
  TextTable table({{"counter since the start"}, {"total", Align::kRight}});
  for (const auto& [name, total] : Ordered(status.counters())) {
    table.AddRow({name, CounterValue(name, total)});
  }
  return table.Render();
}

}  // namespace pagoda::cli
