// What the bounds of attention.h are made of.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/types/span.h"
#include "kernels/codec.h"
#include "kernels/float16.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels {

struct Magnitudes {
  double k = 0;  // max over tokens of ||k|| + ||mu||
  double v = 0;  // max |v|
};

inline Magnitudes MagnitudesOf(absl::Span<const PageTile> tiles, const PageShape& shape) {
  Magnitudes m;
  const int32_t dim = shape.head_dim;
  for (const PageTile& tile : tiles) {
    std::vector<double> k(static_cast<size_t>(tile.token_count * dim));
    std::vector<double> v(k.size());
    PAGODA_EXPECT_OK(DecodeTileRef(tile, shape, k.data(), v.data()));
    double mu = 0;
    for (int32_t c = 0; tile.k_hi_params != nullptr && c < dim; ++c) {
      mu += std::pow(FloatFromFp16(tile.k_hi_params[c]), 2);
    }
    for (int32_t t = 0; t < tile.token_count; ++t) {
      double norm = 0;
      for (int32_t c = 0; c < dim; ++c) {
        norm += std::pow(k[t * dim + c], 2);
        m.v = std::max(m.v, std::fabs(v[t * dim + c]));
      }
      m.k = std::max(m.k, std::sqrt(norm) + std::sqrt(mu));
    }
  }
  return m;
}

}  // namespace pagoda::kernels
