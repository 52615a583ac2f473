#include "client/cli/bench_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/text_table.h"
#include "client/cli/units.h"
#include "storage/base/check.h"

namespace pagoda::cli {
namespace {

// Rounds are pairs: what disturbs the machine for a while disturbs both.
double MedianRatio(const std::vector<double>& rates, const std::vector<double>& bounds) {
  PAGODA_CHECK(rates.size() == bounds.size());
  std::vector<double> ratios;
  for (size_t i = 0; i < rates.size(); ++i) ratios.push_back(rates[i] / bounds[i]);
  return Median(ratios);
}

std::vector<std::string> TransferRow(const char* name, const TransferRounds& rounds) {
  const Latencies page = LatenciesOf(rounds.page_seconds);
  return {name,
          FormatRate(Median(rounds.rates)),
          FormatRate(Median(rounds.bare_rates)),
          absl::StrFormat("%.2f", rounds.ratio()),
          absl::StrFormat("%.2f", rounds.nocopy_ratio()),
          FormatSeconds(page.p50),
          FormatSeconds(page.p90),
          FormatSeconds(page.p99)};
}

Json TransferJson(const TransferRounds& rounds) {
  const Latencies page = LatenciesOf(rounds.page_seconds);
  return {{"gbps", Median(rounds.rates) / 1e9},
          {"bare_gbps", Median(rounds.bare_rates) / 1e9},
          {"bare_nocopy_gbps", Median(rounds.bare_nocopy_rates) / 1e9},
          {"ratio", rounds.ratio()},
          {"nocopy_ratio", rounds.nocopy_ratio()},
          {"page_p50_ms", page.p50 * 1e3},
          {"page_p90_ms", page.p90 * 1e3},
          {"page_p99_ms", page.p99 * 1e3}};
}

}  // namespace

double TransferRounds::ratio() const { return MedianRatio(rates, bare_rates); }

double TransferRounds::nocopy_ratio() const { return MedianRatio(rates, bare_nocopy_rates); }

double LookupRounds::ratio() const { return Median(seconds) / Median(empty_seconds); }

std::string BenchText(const BenchReport& report) {
  TextTable transfer({{""},
                      {"daemon", Align::kRight},
                      {"bare gRPC", Align::kRight},
                      {"ratio", Align::kRight},
                      {"no-copy ratio", Align::kRight},
                      {"one page p50", Align::kRight},
                      {"p90", Align::kRight},
                      {"p99", Align::kRight}});
  transfer.AddRow(TransferRow("fetch", report.fetch));
  transfer.AddRow(TransferRow("push", report.push));
  const Latencies lookup = LatenciesOf(report.lookup.seconds);
  const Latencies empty = LatenciesOf(report.lookup.empty_seconds);
  TextTable rpc({{""},
                 {"p50", Align::kRight},
                 {"p90", Align::kRight},
                 {"p99", Align::kRight},
                 {"ratio", Align::kRight}});
  rpc.AddRow({absl::StrFormat("lookup of %s keys, %s found", FormatCount(report.lookup.key_count),
                              FormatCount(report.lookup.found_count)),
              FormatSeconds(lookup.p50), FormatSeconds(lookup.p90), FormatSeconds(lookup.p99),
              absl::StrFormat("%.2f", report.lookup.ratio())});
  rpc.AddRow({"empty RPC", FormatSeconds(empty.p50), FormatSeconds(empty.p90),
              FormatSeconds(empty.p99), ""});
  return absl::StrFormat(
      "daemon %s, %s socket; %d pages of %s (%d layers, %d heads of %d, %d tokens), %d threads, "
      "median of %d alternating rounds\n\n%s\n%s\n"
      "bare gRPC: a stream of %s messages and the same channel arguments, whose receiver copies "
      "(no-copy: only counts).\nThe daemon's figures include checksums at both ends.\n",
      report.daemon, report.socket, report.page_count,
      FormatBytes(static_cast<double>(report.page_bytes)), report.shape.layer_count,
      report.shape.head_count, report.shape.head_dim, report.shape.page_tokens, report.thread_count,
      report.fetch.rates.size(), transfer.Render(), rpc.Render(),
      FormatBytes(static_cast<double>(report.message_bytes)));
}

Json BenchJson(const BenchReport& report) {
  const Latencies lookup = LatenciesOf(report.lookup.seconds);
  const Latencies empty = LatenciesOf(report.lookup.empty_seconds);
  return {{"daemon", report.daemon},
          {"socket", report.socket},
          {"layers", report.shape.layer_count},
          {"heads", report.shape.head_count},
          {"dim", report.shape.head_dim},
          {"page_tokens", report.shape.page_tokens},
          {"pages", report.page_count},
          {"page_bytes", report.page_bytes},
          {"message_bytes", report.message_bytes},
          {"threads", report.thread_count},
          {"rounds", report.fetch.rates.size()},
          {"fetch", TransferJson(report.fetch)},
          {"push", TransferJson(report.push)},
          {"lookup",
           {{"keys", report.lookup.key_count},
            {"found", report.lookup.found_count},
            {"p50_us", lookup.p50 * 1e6},
            {"p90_us", lookup.p90 * 1e6},
            {"p99_us", lookup.p99 * 1e6},
            {"empty_p50_us", empty.p50 * 1e6},
            {"empty_p90_us", empty.p90 * 1e6},
            {"empty_p99_us", empty.p99 * 1e6},
            {"ratio", report.lookup.ratio()}}}};
}

}  // namespace pagoda::cli
