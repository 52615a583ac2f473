// KVarN of round_trips.h: a tile is scaled by the spread of its columns and rows in turn until both
// are even, then every row is coded on its own.
#include <algorithm>
#include <cmath>
#include <vector>

#include "client/lab/round_trips.h"
#include "kernels/float16.h"

namespace pagoda::lab {
namespace {

constexpr int kRounds = 8;
constexpr double kLogScaleMin = -0.3;  // of the published rule
constexpr double kLogScaleMax = 10;

float Fp16(double value) {
  return kernels::FloatFromFp16(kernels::Fp16FromFloat(static_cast<float>(value)));
}

// A matrix of the tile, its rows being channels (K) or tokens (V).
struct Matrix {
  int64_t row_count = 0;
  int64_t column_count = 0;
  std::vector<double> values;  // [row][column]
  double& at(int64_t row, int64_t column) { return values[row * column_count + column]; }
  double at(int64_t row, int64_t column) const { return values[row * column_count + column]; }
};

double ClampedDeviation(double sum, double square_sum, double count) {
  const double variance = (square_sum - sum * sum / count) / (count - 1);
  return std::clamp(std::sqrt(std::max(0.0, variance)), 1e-3, 1e3);
}

// Sample standard deviations, clamped as the rule does.
struct Deviations {
  std::vector<double> rows;
  std::vector<double> columns;
  // How uneven they are: the sum of both ratios of greatest to least.
  double Imbalance() const {
    const auto ratio = [](const std::vector<double>& values) {
      const auto [low, high] = std::minmax_element(values.begin(), values.end());
      return *high / *low;
    };
    return ratio(rows) + ratio(columns);
  }
};

Deviations DeviationsOf(const Matrix& matrix) {
  std::vector<double> row_sums(matrix.row_count), row_squares(matrix.row_count);
  std::vector<double> column_sums(matrix.column_count), column_squares(matrix.column_count);
  for (int64_t r = 0; r < matrix.row_count; ++r) {
    for (int64_t c = 0; c < matrix.column_count; ++c) {
      const double x = matrix.at(r, c);
      row_sums[r] += x;
      row_squares[r] += x * x;
      column_sums[c] += x;
      column_squares[c] += x * x;
    }
  }
  Deviations deviations;
  for (int64_t r = 0; r < matrix.row_count; ++r) {
    deviations.rows.push_back(
        ClampedDeviation(row_sums[r], row_squares[r], static_cast<double>(matrix.column_count)));
  }
  for (int64_t c = 0; c < matrix.column_count; ++c) {
    deviations.columns.push_back(
        ClampedDeviation(column_sums[c], column_squares[c], static_cast<double>(matrix.row_count)));
  }
  return deviations;
}

struct LogScales {
  std::vector<double> rows;
  std::vector<double> columns;
};

Matrix Scaled(const Matrix& matrix, const LogScales& scales) {
  Matrix scaled = matrix;
  std::vector<double> column_factors;
  for (const double x : scales.columns) column_factors.push_back(std::exp(-x));
  for (int64_t r = 0; r < matrix.row_count; ++r) {
    const double row_factor = std::exp(-scales.rows[r]);
    for (int64_t c = 0; c < matrix.column_count; ++c) {
      scaled.at(r, c) *= row_factor * column_factors[c];
    }
  }
  return scaled;
}

void AddLogs(const std::vector<double>& deviations, std::vector<double>& logs) {
  for (size_t i = 0; i < logs.size(); ++i) {
    logs[i] = std::clamp(logs[i] + std::log(deviations[i]), kLogScaleMin, kLogScaleMax);
  }
}

// The most even scales of all rounds.
LogScales EvenOut(const Matrix& matrix) {
  LogScales scales = {std::vector<double>(matrix.row_count),
                      std::vector<double>(matrix.column_count)};
  LogScales best = scales;
  Deviations deviations = DeviationsOf(matrix);
  double best_imbalance = deviations.Imbalance();
  for (int round = 0; round < kRounds; ++round) {
    AddLogs(deviations.columns, scales.columns);
    AddLogs(DeviationsOf(Scaled(matrix, scales)).rows, scales.rows);
    deviations = DeviationsOf(Scaled(matrix, scales));
    if (deviations.Imbalance() <= best_imbalance) {
      best_imbalance = deviations.Imbalance();
      best = scales;
    }
  }
  return best;
}

// Codes every row of `matrix`, which is divided by `root_mean_square`, and multiplies it back.
void CodeRows(Matrix& matrix, double root_mean_square, int bits) {
  const LogScales scales = EvenOut(matrix);
  Matrix even = Scaled(matrix, scales);
  const double code_max = (1 << bits) - 1;
  for (int64_t r = 0; r < matrix.row_count; ++r) {
    const auto begin = even.values.begin() + r * even.column_count;
    const auto [low, high] = std::minmax_element(begin, begin + even.column_count);
    const double zero = *low;
    const double step = (*high - *low) / code_max;
    const double lift = std::exp(scales.rows[r]) * root_mean_square;
    for (int64_t c = 0; c < matrix.column_count; ++c) {
      const double code =
          step > 0 ? std::clamp(std::nearbyint((even.at(r, c) - zero) / step), 0.0, code_max) : 0;
      matrix.at(r, c) =
          (code * Fp16(step * lift) + Fp16(zero * lift)) * Fp16(std::exp(scales.columns[c]));
    }
  }
}

}  // namespace

RoundTrip KVarN(int bits, TileRows tile_rows) {
  return [bits, tile_rows](const Rows& rows) {
    const bool by_channel = tile_rows == TileRows::kChannels;
    Matrix matrix;
    matrix.row_count = by_channel ? rows.head_dim : rows.token_count;
    matrix.column_count = by_channel ? rows.token_count : rows.head_dim;
    matrix.values.resize(matrix.row_count * matrix.column_count);
    double squares = 0;
    for (int64_t token = 0; token < rows.token_count; ++token) {
      for (int32_t c = 0; c < rows.head_dim; ++c) {
        const double x = rows.row(token)[c];
        squares += x * x;
        (by_channel ? matrix.at(c, token) : matrix.at(token, c)) = x;
      }
    }
    const double root_mean_square = std::sqrt(squares / static_cast<double>(matrix.values.size()));
    if (root_mean_square == 0) return;
    for (double& x : matrix.values) x /= root_mean_square;
    CodeRows(matrix, root_mean_square, bits);
    for (int64_t token = 0; token < rows.token_count; ++token) {
      for (int32_t c = 0; c < rows.head_dim; ++c) {
        rows.row(token)[c] =
            static_cast<float>(by_channel ? matrix.at(c, token) : matrix.at(token, c));
      }
    }
  };
}

}  // namespace pagoda::lab
