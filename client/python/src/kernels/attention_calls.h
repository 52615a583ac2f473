// Attention of one layer over pages, all kv heads: the work of kernels/attention.h shared by
// threads, which are the process's own.
//
// Threads    from any thread; calls that meet run on the caller's thread alone
// Limits     threads 1 to 256
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "kernels/attention.h"

namespace pagoda::python {

// Threads of later calls, the caller's own counted.
absl::Status SetAttentionThreads(int thread_count);
int AttentionThreads();

struct AttentionCall {
  const float* q = nullptr;  // [query_count][head_count * group_count][head_dim]
  float* out = nullptr;      // the same
  float* lse2 = nullptr;     // [query_count][head_count * group_count], or null
  int64_t query_count = 0;
  int32_t head_count = 0;  // kv heads
  int32_t group_count = 0;
  int32_t head_dim = 0;
  int32_t page_tokens = 0;
  int64_t first_position = 0;
  float softmax_scale = 0;
  bool float_codes = false;
  // Of each kv head, ascending base_position.
  absl::Span<const std::vector<kernels::PageTile>> tiles;
};
absl::Status Attend(const AttentionCall& call);

}  // namespace pagoda::python
