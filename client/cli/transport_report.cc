#include "client/cli/transport_report.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/percentile.h"
#include "client/cli/text_table.h"
#include "client/cli/units.h"

namespace pagoda::cli {
namespace {

double Gbps(const std::vector<double>& rates) { return rates.empty() ? 0 : Median(rates) / 1e9; }

// Of the pairs: what was measured in the same round.
double Ratio(const TransportRow& row) {
  std::vector<double> ratios;
  for (size_t i = 0; i < row.rates.size() && i < row.bound_rates.size(); ++i) {
    ratios.push_back(row.rates[i] / row.bound_rates[i]);
  }
  return ratios.empty() ? 0 : Median(ratios);
}

double Microseconds(const TransportRow& row, double percent) {
  return row.seconds.empty() ? 0 : Percentile(row.seconds, percent) * 1e6;
}

}  // namespace

std::string TransportText(const TransportReport& report) {
  TextTable table({{"path"},
                   {"op"},
                   {"object", Align::kRight},
                   {"clients", Align::kRight},
                   {"p50 us", Align::kRight},
                   {"p99 us", Align::kRight},
                   {"p99.9 us", Align::kRight},
                   {"GB/s", Align::kRight},
                   {"bound"},
                   {"GB/s", Align::kRight},
                   {"ratio", Align::kRight}});
  for (const TransportRow& row : report.rows) {
    const bool bounded = !row.bound.empty();
    table.AddRow({row.path, row.op, FormatBytes(row.bytes), absl::StrCat(row.clients),
                  absl::StrFormat("%.0f", Microseconds(row, 50)),
                  absl::StrFormat("%.0f", Microseconds(row, 99)),
                  absl::StrFormat("%.0f", Microseconds(row, 99.9)),
                  absl::StrFormat("%.2f", Gbps(row.rates)), row.bound,
                  bounded ? absl::StrFormat("%.2f", Gbps(row.bound_rates)) : "",
                  bounded ? absl::StrFormat("%.2f", Ratio(row)) : ""});
  }
  std::string text = table.Render();
  if (report.staging_fallbacks > 0) {
    absl::StrAppend(&text, report.staging_fallbacks,
                    " pages left shared memory for gRPC: rows of shm-copy hold them too\n");
  }
  return text;
}

Json TransportJson(const TransportReport& report) {
  Json json;
  json["staging_fallbacks"] = report.staging_fallbacks;
  json["rows"] = Json::array();
  for (const TransportRow& row : report.rows) {
    Json each;
    each["path"] = row.path;
    each["op"] = row.op;
    each["bytes"] = row.bytes;
    each["clients"] = row.clients;
    each["p50_us"] = Microseconds(row, 50);
    each["p99_us"] = Microseconds(row, 99);
    each["p999_us"] = Microseconds(row, 99.9);
    each["gbps"] = Gbps(row.rates);
    each["bound"] = row.bound;
    each["bound_gbps"] = Gbps(row.bound_rates);
    each["ratio"] = Ratio(row);
    json["rows"].push_back(std::move(each));
  }
  return json;
}

}  // namespace pagoda::cli
