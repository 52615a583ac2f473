#include "client/lab/coded_attention.h"

#include <algorithm>
#include <deque>
#include <utility>

#include "kernels/float16.h"
#include "storage/base/check.h"

namespace pagoda::lab {
namespace {

// A value as bf16 and what is left of it as bf16.
void Split(float value, uint16_t* first, uint16_t* second) {
  *first = kernels::Bf16FromFloat(value);
  *second = kernels::Bf16FromFloat(value - kernels::FloatFromBf16(*first));
}

}  // namespace

CodedAttention::CodedAttention(KvCodec codec, const kernels::PageShape& shape,
                               int64_t window_tokens)
    : codec_(std::move(codec)), shape_(shape), window_tokens_(window_tokens) {
  PAGODA_CHECK(codec_.k != nullptr);
  PAGODA_CHECK(codec_.v != nullptr);
  PAGODA_CHECK(shape_.head_dim <= kHeadDimMax);
  PAGODA_CHECK(codec_.tile_tokens % shape_.page_tokens == 0);
  for (int32_t i = 0; i < shape_.layer_count * shape_.head_count; ++i) {
    heads_.push_back(std::make_unique<Head>());
  }
}

absl::Status CodedAttention::Attend(int32_t layer, int32_t kv_head,
                                    const kernels::AttentionParams& params,
                                    kernels::AttentionScratch& scratch) {
  Head& head = *heads_[layer * shape_.head_count + kv_head];
  const int64_t page_tokens = shape_.page_tokens;
  const int64_t query_page_begin = params.first_position / page_tokens * page_tokens;
  const int64_t coded_tiles =
      std::max<int64_t>(0, query_page_begin - window_tokens_) / codec_.tile_tokens;
  const int32_t wide_dim = 2 * shape_.head_dim;

  std::vector<kernels::PageTile> pages(params.pages.begin(), params.pages.end());
  std::deque<WideRows> window;  // stays where it is while it grows
  for (kernels::PageTile& page : pages) {
    const int64_t tile_index = page.base_position / codec_.tile_tokens;
    if (tile_index < coded_tiles) {
      const WideRows& tile = CodedTile(head, tile_index, params.pages);
      const int64_t offset = page.base_position % codec_.tile_tokens * wide_dim;
      page.raw_k = tile.k.data() + offset;
      page.raw_v = tile.v.data() + offset;
    } else {
      const WideRows& rows = window.emplace_back(Exact(page));
      page.raw_k = rows.k.data();
      page.raw_v = rows.v.data();
    }
  }

  // [query][group][q, q]
  const int64_t head_rows = int64_t{params.query_count} * params.group_count;
  std::vector<float> wide_q(head_rows * wide_dim);
  std::vector<float> wide_out(head_rows * wide_dim);
  kernels::AttentionParams wide = params;
  wide.q = wide_q.data();
  wide.out = wide_out.data();
  wide.q_stride = wide.out_stride = int64_t{params.group_count} * wide_dim;
  wide.head_dim = wide_dim;
  wide.pages = pages;
  const auto for_each_head_row = [&](auto f) {
    for (int64_t i = 0; i < params.query_count; ++i) {
      for (int64_t g = 0; g < params.group_count; ++g) {
        f(i * params.q_stride + g * shape_.head_dim, i * params.out_stride + g * shape_.head_dim,
          (i * params.group_count + g) * wide_dim);
      }
    }
  };
  for_each_head_row([&](int64_t q, int64_t, int64_t at) {
    std::copy_n(params.q + q, shape_.head_dim, &wide_q[at]);
    std::copy_n(params.q + q, shape_.head_dim, &wide_q[at + shape_.head_dim]);
  });
  absl::Status status = kernels::AttentionCpu(wide, scratch);
  if (!status.ok()) return status;
  for_each_head_row([&](int64_t, int64_t out, int64_t at) {
    for (int32_t c = 0; c < shape_.head_dim; ++c) {
      params.out[out + c] = wide_out[at + c] + wide_out[at + shape_.head_dim + c];
    }
  });
  return status;
}

const CodedAttention::WideRows& CodedAttention::CodedTile(
    Head& head, int64_t tile_index, absl::Span<const kernels::PageTile> pages) const {
  absl::MutexLock lock(&head.mutex);
  if (static_cast<int64_t>(head.tiles.size()) <= tile_index) head.tiles.resize(tile_index + 1);
  std::unique_ptr<const WideRows>& tile = head.tiles[tile_index];
  if (tile == nullptr) tile = Code(tile_index, pages);
  return *tile;  // never changes again
}

std::unique_ptr<const CodedAttention::WideRows> CodedAttention::Code(
    int64_t tile_index, absl::Span<const kernels::PageTile> pages) const {
  const int64_t head_dim = shape_.head_dim;
  const int64_t begin = tile_index * codec_.tile_tokens;
  std::vector<float> k(codec_.tile_tokens * head_dim);
  std::vector<float> v(codec_.tile_tokens * head_dim);
  int64_t found = 0;
  for (const kernels::PageTile& page : pages) {
    const int64_t offset = page.base_position - begin;
    if (offset < 0 || offset >= codec_.tile_tokens) continue;
    PAGODA_CHECK(page.precision == Precision::kRaw16);
    PAGODA_CHECK(page.token_count == shape_.page_tokens);
    for (int64_t i = 0; i < page.token_count * head_dim; ++i) {
      k[offset * head_dim + i] = kernels::FloatFromBf16(page.raw_k[i]);
      v[offset * head_dim + i] = kernels::FloatFromBf16(page.raw_v[i]);
    }
    found += page.token_count;
  }
  PAGODA_CHECK(found == codec_.tile_tokens);
  const int64_t exact = begin == 0 ? kernels::kSinkTokens * head_dim : 0;
  const std::vector<float> sink_k(k.begin(), k.begin() + exact);
  const std::vector<float> sink_v(v.begin(), v.begin() + exact);
  codec_.k({k.data(), codec_.tile_tokens, shape_.head_dim});
  codec_.v({v.data(), codec_.tile_tokens, shape_.head_dim});
  std::copy(sink_k.begin(), sink_k.end(), k.begin());
  std::copy(sink_v.begin(), sink_v.end(), v.begin());
  auto rows = std::make_unique<WideRows>(2 * codec_.tile_tokens * head_dim);
  for (int64_t token = 0; token < codec_.tile_tokens; ++token) {
    for (int64_t c = 0; c < head_dim; ++c) {
      const int64_t from = token * head_dim + c;
      const int64_t to = token * 2 * head_dim + c;
      Split(k[from], &rows->k[to], &rows->k[to + head_dim]);
      Split(v[from], &rows->v[to], &rows->v[to + head_dim]);
    }
  }
  return rows;
}

CodedAttention::WideRows CodedAttention::Exact(const kernels::PageTile& page) const {
  const int64_t head_dim = shape_.head_dim;
  WideRows rows(2 * shape_.page_tokens * head_dim);
  for (int64_t token = 0; token < page.token_count; ++token) {
    std::copy_n(page.raw_k + token * head_dim, head_dim, &rows.k[token * 2 * head_dim]);
    std::copy_n(page.raw_v + token * head_dim, head_dim, &rows.v[token * 2 * head_dim]);
  }
  return rows;
}

}  // namespace pagoda::lab
