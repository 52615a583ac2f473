// Goal: Linear computes x W^T, and a row of y is bit for bit a function of that row of x: of no
// other row, of no place in the block, of no thread count. Method: against sums in double; then
// every rotation of a block of rows, other neighbours (huge ones too), and pools of 1, 2 and 3
// threads, for the shapes of real models and for ragged ones.
#include "client/worker/linear.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

namespace pagoda {
namespace {

using Floats = std::vector<float>;

Floats Random(int64_t count, uint32_t seed) {
  std::mt19937 engine(seed);
  std::normal_distribution<float> normal;
  Floats values(count);
  for (float& value : values) value = normal(engine);
  return values;
}

struct Shape {
  int64_t input;
  int64_t output;
};
constexpr Shape kShapes[] = {{576, 960}, {1536, 576}, {64, 97}, {100, 7}, {1, 1}, {2000, 130}};

Linear MakeLinear(const Shape& shape, const Floats& weights, ThreadPool& pool,
                  Linear::Order order = Linear::Order::kPlain) {
  return Linear(
      shape.input, shape.output, order,
      [&](int64_t row, absl::Span<float> target) {
        std::copy_n(&weights[row * shape.input], shape.input, target.data());
      },
      pool);
}

Floats Apply(const Linear& linear, const Floats& x, int64_t rows, ThreadPool& pool) {
  Floats y(rows * linear.output(), NAN);
  linear.Apply({.x = x.data(),
                .x_stride = linear.input(),
                .y = y.data(),
                .y_stride = linear.output(),
                .row_count = rows},
               pool);
  return y;
}

bool SameRow(const Floats& a, int64_t a_row, const Floats& b, int64_t b_row, int64_t size) {
  return std::memcmp(&a[a_row * size], &b[b_row * size], size * sizeof(float)) == 0;
}

TEST(Linear, MatchesSumsInDouble) {
  ThreadPool pool(2);
  for (const Shape& shape : kShapes) {
    const Floats weights = Random(shape.input * shape.output, 1);
    const Linear linear = MakeLinear(shape, weights, pool);
    for (const int64_t rows : {int64_t{1}, int64_t{64}, int64_t{128}}) {
      const Floats x = Random(rows * shape.input, 2);
      const Floats y = Apply(linear, x, rows, pool);
      for (int64_t i = 0; i < rows * shape.output; ++i) {
        double sum = 0;
        double magnitude = 0;
        for (int64_t k = 0; k < shape.input; ++k) {
          const double product = double{x[i / shape.output * shape.input + k]} *
                                 weights[i % shape.output * shape.input + k];
          sum += product;
          magnitude += std::abs(product);
        }
        // Any order of float additions errs by at most input * 2^-24 of the absolute sum.
        ASSERT_NEAR(y[i], sum, magnitude * static_cast<double>(shape.input + 1) * 0x1p-24)
            << shape.input << "x" << shape.output << " rows " << rows << " element " << i;
      }
    }
  }
}

TEST(Linear, RowsDoNotDependOnTheirPlaceOrNeighbours) {
  ThreadPool pool(2);
  for (const Shape& shape : kShapes) {
    const Linear linear = MakeLinear(shape, Random(shape.input * shape.output, 1), pool);
    const int64_t in = shape.input;
    const int64_t out = shape.output;
    Floats x = Random(64 * in, 3);
    const Floats y = Apply(linear, x, 64, pool);
    for (int64_t shift = 1; shift < 64; ++shift) {
      Floats rotated(64 * in);
      for (int64_t row = 0; row < 64; ++row) {
        std::copy_n(&x[row * in], in, &rotated[(row + shift) % 64 * in]);
      }
      const Floats rotated_y = Apply(linear, rotated, 64, pool);
      for (int64_t row = 0; row < 64; ++row) {
        ASSERT_TRUE(SameRow(y, row, rotated_y, (row + shift) % 64, out))
            << in << "x" << out << " row " << row << " shifted by " << shift;
      }
    }
    // One row among zeros, and among numbers that would drown it.
    for (const float neighbour : {0.0F, 1e30F}) {
      for (int64_t row = 0; row < 64; row += 9) {
        Floats lonely(64 * in, neighbour);
        std::copy_n(&x[row * in], in, &lonely[row * in]);
        ASSERT_TRUE(SameRow(y, row, Apply(linear, lonely, 64, pool), row, out));
      }
    }
    // The same rows in a longer chunk, after others.
    Floats chunk = Random(256 * in, 4);
    std::copy(x.begin(), x.end(), chunk.begin() + 128 * in);
    const Floats chunk_y = Apply(linear, chunk, 256, pool);
    for (int64_t row = 0; row < 64; ++row) {
      ASSERT_TRUE(SameRow(y, row, chunk_y, 128 + row, out));
    }
  }
}

TEST(Linear, ResultsDoNotDependOnTheThreadCount) {
  ThreadPool one(1);
  for (const Shape& shape : kShapes) {
    const Floats weights = Random(shape.input * shape.output, 1);
    const Linear linear = MakeLinear(shape, weights, one);
    for (const int64_t rows : {int64_t{1}, int64_t{192}}) {
      const Floats x = Random(rows * shape.input, 5);
      const Floats expected = Apply(linear, x, rows, one);
      for (const int thread_count : {2, 3}) {
        ThreadPool pool(thread_count);
        const Floats y = Apply(MakeLinear(shape, weights, pool), x, rows, pool);
        EXPECT_EQ(std::memcmp(expected.data(), y.data(), y.size() * sizeof(float)), 0)
            << shape.input << "x" << shape.output << " rows " << rows;
      }
    }
  }
}

TEST(Linear, AccumulatesIntoWhatIsThere) {
  ThreadPool pool(2);
  const Shape shape = {576, 576};
  const Linear linear = MakeLinear(shape, Random(shape.input * shape.output, 1), pool);
  const Floats x = Random(64 * shape.input, 6);
  const Floats y = Apply(linear, x, 64, pool);
  Floats sum(64 * shape.output, 100.0F);
  linear.Apply({.x = x.data(),
                .x_stride = shape.input,
                .y = sum.data(),
                .y_stride = shape.output,
                .row_count = 64,
                .accumulate = true},
               pool);
  for (size_t i = 0; i < sum.size(); ++i) ASSERT_NEAR(sum[i], y[i] + 100, 2e-3);
}

TEST(Linear, PairedSlicesHoldBothHalves) {
  ThreadPool pool(2);
  const Shape shape = {64, 2 * 100};  // 100 pairs in slices of 48, 48 and 4
  const Floats weights = Random(shape.input * shape.output, 1);
  const Linear linear = MakeLinear(shape, weights, pool, Linear::Order::kPaired);
  ASSERT_EQ(linear.slice_count(), 3);
  EXPECT_EQ(linear.slice(2).first, 96);
  EXPECT_EQ(linear.slice(2).width, 8);
  const Floats x = Random(shape.input, 7);
  for (int64_t index = 0; index < linear.slice_count(); ++index) {
    const Linear::Slice& slice = linear.slice(index);
    Floats y(slice.width);
    linear.ApplySlice({.x = x.data(),
                       .x_stride = shape.input,
                       .y = y.data(),
                       .y_stride = slice.width,
                       .row_count = 1},
                      index);
    for (int64_t column = 0; column < slice.width; ++column) {
      const int64_t half = slice.width / 2;
      const int64_t row = column / half * 100 + slice.first + column % half;
      double sum = 0;
      for (int64_t k = 0; k < shape.input; ++k) sum += double{x[k]} * weights[row * 64 + k];
      EXPECT_NEAR(y[column], sum, 1e-4) << "slice " << index << " column " << column;
    }
  }
}

TEST(Linear, BackendNameNamesTheLibraryAndTheInstructionSet) {
  const std::string name = LinearBackendName();
  EXPECT_EQ(name.rfind("onednn-", 0), 0u) << name;
  EXPECT_EQ(name, LinearBackendName());
}

}  // namespace
}  // namespace pagoda
