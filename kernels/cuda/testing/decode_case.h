// Decode attention on pages of a given shape and precision, run on the device and by the double
// specification, and the bound of attention.h between the two.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include "kernels/attention.h"
#include "kernels/cuda/attention_cuda.h"
#include "kernels/cuda/testing/device_page.h"
#include "kernels/testing/magnitudes.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels::cuda {

struct States {
  std::vector<float> o;     // [row][head_dim]
  std::vector<float> lse2;  // [row]
};

// Pages of one sequence, on the host and on the device. Several sequences of other lengths may
// share them.
class DecodePages {
 public:
  // precisions[i] of page i; they repeat. All pages are full.
  DecodePages(const PageShape& shape, const std::vector<Precision>& precisions, int32_t page_count,
              uint32_t seed)
      : shape_(shape) {
    for (int32_t i = 0; i < page_count; ++i) {
      TestPage raw = RandomRawPage(shape, int64_t{i} * shape.page_tokens, seed + i);
      const Precision precision = precisions[static_cast<size_t>(i) % precisions.size()];
      host_.push_back(precision == Precision::kRaw16 ? std::move(raw)
                                                     : EncodedPage(raw, precision));
      device_.emplace_back(host_.back());
    }
  }

  const PageShape& shape() const { return shape_; }
  bool HaveCodes() const {
    return std::any_of(host_.begin(), host_.end(), [](const TestPage& page) {
      return page.view().precision() != Precision::kRaw16;
    });
  }

  // Tiles up to `length` tokens: raw pages end there, encoded ones are cut by the position alone.
  std::vector<PageTile> HostTiles(int64_t length, int32_t head) const {
    return Cut(length, [&](size_t i) { return host_[i].view().tile(layer(), head); });
  }
  std::vector<PageTile> DeviceTiles(int64_t length) const {
    return Cut(length, [&](size_t i) { return device_[i].view().tile(layer(), 0); });
  }

  Magnitudes MagnitudesUpTo(int64_t length) const {
    Magnitudes m;
    for (int32_t head = 0; head < shape_.head_count; ++head) {
      const Magnitudes one = MagnitudesOf(HostTiles(length, head), shape_);
      m = {std::max(m.k, one.k), std::max(m.v, one.v)};
    }
    return m;
  }

 private:
  int32_t layer() const { return shape_.layer_count - 1; }

  template <typename TileOf>
  std::vector<PageTile> Cut(int64_t length, TileOf tile_of) const {
    std::vector<PageTile> tiles;
    for (size_t i = 0; i < host_.size(); ++i) {
      const int64_t left = length - static_cast<int64_t>(i) * shape_.page_tokens;
      if (left <= 0) break;
      PageTile tile = tile_of(i);
      if (tile.precision == Precision::kRaw16) {
        tile.token_count = static_cast<int32_t>(std::min<int64_t>(left, shape_.page_tokens));
      }
      tiles.push_back(tile);
    }
    return tiles;
  }

  PageShape shape_;
  std::vector<TestPage> host_;
  std::vector<DevicePage> device_;
};

// Sequences of several lengths over the same pages, with queries for up to `group_max` heads.
class DecodeCase {
 public:
  DecodeCase(const DecodePages& pages, std::vector<int64_t> lengths, int32_t group_max,
             uint32_t seed, float query_magnitude = 1.5f)
      : pages_(pages), lengths_(std::move(lengths)), group_max_(group_max), random_(seed) {
    std::normal_distribution<float> normal;
    q_.resize(lengths_.size() * shape().head_count * group_max * shape().head_dim);
    for (float& x : q_) x = query_magnitude * normal(random_);
    for (const int64_t length : lengths_) {
      for (int32_t head = 0; head < shape().head_count; ++head) AppendReference(length, head);
    }
    magnitudes_ = pages_.MagnitudesUpTo(*std::max_element(lengths_.begin(), lengths_.end()));
  }

  // The first group_count heads of each kv head, pages in any order, split and merged again.
  States RunOnDevice(int32_t group_count, int32_t split_count,
                     DecodeUnit unit = DecodeUnit::kBest) {
    std::vector<PageTile> tiles;
    std::vector<int32_t> begin = {0};
    std::vector<int64_t> position;
    for (const int64_t length : lengths_) {
      std::vector<PageTile> own = pages_.DeviceTiles(length);
      std::shuffle(own.begin(), own.end(), random_);
      PAGODA_EXPECT_OK(ValidateDeviceTiles(own, shape().page_tokens));
      tiles.insert(tiles.end(), own.begin(), own.end());
      begin.push_back(static_cast<int32_t>(tiles.size()));
      position.push_back(length - 1);
    }
    const DeviceVector<float> q(FirstHeads(q_, shape().head_dim, group_count));
    const DeviceVector<PageTile> device_tiles(tiles);
    const DeviceVector<int32_t> device_begin(begin);
    const DeviceVector<int64_t> device_position(position);
    const size_t rows = lengths_.size() * shape().head_count * group_count;
    DeviceVector<float> part_o(split_count * rows * shape().head_dim);
    DeviceVector<float> part_lse2(split_count * rows);
    DecodeParams p;
    p.q = q.data();
    p.tiles = device_tiles.data();
    p.tile_begin = device_begin.data();
    p.position = device_position.data();
    p.part_o = part_o.data();
    p.part_lse2 = part_lse2.data();
    p.sequence_count = static_cast<int32_t>(lengths_.size());
    p.kv_head_count = shape().head_count;
    p.group_count = group_count;
    p.head_dim = shape().head_dim;
    p.page_tokens = shape().page_tokens;
    p.split_count = split_count;
    p.softmax_scale = softmax_scale();
    p.unit = unit;
    PAGODA_EXPECT_OK(DecodeAttentionCuda(p, nullptr));
    DeviceVector<float> o(rows * shape().head_dim);
    DeviceVector<float> lse2(rows);
    PAGODA_EXPECT_OK(MergeStatesCuda({part_o.data(), part_lse2.data(), o.data(), lse2.data(),
                                      static_cast<int64_t>(rows), split_count, p.head_dim},
                                     nullptr));
    return {o.ToHost(), lse2.ToHost()};
  }

  // Largest share of the bound of attention_cuda.h that was used.
  double ExpectWithinBound(const States& states, int32_t group_count,
                           DecodeUnit unit = DecodeUnit::kBest) const {
    if (unit == DecodeUnit::kBest) {
      unit = group_count == 1 ? DecodeUnit::kLanes : DecodeUnit::kTensorCores;
    }
    const std::vector<float> o = FirstHeads(reference_.o, shape().head_dim, group_count);
    const std::vector<float> lse2 = FirstHeads(reference_.lse2, 1, group_count);
    const double n = static_cast<double>(*std::max_element(lengths_.begin(), lengths_.end()));
    const double norms = softmax_scale() * std::log2(std::exp(1.0)) * QueryNorm() * magnitudes_.k;
    double logit = 0x1p-24 * (2 * shape().head_dim + 320) * norms;
    double weight = 0;
    if (unit == DecodeUnit::kTensorCores) {
      logit = 4 * logit + 0x1p-17 * norms;
      weight = 0x1p-17 + (pages_.HaveCodes() ? 0x1p-12 * std::sqrt(shape().head_dim) : 0);
    }
    const double bound = magnitudes_.v * (2 * (logit + 0x1p-20 + (n + 64) * 0x1p-24) + weight);
    double used = 0;
    EXPECT_EQ(states.o.size(), o.size());
    for (size_t i = 0; i < o.size(); ++i) {
      const double error = std::fabs(states.o[i] - o[i]);
      EXPECT_LE(error, bound) << "element " << i;
      if (!(error <= bound)) return 1;  // one is enough
      used = std::max(used, error / bound);
    }
    for (size_t i = 0; i < lse2.size(); ++i) {
      const double lse_bound = logit + 0x1p-20 * (1 + std::fabs(lse2[i])) + n * 0x1p-24;
      EXPECT_LE(std::fabs(states.lse2[i] - lse2[i]), lse_bound) << "row " << i;
    }
    return used;
  }

  const PageShape& shape() const { return pages_.shape(); }
  float softmax_scale() const { return 1.0f / std::sqrt(static_cast<float>(shape().head_dim)); }

 private:
  void AppendReference(int64_t length, int32_t head) {
    const std::vector<PageTile> tiles = pages_.HostTiles(length, head);
    const size_t row = reference_.lse2.size();
    const int64_t floats = int64_t{group_max_} * shape().head_dim;
    reference_.lse2.resize(row + group_max_);
    reference_.o.resize(reference_.lse2.size() * shape().head_dim);
    AttentionParams p;
    p.q = &q_[row * shape().head_dim];
    p.out = &reference_.o[row * shape().head_dim];
    p.q_stride = p.out_stride = floats;
    p.lse2 = &reference_.lse2[row];
    p.query_count = 1;
    p.group_count = group_max_;
    p.head_dim = shape().head_dim;
    p.page_tokens = shape().page_tokens;
    p.first_position = length - 1;
    p.softmax_scale = softmax_scale();
    p.pages = tiles;
    PAGODA_EXPECT_OK(AttentionRef(p));
  }

  // Of [..][group_max][width], the first group_count.
  std::vector<float> FirstHeads(const std::vector<float>& all, int64_t width,
                                int32_t group_count) const {
    std::vector<float> some;
    const int64_t whole = group_max_ * width;
    for (auto at = all.begin(); at != all.end(); at += whole) {
      some.insert(some.end(), at, at + group_count * width);
    }
    return some;
  }

  double QueryNorm() const {
    double greatest = 0;
    for (size_t row = 0; row < q_.size(); row += shape().head_dim) {
      double norm = 0;
      for (int32_t c = 0; c < shape().head_dim; ++c) norm += std::pow(q_[row + c], 2);
      greatest = std::max(greatest, std::sqrt(norm));
    }
    return greatest;
  }

  const DecodePages& pages_;
  std::vector<int64_t> lengths_;
  int32_t group_max_;
  std::mt19937 random_;
  std::vector<float> q_;
  States reference_;
  Magnitudes magnitudes_;
};

}  // namespace pagoda::kernels::cuda
