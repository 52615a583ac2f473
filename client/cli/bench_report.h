// What `pagoda bench` measured, as text and JSON.
//
// Units    seconds; bytes per second of payload, headers and padding not counted
// Threads  pure functions
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "client/cli/json_output.h"
#include "client/cli/percentile.h"
#include "kernels/page_layout.h"

namespace pagoda::cli {

// One direction. Rounds alternate between the daemon and the bare stream.
struct TransferRounds {
  std::vector<double> rates;              // through the daemon, one per round
  std::vector<double> bare_rates;         // bare stream, the receiver copies
  std::vector<double> bare_nocopy_rates;  // bare stream, the receiver only counts
  std::vector<double> page_seconds;       // pages one at a time

  // Median over the rounds of rate / bare rate of the same round.
  double ratio() const;
  double nocopy_ratio() const;
};

struct LookupRounds {
  int64_t key_count = 0;
  int64_t found_count = 0;
  std::vector<double> seconds;        // of one lookup of all keys
  std::vector<double> empty_seconds;  // of one RPC that carries and does nothing
  double ratio() const;               // of the medians
};

struct BenchReport {
  std::string daemon;  // address, "in-process" for one's own
  std::string socket;  // tcp, unix
  kernels::PageShape shape;
  int64_t page_count = 0;
  int64_t page_bytes = 0;  // payload
  int64_t message_bytes = 0;
  int thread_count = 0;
  TransferRounds fetch;
  TransferRounds push;
  LookupRounds lookup;
};

std::string BenchText(const BenchReport& report);
Json BenchJson(const BenchReport& report);

}  // namespace pagoda::cli
