// Goal: the device encodes to the bytes of EncodeTileRef, refuses what it refuses, and decodes
// within the bound of codec.h. Method: random tiles of every head_dim and page size, rows of zeros
// and of extreme magnitudes, both rates; rows to float and bf16 in two layouts.
#include "kernels/cuda/codec_cuda.h"

#include <cmath>
#include <limits>

#include "kernels/cuda/testing/device_page.h"
#include "kernels/hadamard.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels::cuda {
namespace {

constexpr std::pair<int32_t, int32_t> kShapes[] = {
    {64, 64}, {80, 32}, {96, 64}, {128, 128}, {256, 256}};

// One tile's outputs one after another, as words of 16 bits.
struct EncodedTile {
  EncodedTile(int32_t head_dim, int32_t page_tokens, bool with_lo) : lo(with_lo) {
    const PageShape shape{1, 1, head_dim, page_tokens};
    for (const PlaneId plane : {PlaneId::kKHi, PlaneId::kVHi, PlaneId::kKLo, PlaneId::kVLo}) {
      const TileBytes bytes = TileBytesOf(plane, shape);
      offsets.push_back(size);
      offsets.push_back(size + bytes.first / 2);
      size += (bytes.first + bytes.second) / 2;
    }
  }
  EncodeTileParams Params(const uint16_t* k, const uint16_t* v, const PageShape& shape,
                          uint16_t* base) const {
    const auto codes = [&](int i) { return reinterpret_cast<uint32_t*>(base + offsets[i]); };
    EncodeTileParams p = {k, v, shape.head_dim, shape.page_tokens};
    p.k_hi_params = base + offsets[0];
    p.k_hi = codes(1);
    p.v_hi_params = base + offsets[2];
    p.v_hi = codes(3);
    if (!lo) return p;
    p.k_lo_params = base + offsets[4];
    p.k_lo = codes(5);
    p.v_lo_params = base + offsets[6];
    p.v_lo = codes(7);
    return p;
  }
  bool lo;
  std::vector<int64_t> offsets;
  int64_t size = 0;
};

std::vector<uint16_t> RowsOf(const uint16_t* rows, const PageShape& shape) {
  return {rows, rows + int64_t{shape.page_tokens} * shape.head_dim};
}

struct EncodeResult {
  std::vector<uint16_t> bytes;
  bool refused;
};

EncodeResult EncodeOnDevice(const std::vector<uint16_t>& k, const std::vector<uint16_t>& v,
                            const PageShape& shape, bool lo) {
  const EncodedTile layout(shape.head_dim, shape.page_tokens, lo);
  const DeviceVector<uint16_t> device_k(k);
  const DeviceVector<uint16_t> device_v(v);
  DeviceVector<uint16_t> output(static_cast<size_t>(layout.size));
  const DeviceVector<EncodeTileParams> tiles(std::vector<EncodeTileParams>{
      layout.Params(device_k.data(), device_v.data(), shape, output.data())});
  DeviceVector<uint32_t> refused(1);
  PAGODA_EXPECT_OK(EncodeTilesCuda(
      {tiles.data(), refused.data(), 1, shape.head_dim, shape.page_tokens}, nullptr));
  return {output.ToHost(), refused.ToHost()[0] != 0};
}

EncodeResult EncodeByRef(const std::vector<uint16_t>& k, const std::vector<uint16_t>& v,
                         const PageShape& shape, bool lo) {
  const EncodedTile layout(shape.head_dim, shape.page_tokens, lo);
  AlignedBuffer output(2 * layout.size);
  auto* words = reinterpret_cast<uint16_t*>(output.data());
  const bool ok = EncodeTileRef(layout.Params(k.data(), v.data(), shape, words)).ok();
  return {{words, words + layout.size}, !ok};
}

TEST(EncodeCudaTest, BytesAreThoseOfTheSpecification) {
  for (const auto& [head_dim, page_tokens] : kShapes) {
    SCOPED_TRACE(head_dim);
    const PageShape shape{1, 1, head_dim, page_tokens};
    TestPage page = RandomRawPage(shape, 64, static_cast<uint32_t>(head_dim));
    const auto [raw_k, raw_v] = RawRows(page, 0, 0);
    std::vector<uint16_t> k = RowsOf(raw_k, shape);
    std::vector<uint16_t> v = RowsOf(raw_v, shape);
    // Rows of zeros, of tiny and of the greatest values.
    for (int32_t c = 0; c < head_dim; ++c) {
      v[c] = 0;
      v[head_dim + c] = Bf16FromFloat(1e-9f * static_cast<float>(c));
      v[2 * head_dim + c] = Bf16FromFloat(c % 3 == 0 ? 8000.0f : -7.0f);
      k[5 * head_dim + c] = 0x8000;  // -0
    }
    for (const bool lo : {false, true}) {
      const EncodeResult device = EncodeOnDevice(k, v, shape, lo);
      const EncodeResult ref = EncodeByRef(k, v, shape, lo);
      EXPECT_FALSE(device.refused);
      EXPECT_FALSE(ref.refused);
      EXPECT_EQ(device.bytes, ref.bytes) << "lo " << lo;
    }
  }
}

TEST(EncodeCudaTest, RefusesWhatTheSpecificationRefuses) {
  const PageShape shape{1, 1, 64, 64};
  const std::vector<uint16_t> zeros(64 * 64);
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad :
       {infinity, -infinity, std::numeric_limits<float>::quiet_NaN(), 140000.0f}) {
    std::vector<uint16_t> rows = zeros;
    rows[37 * 64 + 11] = Bf16FromFloat(bad);
    EXPECT_TRUE(EncodeOnDevice(rows, zeros, shape, true).refused) << bad;
    EXPECT_TRUE(EncodeOnDevice(zeros, rows, shape, true).refused) << bad;
  }
  // In range, but not when rotated: the row's energy meets in one channel.
  std::vector<uint16_t> row = zeros;
  for (int32_t c = 0; c < 64; ++c) {
    row[c] = Bf16FromFloat(IsFlippedChannel(c) ? -100000.0f : 100000.0f);
  }
  EXPECT_TRUE(EncodeByRef(zeros, row, shape, true).refused);
  EXPECT_TRUE(EncodeOnDevice(zeros, row, shape, true).refused);
  // A mean that fp16 does not hold.
  std::vector<uint16_t> rows(64 * 64, Bf16FromFloat(0.0f));
  for (int32_t t = 0; t < 64; ++t) std::copy_n(row.begin(), 64, rows.begin() + t * 64);
  EXPECT_TRUE(EncodeByRef(rows, zeros, shape, true).refused);
  EXPECT_TRUE(EncodeOnDevice(rows, zeros, shape, true).refused);
  EXPECT_FALSE(EncodeOnDevice(zeros, zeros, shape, true).refused);
}

// Rows of all heads of a page, from the device and by the specification.
struct Rows {
  std::vector<float> k;  // [head][token][channel]
  std::vector<float> v;
};

template <typename Element>
Rows DequantizeOnDevice(const DevicePage& page, const PageShape& shape, int32_t token_count,
                        bool tokens_first) {
  PageTile tile = page.view().tile(shape.layer_count - 1, 0);
  if (tile.precision == Precision::kRaw16) tile.token_count = token_count;
  const DeviceVector<PageTile> tiles(std::vector<PageTile>{tile});
  const int64_t offset = 3 * shape.head_dim;
  const DeviceVector<int64_t> offsets(std::vector<int64_t>{offset});
  const auto size = int64_t{shape.head_count} * shape.page_tokens * shape.head_dim;
  DeviceVector<Element> k(static_cast<size_t>(offset + size));
  DeviceVector<Element> v(static_cast<size_t>(offset + size));
  DequantizeParams p;
  p.tiles = tiles.data();
  p.target_offset = offsets.data();
  p.k = k.data();
  p.v = v.data();
  p.head_stride = int64_t{shape.head_dim} * (tokens_first ? 1 : shape.page_tokens);
  p.token_stride = int64_t{shape.head_dim} * (tokens_first ? shape.head_count : 1);
  p.tile_count = 1;
  p.kv_head_count = shape.head_count;
  p.head_dim = shape.head_dim;
  p.page_tokens = shape.page_tokens;
  p.row_type = sizeof(Element) == 4 ? RowType::kFloat : RowType::kBf16;
  PAGODA_EXPECT_OK(DequantizeTilesCuda(p, nullptr));
  Rows rows;
  for (const auto& [device, host] : {std::pair(&k, &rows.k), std::pair(&v, &rows.v)}) {
    const std::vector<Element> all = device->ToHost();
    for (int32_t head = 0; head < shape.head_count; ++head) {
      for (int32_t t = 0; t < shape.page_tokens; ++t) {
        const int64_t at = offset + head * p.head_stride + t * p.token_stride;
        for (int32_t c = 0; c < shape.head_dim; ++c) {
          if constexpr (sizeof(Element) == 4) {
            host->push_back(all[at + c]);
          } else {
            host->push_back(FloatFromBf16(all[at + c]));
          }
        }
      }
    }
  }
  return rows;
}

// The bound of codec.h, and half a unit of bf16's last place where rows are bf16.
void ExpectRows(const TestPage& page, int32_t token_count, const Rows& rows, bool bf16) {
  const PageShape& shape = page.shape;
  const int32_t dim = shape.head_dim;
  for (int32_t head = 0; head < shape.head_count; ++head) {
    PageTile tile = page.view().tile(shape.layer_count - 1, head);
    if (tile.precision == Precision::kRaw16) tile.token_count = token_count;
    std::vector<double> k(static_cast<size_t>(tile.token_count * dim));
    std::vector<double> v(k.size());
    PAGODA_ASSERT_OK(DecodeTileRef(tile, shape, k.data(), v.data()));
    double mu = 0;
    for (int32_t c = 0; tile.k_hi_params != nullptr && c < dim; ++c) {
      mu += std::pow(FloatFromFp16(tile.k_hi_params[c]), 2);
    }
    for (int32_t t = 0; t < tile.token_count; ++t) {
      for (const auto& [ref, out] : {std::pair(&k, &rows.k), std::pair(&v, &rows.v)}) {
        double norm = 0;
        for (int32_t c = 0; c < dim; ++c) norm += std::pow((*ref)[t * dim + c], 2);
        const double bound = (std::log2(dim) + 5) * 0x1p-24 * (std::sqrt(norm) + std::sqrt(mu));
        for (int32_t c = 0; c < dim; ++c) {
          const double want = (*ref)[t * dim + c];
          const double got = (*out)[(int64_t{head} * shape.page_tokens + t) * dim + c];
          const double rounding = bf16 ? 0x1p-8 * std::fabs(want) : 0;
          ASSERT_LE(std::fabs(got - want), 1.01 * bound + rounding) << "token " << t;
        }
      }
    }
  }
}

TEST(DequantizeCudaTest, RowsAreThoseOfTheSpecification) {
  for (const auto& [head_dim, page_tokens] : kShapes) {
    const PageShape shape{2, 2, head_dim, page_tokens};
    const TestPage raw = RandomRawPage(shape, 0, static_cast<uint32_t>(head_dim));
    for (const Precision precision : {Precision::kRaw16, Precision::kQ8, Precision::kQ4}) {
      SCOPED_TRACE(testing::Message() << head_dim << " " << PrecisionName(precision));
      const bool is_raw = precision == Precision::kRaw16;
      const TestPage encoded = is_raw ? TestPage{} : EncodedPage(raw, precision);
      const TestPage& page = is_raw ? raw : encoded;
      const DevicePage device(page);
      const int32_t tokens = is_raw ? page_tokens - 7 : page_tokens;
      ExpectRows(page, tokens, DequantizeOnDevice<float>(device, shape, tokens, false), false);
      ExpectRows(page, tokens, DequantizeOnDevice<uint16_t>(device, shape, tokens, true), true);
      if (HasFatalFailure()) return;
    }
  }
}

TEST(DequantizeCudaTest, RowsPastTheTokenCountAreNotWritten) {
  const PageShape shape{1, 1, 64, 64};
  const DevicePage device(RandomRawPage(shape, 0, 1));
  const Rows rows = DequantizeOnDevice<float>(device, shape, 33, false);
  for (size_t i = 33 * 64; i < rows.k.size(); ++i) ASSERT_EQ(rows.k[i], 0.0f);
}

TEST(CodecCudaTest, WrongCallsAreRefused) {
  DeviceVector<EncodeTileParams> tiles(1);
  DeviceVector<uint32_t> refused(1);
  for (const EncodeParams& p : {EncodeParams{nullptr, refused.data(), 1, 64, 64},
                                EncodeParams{tiles.data(), nullptr, 1, 64, 64},
                                EncodeParams{tiles.data(), refused.data(), 0, 64, 64},
                                EncodeParams{tiles.data(), refused.data(), 1, 72, 64},
                                EncodeParams{tiles.data(), refused.data(), 1, 64, 40}}) {
    EXPECT_THAT(EncodeTilesCuda(p, nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
  }
  DequantizeParams p;
  p.head_dim = p.page_tokens = 64;
  p.tile_count = p.kv_head_count = 1;
  EXPECT_THAT(DequantizeTilesCuda(p, nullptr), StatusIs(absl::StatusCode::kInvalidArgument));
}

}  // namespace
}  // namespace pagoda::kernels::cuda
