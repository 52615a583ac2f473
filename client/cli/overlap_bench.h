// The measurements of `pagoda bench overlap`: time to first token of a prompt whose front is
// cached, loaded whole and then computed, against loaded layer by layer while it is computed.
//
// Pairs of both in turn, each with a tail of its own, so that only the front hits. A line over gRPC
// is as slow as makes fetching take so many times as long as computing.
//
// Threads  the model's; one daemon inside this process
// Errors   whatever fails first, in one line
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/cli/json_output.h"

namespace pagoda::cli {

struct OverlapOptions {
  std::string model;             // GGUF file; empty: the installed one
  int64_t prefix_tokens = 2048;  // cached
  int64_t tail_tokens = 512;     // computed
  int pairs = 7;
  std::vector<double> fetch_shares = {0.5, 1, 2};  // of computing, over gRPC
  bool ssd = true;
  int thread_count = 0;
};

struct OverlapRow {
  std::string path;             // ssd, grpc
  double bytes_per_second = 0;  // of the line; 0: not limited
  int64_t bytes = 0;            // that came
  // One each pair, seconds.
  std::vector<double> fetch;
  std::vector<double> compute;
  std::vector<double> ttft_whole;
  std::vector<double> ttft_by_layer;
  std::vector<double> saved;  // of the smaller of fetch and compute
};

struct OverlapReport {
  std::string model;
  int64_t prefix_tokens = 0;
  int64_t tail_tokens = 0;
  std::vector<OverlapRow> rows;
};

absl::StatusOr<OverlapReport> RunOverlapBench(
    const OverlapOptions& options, const std::function<void(const std::string& step)>& progress);

std::string OverlapText(const OverlapReport& report);
// model, prefix_tokens, tail_tokens, rows[] {path, mb_per_second, bytes, fetch_ms, compute_ms,
// ttft_whole_ms, ttft_by_layer_ms, saved}
Json OverlapJson(const OverlapReport& report);

}  // namespace pagoda::cli
