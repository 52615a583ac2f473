// Attention over a raw16 sequence as it would be if another codec kept what has left the window:
// each tile of the codec is round-tripped once, and from then on read instead of the exact rows.
// Which pages the product reads encoded is the rule of kv_sequence.h, and here the same: a tile
// whose last token is at least a window before the query's page. Sinks stay exact.
//
// Method     the product's kernel reads bf16, which would round what a codec of 8 bits decoded by
//            more than the codec's own error. So K and V are given to it as two halves of a head
//            twice as wide, the value in bf16 and the rest in bf16: q.k = (q, q).(k1, k2), and the
//            output is the sum of both halves. 16 bits of mantissa, at twice the work.
// Threads    Attend() from several at once; of one head, one codes while others wait
// Ownership  holds all coded tiles: twice the raw16 of the sequence. One object per sequence.
// Errors     Attend(): those of kernels::AttentionCpu
// Limits     head_dim of kHeadDimMax; the pages of a codec's tile come in one call (prefill's do)
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "client/lab/kv_codec.h"
#include "kernels/attention.h"
#include "kernels/page_layout.h"

namespace pagoda::lab {

class CodedAttention {
 public:
  static constexpr int32_t kHeadDimMax = kernels::kHeadDimMax / 2;

  // REQUIRES: a codec with round trips, made for `shape`; its head_dim within the limit.
  CodedAttention(KvCodec codec, const kernels::PageShape& shape, int64_t window_tokens);

  // For ForwardPass::set_attention(), with a raw16 sequence.
  absl::Status Attend(int32_t layer, int32_t kv_head, const kernels::AttentionParams& params,
                      kernels::AttentionScratch& scratch);

 private:
  // Rows [tokens][2 * head_dim] bf16: values, then what bf16 left over.
  struct WideRows {
    explicit WideRows(int64_t words) : k(words), v(words) {}
    std::vector<uint16_t> k;
    std::vector<uint16_t> v;
  };
  struct Head {
    absl::Mutex mutex;
    std::vector<std::unique_ptr<const WideRows>> tiles ABSL_GUARDED_BY(mutex);  // null: not yet
  };

  const WideRows& CodedTile(Head& head, int64_t tile_index,
                            absl::Span<const kernels::PageTile> pages) const
      ABSL_LOCKS_EXCLUDED(head.mutex);
  std::unique_ptr<const WideRows> Code(int64_t tile_index,
                                       absl::Span<const kernels::PageTile> pages) const;
  WideRows Exact(const kernels::PageTile& page) const;

  // Constant after construction.
  const KvCodec codec_;
  const kernels::PageShape shape_;
  const int64_t window_tokens_;
  std::vector<std::unique_ptr<Head>> heads_;  // [layer][kv head]; each synchronised by its mutex
};

}  // namespace pagoda::lab
