#include "client/cli/attention_bench.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/cli/available_memory.h"
#include "client/cli/interrupt.h"
#include "client/cli/percentile.h"
#include "client/cli/text_table.h"
#include "client/cli/units.h"
#include "kernels/attention.h"
#include "kernels/codec.h"
#include "kernels/float16.h"
#include "kernels/merge_states.h"
#include "storage/base/bytes.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace pagoda::cli {
namespace {

using kernels::PageShape;

constexpr int32_t kPageTokens = 64;
constexpr int64_t kPlaneAlignBytes = 64;

double Now() { return absl::ToDoubleSeconds(SystemClock().Monotonic()); }

// A page of one layer and one kv head, in memory of its own.
struct Page {
  PageHeader header;
  std::vector<kernels::AlignedBuffer> segments;
};

std::vector<ByteSpan> SpansOf(const Page& page) {
  std::vector<ByteSpan> spans;
  for (const kernels::AlignedBuffer& segment : page.segments) spans.push_back(segment.span());
  return spans;
}

void Allocate(Page& page) {
  for (const SegmentEntry& segment : page.header.segments) {
    page.segments.emplace_back(segment.stored_bytes());
  }
}

Page RandomPage(const PageShape& shape, uint32_t seed) {
  Page page;
  page.header.layer_count = 1;
  page.header.record.head_count = 1;
  page.header.head_dim = static_cast<uint16_t>(shape.head_dim);
  page.header.page_tokens = kPageTokens;
  page.header.base_position = kPageTokens;  // no sink rows
  kernels::AppendPlanes(Precision::kRaw16, shape, page.header);
  Allocate(page);
  std::mt19937 random(seed);
  std::normal_distribution<float> normal;
  for (kernels::AlignedBuffer& segment : page.segments) {
    auto* words = reinterpret_cast<uint16_t*>(segment.data());
    for (int64_t i = 0; i < segment.size() / 2; ++i) {
      words[i] = kernels::Bf16FromFloat(normal(random));
    }
  }
  return page;
}

absl::StatusOr<Page> Encoded(const Page& raw, Precision precision) {
  Page page;
  PAGODA_ASSIGN_OR_RETURN(page.header, kernels::PlanEncodedHeader(raw.header, precision));
  Allocate(page);
  std::vector<MutableByteSpan> targets;
  for (kernels::AlignedBuffer& segment : page.segments) targets.push_back(segment.mutable_span());
  PAGODA_RETURN_IF_ERROR(kernels::EncodePage(raw.header, SpansOf(raw), page.header, targets));
  return page;
}

// Pages of one precision, side by side in one piece of memory: copies of a few distinct ones. Their
// planes lie 64 bytes apart, as those of the layers and heads in one segment do; a segment for
// each, padded to 4096, would be half empty at this size.
class Pool {
 public:
  static absl::StatusOr<Pool> Make(Precision precision, const PageShape& shape, int64_t bytes,
                                   bool small_pages) {
    constexpr uint32_t kDistinct = 8;
    Pool pool;
    std::vector<Page> pages;
    for (uint32_t i = 0; i < kDistinct; ++i) {
      pages.push_back(RandomPage(shape, i));
      if (precision == Precision::kRaw16) continue;
      PAGODA_ASSIGN_OR_RETURN(pages.back(), Encoded(pages.back(), precision));
    }
    int64_t page_bytes = 0;
    for (const SegmentEntry& segment : pages[0].header.segments) {
      page_bytes += AlignUp(int64_t{segment.length}, kPlaneAlignBytes);
    }
    const int64_t count = std::max<int64_t>(kDistinct, bytes / page_bytes);
    pool.memory_ = kernels::AlignedBuffer::Uninitialized(count * page_bytes);
    if (small_pages) {
      ::madvise(pool.memory_.data(), static_cast<size_t>(pool.memory_.size()), MADV_NOHUGEPAGE);
    }
    std::byte* at = pool.memory_.data();
    for (int64_t i = 0; i < count; ++i) {
      std::vector<ByteSpan> spans;
      const PageHeader& header = pages[i % kDistinct].header;
      for (size_t s = 0; s < header.segments.size(); ++s) {
        const int64_t length = header.segments[s].length;
        std::copy_n(pages[i % kDistinct].segments[s].data(), length, at);
        spans.emplace_back(at, static_cast<size_t>(length));
        at += AlignUp(length, kPlaneAlignBytes);
      }
      PAGODA_ASSIGN_OR_RETURN(const kernels::PageView view,
                              kernels::PageView::Make(shape, header, spans, precision));
      pool.tiles_.push_back(view.tile(0, 0));
      pool.spans_.push_back(std::move(spans));
      for (const SegmentEntry& segment : header.segments) pool.plane_bytes_ += segment.length;
    }
    pool.Order(false);
    return pool;
  }

  void Order(bool shuffled) {
    std::vector<size_t> order(tiles_.size());
    std::iota(order.begin(), order.end(), size_t{0});
    if (shuffled) std::shuffle(order.begin(), order.end(), std::mt19937(1));
    segments_per_page_ = spans_[0].size();
    ordered_.clear();
    segments_.clear();
    for (const size_t i : order) {
      ordered_.push_back(tiles_[i]);
      ordered_.back().base_position = static_cast<int64_t>(ordered_.size() - 1) * kPageTokens;
      segments_.insert(segments_.end(), spans_[i].begin(), spans_[i].end());
    }
  }

  int64_t token_count() const { return static_cast<int64_t>(tiles_.size()) * kPageTokens; }
  int64_t plane_bytes() const { return plane_bytes_; }
  absl::Span<const kernels::PageTile> tiles() const { return ordered_; }

  // A sum over the words of the pages [begin, end) in their order, the next segment fetched ahead.
  uint64_t Read(size_t begin, size_t end) const {
    uint64_t sums[8] = {};
    const size_t last = end * segments_per_page_;
    for (size_t i = begin * segments_per_page_; i < last; ++i) {
      const auto* words = reinterpret_cast<const uint64_t*>(segments_[i].data());
      const auto* ahead =
          reinterpret_cast<const uint64_t*>(segments_[std::min(i + 1, last - 1)].data());
      for (size_t w = 0; w + 8 <= segments_[i].size() / 8; w += 8) {
        __builtin_prefetch(ahead + w, 0, 2);
        for (size_t j = 0; j < 8; ++j) sums[j] += words[w + j];
      }
    }
    return std::accumulate(sums, sums + 8, uint64_t{0});
  }

 private:
  kernels::AlignedBuffer memory_;
  std::vector<kernels::PageTile> tiles_;  // as they lie
  std::vector<std::vector<ByteSpan>> spans_;
  size_t segments_per_page_ = 0;
  std::vector<kernels::PageTile> ordered_;  // as they are visited
  std::vector<ByteSpan> segments_;          // likewise
  int64_t plane_bytes_ = 0;
};

// `work(thread, begin, end)` on shares of `count` items, at once; the seconds until all are done.
template <typename Work>
double Share(int thread_count, size_t count, const Work& work) {
  const double start = Now();
  std::vector<std::thread> threads;
  for (int i = 0; i < thread_count; ++i) {
    const size_t begin = count * static_cast<size_t>(i) / static_cast<size_t>(thread_count);
    const size_t end = count * static_cast<size_t>(i + 1) / static_cast<size_t>(thread_count);
    if (i + 1 == thread_count) {
      work(i, begin, end);
    } else {
      threads.emplace_back([&work, i, begin, end] { work(i, begin, end); });
    }
  }
  for (std::thread& thread : threads) thread.join();
  return Now() - start;
}

// Split over threads by tokens, merged by log-sum-exp.
class Decoder {
 public:
  Decoder(int32_t head_dim, int32_t group_count, bool float_codes)
      : head_dim_(head_dim), group_count_(group_count), float_codes_(float_codes) {
    std::mt19937 random(3);
    std::normal_distribution<float> normal;
    q_.resize(static_cast<size_t>(head_dim * group_count));
    for (float& x : q_) x = normal(random);
  }

  absl::StatusOr<double> Seconds(const Pool& pool, int thread_count) {
    parts_.resize(static_cast<size_t>(thread_count));
    const double seconds =
        Share(thread_count, pool.tiles().size(), [&](int thread, size_t begin, size_t end) {
          Part& part = parts_[static_cast<size_t>(thread)];
          part.out.resize(q_.size());
          part.lse2.resize(static_cast<size_t>(group_count_));
          kernels::AttentionParams params;
          params.q = q_.data();
          params.q_stride = params.out_stride = int64_t{group_count_} * head_dim_;
          params.out = part.out.data();
          params.lse2 = part.lse2.data();
          params.query_count = 1;
          params.group_count = group_count_;
          params.head_dim = head_dim_;
          params.page_tokens = kPageTokens;
          params.first_position = pool.token_count();
          params.softmax_scale = 1.0f / std::sqrt(static_cast<float>(head_dim_));
          params.pages = pool.tiles().subspan(begin, end - begin);
          params.float_codes = float_codes_;
          part.status = kernels::AttentionCpu(params, part.scratch);
        });
    for (size_t i = 0; i < parts_.size(); ++i) {
      PAGODA_RETURN_IF_ERROR(parts_[i].status);
      if (i == 0) continue;
      kernels::MergeStatesCpu({parts_[0].out.data(), parts_[0].lse2.data()},
                              {parts_[i].out.data(), parts_[i].lse2.data()}, group_count_,
                              head_dim_);
    }
    return seconds;
  }

 private:
  struct Part {
    std::vector<float> out;
    std::vector<float> lse2;
    kernels::AttentionScratch scratch;
    absl::Status status;
  };
  const int32_t head_dim_;
  const int32_t group_count_;
  const bool float_codes_;
  std::vector<float> q_;
  std::vector<Part> parts_;
};

// Samples of one row.
struct Samples {
  std::vector<double> seconds;
  std::vector<double> read_seconds;
};

class Measure {
 public:
  Measure(const AttentionBenchOptions& options, int32_t head_dim)
      : options_(options), head_dim_(head_dim) {}

  absl::Status MakePools() {
    for (const Precision precision : options_.precisions) {
      PAGODA_ASSIGN_OR_RETURN(Pool pool, Pool::Make(precision, {1, 1, head_dim_, kPageTokens},
                                                    options_.pool_bytes, options_.small_pages));
      pools_.push_back(std::move(pool));
    }
    return absl::OkStatus();
  }

  // Numbers of threads take turns, so that a moment of the machine meets all of them.
  absl::Status Run(bool shuffled, std::vector<AttentionBenchRow>& rows) {
    for (Pool& pool : pools_) pool.Order(shuffled);
    samples_.clear();
    for (int round = 0; round < options_.rounds; ++round) {
      PAGODA_RETURN_IF_ERROR(CheckInterrupted());
      PAGODA_RETURN_IF_ERROR(Round());
    }
    for (size_t i = 0; i < options_.thread_counts.size(); ++i) AddRows(shuffled, i, rows);
    return absl::OkStatus();
  }

 private:
  Samples& At(size_t threads, size_t pool, size_t group) {
    return samples_[{threads, pool, group}];
  }

  absl::Status Round() {
    for (size_t group = 0; group < options_.group_counts.size(); ++group) {
      Decoder decoder(head_dim_, options_.group_counts[group], options_.float_codes);
      for (size_t i = 0; i < pools_.size(); ++i) {
        const Pool& pool = pools_[i];
        for (size_t t = 0; t < options_.thread_counts.size(); ++t) {
          const int threads = options_.thread_counts[t];
          std::atomic<uint64_t> sum{0};  // so that reading is not left out
          At(t, i, group)
              .read_seconds.push_back(
                  Share(threads, pool.tiles().size(),
                        [&](int, size_t begin, size_t end) { sum += pool.Read(begin, end); }));
          PAGODA_ASSIGN_OR_RETURN(const double seconds, decoder.Seconds(pool, threads));
          At(t, i, group).seconds.push_back(seconds);
        }
      }
    }
    return absl::OkStatus();
  }

  void AddRows(bool shuffled, size_t threads, std::vector<AttentionBenchRow>& rows) {
    const auto raw =
        std::find(options_.precisions.begin(), options_.precisions.end(), Precision::kRaw16) -
        options_.precisions.begin();
    for (size_t i = 0; i < pools_.size(); ++i) {
      for (size_t group = 0; group < options_.group_counts.size(); ++group) {
        const Samples& samples = At(threads, i, group);
        const auto bytes = static_cast<double>(pools_[i].plane_bytes());
        const auto tokens = static_cast<double>(pools_[i].token_count());
        std::vector<double> of_bound;
        std::vector<double> speedups;
        std::vector<double> scaling;
        for (int r = 0; r < options_.rounds; ++r) {
          of_bound.push_back(samples.read_seconds[r] / samples.seconds[r]);
          scaling.push_back(At(0, i, group).seconds[r] / samples.seconds[r]);
          if (raw == static_cast<ptrdiff_t>(pools_.size())) continue;
          const double raw_ns = At(threads, raw, group).seconds[r] / pools_[raw].token_count();
          speedups.push_back(raw_ns / (samples.seconds[r] / tokens));
        }
        rows.push_back({.precision = options_.precisions[i],
                        .head_dim = head_dim_,
                        .group_count = options_.group_counts[group],
                        .shuffled = shuffled,
                        .threads = options_.thread_counts[threads],
                        .tokens = pools_[i].token_count(),
                        .ns_per_token = Median(samples.seconds) / tokens * 1e9,
                        .bytes_per_second = bytes / Median(samples.seconds),
                        .bound_bytes_per_second = bytes / Median(samples.read_seconds),
                        .of_bound = Median(of_bound),
                        .speedup_vs_raw16 = speedups.empty() ? 0 : Median(speedups),
                        .scaling = Median(scaling)});
      }
    }
  }

  const AttentionBenchOptions& options_;
  const int32_t head_dim_;
  std::vector<Pool> pools_;
  std::map<std::tuple<size_t, size_t, size_t>, Samples> samples_;  // threads, pool, group
};

}  // namespace

absl::StatusOr<std::vector<AttentionBenchRow>> RunAttentionBench(
    const AttentionBenchOptions& options,
    const std::function<void(const std::string& step)>& progress) {
  const int64_t needed = options.pool_bytes * static_cast<int64_t>(options.precisions.size());
  const int64_t free_bytes = AvailableMemoryBytes();
  if (needed > free_bytes) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "pages of %s are asked for, %s of memory are free; give fewer --mib",
        FormatBytes(static_cast<double>(needed)), FormatBytes(static_cast<double>(free_bytes))));
  }
  std::vector<AttentionBenchRow> rows;
  for (const int32_t head_dim : options.head_dims) {
    progress(absl::StrFormat("head_dim %d, making pages", head_dim));
    Measure measure(options, head_dim);
    PAGODA_RETURN_IF_ERROR(measure.MakePools());
    for (const bool shuffled : options.shuffled) {
      progress(absl::StrFormat("head_dim %d, %s", head_dim, shuffled ? "shuffled" : "in order"));
      PAGODA_RETURN_IF_ERROR(measure.Run(shuffled, rows));
    }
  }
  return rows;
}

std::string AttentionBenchText(const std::vector<AttentionBenchRow>& rows, const std::string& isa) {
  TextTable table({{"precision"},
                   {"head_dim", Align::kRight},
                   {"gqa", Align::kRight},
                   {"order"},
                   {"threads", Align::kRight},
                   {"ns/token", Align::kRight},
                   {"GB/s", Align::kRight},
                   {"read GB/s", Align::kRight},
                   {"of read", Align::kRight},
                   {"over raw16", Align::kRight},
                   {"scaling", Align::kRight}});
  for (const AttentionBenchRow& row : rows) {
    table.AddRow({std::string(PrecisionName(row.precision)), absl::StrCat(row.head_dim),
                  absl::StrCat(row.group_count), row.shuffled ? "shuffled" : "in order",
                  absl::StrCat(row.threads), absl::StrFormat("%.1f", row.ns_per_token),
                  absl::StrFormat("%.2f", row.bytes_per_second * 1e-9),
                  absl::StrFormat("%.2f", row.bound_bytes_per_second * 1e-9),
                  absl::StrFormat("%.2f", row.of_bound),
                  row.speedup_vs_raw16 > 0 ? absl::StrFormat("%.2f", row.speedup_vs_raw16) : "-",
                  absl::StrFormat("%.2f", row.scaling)});
  }
  return absl::StrCat("decode attention, ", isa, ", pages of ", kPageTokens, " tokens\n\n",
                      table.Render());
}

Json AttentionBenchJson(const std::vector<AttentionBenchRow>& rows, const std::string& isa) {
  Json list = Json::array();
  for (const AttentionBenchRow& row : rows) {
    list.push_back({{"isa", isa},
                    {"precision", std::string(PrecisionName(row.precision))},
                    {"head_dim", row.head_dim},
                    {"gqa", row.group_count},
                    {"order", row.shuffled ? "shuffled" : "in order"},
                    {"threads", row.threads},
                    {"tokens", row.tokens},
                    {"ns_per_token", row.ns_per_token},
                    {"gbps", row.bytes_per_second * 1e-9},
                    {"bound_gbps", row.bound_bytes_per_second * 1e-9},
                    {"of_bound", row.of_bound},
                    {"speedup_vs_raw16", row.speedup_vs_raw16},
                    {"scaling", row.scaling}});
  }
  return {{"rows", std::move(list)}};
}

}  // namespace pagoda::cli
