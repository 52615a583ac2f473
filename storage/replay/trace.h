// A request trace: when requests came, how long they were, and which blocks of tokens they began
// with. No text anywhere. Block ids are prefix hashes: equal id, equal whole prefix.
//
// Inside a trace ids are small numbers from 1 on, handed out by whoever reads it, so that they can
// index a vector; and a request is runs of consecutive ids, since conversations come back with what
// they had: 85 million references of real agents fit in 2 MB.
//
// Threads    const methods from any thread
// Limits     2^31 blocks in a trace, 2^20 blocks in a request, 2^31 tokens in a request
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace pagoda::replay {

struct BlockRun {
  uint32_t first = 0;
  uint32_t count = 0;
  bool operator==(const BlockRun&) const = default;
};

struct TraceRequest {
  double seconds = 0;  // of its arrival, from the trace's start
  int64_t tokens = 0;  // of its input
  uint32_t block_count = 0;
  uint64_t run_begin = 0;  // in the trace's runs
  uint32_t run_count = 0;
};

class Trace {
 public:
  const std::string& name() const { return name_; }
  void set_name(std::string name) { name_ = std::move(name); }
  int64_t block_tokens() const { return block_tokens_; }
  const std::vector<TraceRequest>& requests() const { return requests_; }
  absl::Span<const BlockRun> runs(const TraceRequest& request) const {
    return absl::MakeConstSpan(runs_).subspan(request.run_begin, request.run_count);
  }

  // ---- Sums -----------------------------------------------------------------------------------
  int64_t unique_count() const { return unique_count_; }  // blocks that are referred to
  int64_t block_count() const { return block_count_; }    // references to blocks
  int64_t input_tokens() const { return input_tokens_; }
  uint32_t id_max() const { return id_max_; }

  // The trace's first requests, at most `request_count`.
  Trace First(int64_t request_count) const;

 private:
  friend class TraceBuilder;
  void Sum();

  std::string name_;
  int64_t block_tokens_ = 0;
  std::vector<TraceRequest> requests_;
  std::vector<BlockRun> runs_;
  int64_t unique_count_ = 0;
  int64_t block_count_ = 0;
  int64_t input_tokens_ = 0;
  uint32_t id_max_ = 0;
};

// Takes requests in the order in which they will be replayed. Errors name the cause alone: who
// reads a file adds where it is.
class TraceBuilder {
 public:
  static constexpr int64_t kIdsMax = (int64_t{1} << 31) - 1;
  static constexpr int64_t kRequestBlocksMax = int64_t{1} << 20;
  static constexpr int64_t kRequestTokensMax = (int64_t{1} << 31) - 1;

  explicit TraceBuilder(int64_t block_tokens);

  // INVALID_ARGUMENT: a number out of range, or a block that follows another one than it did
  // before, so that ids are no prefix hashes. The builder is of no use then.
  absl::Status Add(double seconds, int64_t tokens, absl::Span<const BlockRun> runs);
  // NOT_FOUND without any request.
  absl::StatusOr<Trace> Finish(absl::string_view name) &&;

 private:
  absl::Status SetParents(absl::Span<const BlockRun> runs);

  Trace trace_;
  std::vector<uint32_t> parents_;  // by id; kUnknown: not seen
};

}  // namespace pagoda::replay
