// What `pagoda bench transport` measured, as text and JSON.
//
// Units    microseconds of one object; GB/s (1e9) of payload, all clients together
// Threads  pure functions
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/json_output.h"

namespace pagoda::cli {

struct TransportRow {
  std::string path;
  std::string op;  // fetch, push
  int64_t bytes = 0;
  int clients = 0;
  std::vector<double> seconds;  // of every object of every round
  std::vector<double> rates;    // bytes per second, one a round
  std::string bound;            // the path it is compared with; empty: it is one itself
  std::vector<double> bound_rates;
};

struct TransportReport {
  int64_t staging_fallbacks = 0;  // pages that left shared memory; their rows say less then
  std::vector<TransportRow> rows;
};

std::string TransportText(const TransportReport& report);
// rows[] {path, op, bytes, clients, p50_us, p99_us, p999_us, gbps, bound, bound_gbps, ratio}
Json TransportJson(const TransportReport& report);

}  // namespace pagoda::cli
