// y = x W^T for a fixed float matrix W, by oneDNN. The arithmetic of a row of y is a function of
// that row of x alone: not of the other rows, of their number, or of the number of threads.
//
// How        W is cut into fixed slices of output features, each packed as [input][slice width] so
//            that a GEMM reads it in order and it stays in L2 over all row blocks. Every GEMM has
//            one of two shapes: kRowBlock rows (prefill; callers pad) or one row (decode). The two
//            give results that differ in the last bits. oneDNN runs single-threaded in every task.
// Shapes     x [rows][input], y [rows][output], row-major; strides in floats
// Threads    constant after construction; any number of calls at a time, one ThreadPool each
// Limits     input and output 1 to 2^24 features
// Source     dnnl_sgemm of oneDNN. That a row does not depend on its place in the block is a
//            property of its kernels that linear_test holds, not a promise of its manual.
// Cost       2 * rows * input * output flops; 4 * input * output bytes of memory
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "client/worker/thread_pool.h"
#include "kernels/aligned_buffer.h"

namespace pagoda {

class Linear {
 public:
  static constexpr int32_t kRowBlock = 64;  // rows of a prefill GEMM: one page
  static constexpr int32_t kSliceWidthMax = 96;
  static constexpr int64_t kSliceBytesMax = int64_t{1} << 20;

  // `weight_row(o, row)` writes row o of W, `input` floats; it is called from the pool's threads.
  // kPaired: every slice holds as many rows of the first half of W as of the second, first half
  // first, so that gate and up of a feed-forward block meet in one task. `output` is then even.
  enum class Order { kPlain, kPaired };
  using WeightRow = absl::FunctionRef<void(int64_t output_index, absl::Span<float> row)>;
  Linear(int64_t input, int64_t output, Order order, WeightRow weight_row, ThreadPool& pool);

  int64_t input() const { return input_; }
  int64_t output() const { return output_; }
  int64_t slice_count() const { return static_cast<int64_t>(slices_.size()); }
  struct Slice {
    int64_t first = 0;   // first output feature; when paired, of each half
    int32_t width = 0;   // columns of the GEMM
    int64_t offset = 0;  // of the packed weights, in floats
  };
  const Slice& slice(int64_t index) const { return slices_[index]; }

  // y (+)= x W^T for `row_count` rows: 1, or a multiple of kRowBlock. REQUIRES: kPlain.
  struct Rows {
    const float* x = nullptr;
    int64_t x_stride = 0;
    float* y = nullptr;
    int64_t y_stride = 0;
    int64_t row_count = 0;
    bool accumulate = false;  // add to what y holds
  };
  void Apply(const Rows& rows, ThreadPool& pool) const;

  // One slice of kRowBlock rows, or of one row, into y at column 0: for callers that go on with the
  // result while it is in cache. REQUIRES: row_count 1 or kRowBlock.
  void ApplySlice(const Rows& rows, int64_t slice_index) const;

 private:
  void PackSlice(int64_t slice_index, WeightRow weight_row);

  // Constant after construction.
  int64_t input_;
  int64_t output_;
  Order order_;
  std::vector<Slice> slices_;
  kernels::AlignedBuffer packed_;
};

// Which arithmetic this machine's results come from: "onednn-2.6.3 avx512_core". Equal texts mean
// equal bits for equal inputs.
std::string LinearBackendName();

}  // namespace pagoda
