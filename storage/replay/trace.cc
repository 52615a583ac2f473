#include "storage/replay/trace.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda::replay {
namespace {

constexpr uint32_t kNoParent = 0;
constexpr uint32_t kUnknown = UINT32_MAX;

}  // namespace

Trace Trace::First(int64_t request_count) const {
  Trace first;
  first.name_ = name_;
  first.block_tokens_ = block_tokens_;
  const auto count = static_cast<size_t>(
      std::clamp<int64_t>(request_count, 0, static_cast<int64_t>(requests_.size())));
  first.requests_.assign(requests_.begin(), requests_.begin() + static_cast<ptrdiff_t>(count));
  const uint64_t run_end =
      count == 0 ? 0 : first.requests_.back().run_begin + first.requests_.back().run_count;
  first.runs_.assign(runs_.begin(), runs_.begin() + static_cast<ptrdiff_t>(run_end));
  first.Sum();
  return first;
}

void Trace::Sum() {
  for (const TraceRequest& request : requests_) {
    block_count_ += request.block_count;
    input_tokens_ += request.tokens;
  }
  for (const BlockRun& run : runs_) id_max_ = std::max(id_max_, run.first + run.count - 1);
  std::vector<bool> seen(size_t{id_max_} + 1);
  for (const BlockRun& run : runs_) {
    for (uint32_t i = 0; i < run.count; ++i) {
      if (!seen[run.first + i]) ++unique_count_;
      seen[run.first + i] = true;
    }
  }
}

TraceBuilder::TraceBuilder(int64_t block_tokens) {
  PAGODA_CHECK(block_tokens > 0);
  trace_.block_tokens_ = block_tokens;
}

absl::Status TraceBuilder::Add(double seconds, int64_t tokens, absl::Span<const BlockRun> runs) {
  if (!std::isfinite(seconds) || seconds < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("time %g s; times are seconds from the start, 0 or more", seconds));
  }
  if (tokens < 0 || tokens > kRequestTokensMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d tokens; at most %d in one request", tokens, kRequestTokensMax));
  }
  int64_t block_count = 0;
  for (const BlockRun& run : runs) block_count += run.count;
  if (block_count > kRequestBlocksMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d blocks; at most %d in one request", block_count, kRequestBlocksMax));
  }
  const int64_t full = tokens / trace_.block_tokens_;
  const int64_t begun = (tokens + trace_.block_tokens_ - 1) / trace_.block_tokens_;
  if (block_count != full && block_count != begun) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%d blocks for %d tokens; blocks of %d tokens make %d, or %d with the "
                        "partial one: mend the "
                        "line, or state the right block size",
                        block_count, tokens, trace_.block_tokens_, full, begun));
  }
  PAGODA_RETURN_IF_ERROR(SetParents(runs));
  TraceRequest& request = trace_.requests_.emplace_back();
  request.seconds = seconds;
  request.tokens = tokens;
  request.block_count = static_cast<uint32_t>(block_count);
  request.run_begin = trace_.runs_.size();
  for (const BlockRun& run : runs) {
    if (run.count == 0) continue;
    const bool goes_on = request.run_begin < trace_.runs_.size() &&
                         trace_.runs_.back().first + trace_.runs_.back().count == run.first;
    if (goes_on) {
      trace_.runs_.back().count += run.count;
    } else {
      trace_.runs_.push_back(run);
    }
  }
  request.run_count = static_cast<uint32_t>(trace_.runs_.size() - request.run_begin);
  return absl::OkStatus();
}

absl::Status TraceBuilder::SetParents(absl::Span<const BlockRun> runs) {
  uint32_t parent = kNoParent;
  for (const BlockRun& run : runs) {
    if (run.count == 0) continue;
    const int64_t last = int64_t{run.first} + run.count - 1;
    if (run.first == 0 || last > kIdsMax) {
      return absl::InvalidArgumentError(
          absl::StrFormat("more than %d different blocks; replay a part of the trace", kIdsMax));
    }
    if (static_cast<int64_t>(parents_.size()) <= last) {
      parents_.resize(static_cast<size_t>(last) + 1, kUnknown);
    }
    for (uint32_t id = run.first; id <= last; ++id) {
      if (parents_[id] == kUnknown) parents_[id] = parent;
      if (parents_[id] != parent) {
        return absl::InvalidArgumentError(
            "a block follows another block than it did before; ids must be hashes of the whole "
            "prefix: hash each block together with the id before it");
      }
      parent = id;
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Trace> TraceBuilder::Finish(absl::string_view name) && {
  if (trace_.runs_.empty()) {
    return absl::NotFoundError(absl::StrFormat(
        "%s: %d requests and no block; there is nothing to replay", name, trace_.requests_.size()));
  }
  trace_.name_ = std::string(name);
  trace_.Sum();
  return std::move(trace_);
}

}  // namespace pagoda::replay
