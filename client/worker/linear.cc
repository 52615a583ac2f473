#include "client/worker/linear.h"

#include <dnnl.h>
#include <omp.h>

#include <algorithm>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"

namespace pagoda {
namespace {

constexpr int32_t kWidthUnit = 16;  // columns of one AVX-512 register of floats

int64_t SliceWidth(int64_t input) {
  const int64_t fitting = Linear::kSliceBytesMax / (input * static_cast<int64_t>(sizeof(float)));
  return std::clamp<int64_t>(fitting / kWidthUnit * kWidthUnit, kWidthUnit, Linear::kSliceWidthMax);
}

// oneDNN splits a GEMM over as many OpenMP threads as the calling thread may use, and a split along
// the summed dimension would change bits. The setting belongs to the calling thread alone.
class OneOpenMpThread {
 public:
  OneOpenMpThread() : saved_(omp_get_max_threads()) {
    if (saved_ != 1) omp_set_num_threads(1);
  }
  ~OneOpenMpThread() {
    if (saved_ != 1) omp_set_num_threads(saved_);
  }
  OneOpenMpThread(const OneOpenMpThread&) = delete;
  OneOpenMpThread& operator=(const OneOpenMpThread&) = delete;

 private:
  const int saved_;
};

}  // namespace

Linear::Linear(int64_t input, int64_t output, Order order, WeightRow weight_row, ThreadPool& pool)
    : input_(input), output_(output), order_(order) {
  PAGODA_CHECK(input >= 1 && input <= 1 << 24);
  PAGODA_CHECK(output >= 1 && output <= 1 << 24);
  const int64_t part_count = order == Order::kPaired ? 2 : 1;
  PAGODA_CHECK(output % part_count == 0);
  const int64_t features = output / part_count;
  const int64_t step = SliceWidth(input) / part_count;
  int64_t offset = 0;
  for (int64_t first = 0; first < features; first += step) {
    const int64_t width = std::min(step, features - first) * part_count;
    slices_.push_back({.first = first, .width = static_cast<int32_t>(width), .offset = offset});
    offset += AlignUp(input * width, 16);  // slices start on cache lines
  }
  packed_ = kernels::AlignedBuffer(offset * static_cast<int64_t>(sizeof(float)));
  pool.ParallelFor(slice_count(), [&](int64_t index, int) { PackSlice(index, weight_row); });
}

void Linear::PackSlice(int64_t slice_index, WeightRow weight_row) {
  const Slice& slice = slices_[slice_index];
  const int64_t part_count = order_ == Order::kPaired ? 2 : 1;
  const int64_t part_width = slice.width / part_count;
  std::vector<float> rows(slice.width * input_);
  for (int64_t column = 0; column < slice.width; ++column) {
    const int64_t half = column / part_width * (output_ / part_count);
    weight_row(half + slice.first + column % part_width,
               absl::MakeSpan(rows).subspan(column * input_, input_));
  }
  float* target = reinterpret_cast<float*>(packed_.data()) + slice.offset;
  for (int64_t i = 0; i < input_; ++i) {
    for (int64_t column = 0; column < slice.width; ++column) {
      *target++ = rows[column * input_ + i];
    }
  }
}

void Linear::ApplySlice(const Rows& rows, int64_t slice_index) const {
  PAGODA_CHECK(rows.row_count == 1 || rows.row_count == kRowBlock);
  const Slice& slice = slices_[slice_index];
  const OneOpenMpThread one_thread;
  const auto* packed = reinterpret_cast<const float*>(packed_.data());
  const dnnl_status_t status = dnnl_sgemm('N', 'N', rows.row_count, slice.width, input_, 1.0F,
                                          rows.x, rows.x_stride, packed + slice.offset, slice.width,
                                          rows.accumulate ? 1.0F : 0.0F, rows.y, rows.y_stride);
  PAGODA_CHECK(status == dnnl_success);  // it fails for bad arguments and without memory
}

void Linear::Apply(const Rows& rows, ThreadPool& pool) const {
  PAGODA_CHECK(order_ == Order::kPlain);
  PAGODA_CHECK(rows.row_count == 1 || rows.row_count % kRowBlock == 0);
  const int64_t block_rows = std::min<int64_t>(rows.row_count, kRowBlock);
  pool.ParallelFor(slice_count(), [&](int64_t index, int) {
    for (int64_t row = 0; row < rows.row_count; row += block_rows) {
      ApplySlice({.x = rows.x + row * rows.x_stride,
                  .x_stride = rows.x_stride,
                  .y = rows.y + row * rows.y_stride + slices_[index].first,
                  .y_stride = rows.y_stride,
                  .row_count = block_rows,
                  .accumulate = rows.accumulate},
                 index);
    }
  });
}

std::string LinearBackendName() {
  const dnnl_version_t* version = dnnl_version();
  const char* isa = "generic";
  switch (dnnl_get_effective_cpu_isa()) {
    case dnnl_cpu_isa_sse41:
      isa = "sse41";
      break;
    case dnnl_cpu_isa_avx:
      isa = "avx";
      break;
    case dnnl_cpu_isa_avx2:
    case dnnl_cpu_isa_avx2_vnni:
      isa = "avx2";
      break;
    case dnnl_cpu_isa_all:
      break;
    default:
      isa = "avx512_core";
      break;
  }
  return absl::StrFormat("onednn-%d.%d.%d %s", version->major, version->minor, version->patch, isa);
}

}  // namespace pagoda
