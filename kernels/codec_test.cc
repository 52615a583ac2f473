// Goal: encoded bytes are exactly those of the recipe on every target, errors stay within the
// header's bounds, and what cannot be encoded is refused. Method: the twins byte for byte, and a
// third, plain implementation of the recipe and of the layout written here from their texts.
#include "kernels/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/hadamard.h"
#include "kernels/testing/each_target.h"
#include "kernels/testing/random_page.h"
#include "storage/base/crc32c.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels {
namespace {

const std::vector<PageShape> kShapes = {{1, 1, 64, 64},  {2, 3, 64, 64},  {1, 2, 80, 32},
                                        {1, 1, 96, 128}, {1, 2, 128, 64}, {1, 1, 256, 32},
                                        {1, 1, 64, 256}, {1, 1, 16, 32},  {1, 1, 24, 32},
                                        {1, 1, 120, 64}, {1, 1, 248, 32}, {3, 2, 112, 32}};

// ---- A plain reading of the layout and the recipe, one element at a time

int NibbleAt(const uint32_t* words, int64_t word, int element) {
  const auto* bytes = reinterpret_cast<const uint8_t*>(words + word);
  const uint8_t byte = bytes[element % 4];
  return element < 4 ? byte & 15 : byte >> 4;
}
int KeyNibble(const uint32_t* words, int head_dim, int c, int t) {
  return NibbleAt(words, (t / 32 * (head_dim / 8) + c / 8) * 32 + t % 32, c % 8);
}
int ValueNibble(const uint32_t* words, int head_dim, int c, int t) {
  const int blocks = (head_dim + 31) / 32;
  return NibbleAt(words, ((t / 32 * blocks + c / 32) * 4 + t % 32 / 8) * 32 + c % 32, t % 8);
}

// Channel runs that share a scale, from the words "powers of two, the largest first, at most 64".
std::vector<int> GroupBegins(int head_dim) {
  std::vector<int> begins;
  int at = 0;
  for (int left = head_dim; left > 0;) {
    int block = 256;
    while (block > left) block /= 2;
    for (int i = 0; i < block; i += 64) begins.push_back(at + i);
    at += block;
    left -= block;
  }
  begins.push_back(head_dim);
  return begins;
}

struct ExpectedGroup {
  std::vector<int> codes;
  uint16_t a4;
  uint16_t stored_a8;
};
ExpectedGroup CodeOf(const float* y, int count, bool is_k) {
  ExpectedGroup group;
  float m = 1e-12f;
  for (int i = 0; i < count; ++i) m = std::max(m, std::fabs(y[i]));
  const float inv = 127.5f / m;
  // volatile: this file may be compiled with contraction, the recipe is not.
  volatile float yy = 0, yl[2] = {0, 0}, ll[2] = {0, 0};
  for (int i = 0; i < count; ++i) {
    const float code = std::min(127.0f, std::max(-128.0f, std::floor(y[i] * inv)));
    group.codes.push_back(static_cast<int>(code) + 128);
    const float levels[2] = {code + 0.5f, std::floor(code / 16) + 0.5f};
    volatile float product = y[i] * y[i];
    yy = yy + product;
    for (int rate = 0; rate < 2; ++rate) {
      product = y[i] * levels[rate];
      yl[rate] = yl[rate] + product;
      product = levels[rate] * levels[rate];
      ll[rate] = ll[rate] + product;
    }
  }
  float scales[2];
  for (int rate = 0; rate < 2; ++rate) {
    scales[rate] = is_k ? yy / std::max(float{yl[rate]}, 1e-20f) : yl[rate] / ll[rate];
  }
  group.stored_a8 = Fp16FromFloat(16 * scales[0]);
  group.a4 = Fp16FromFloat(scales[1]);
  return group;
}

void ExpectTensor(const uint16_t* raw, bool is_k, const PageTile& tile, const PageShape& shape) {
  const int dim = shape.head_dim;
  const std::vector<int> begins = GroupBegins(dim);
  std::vector<float> mean(dim, 0.0f);
  if (is_k) {
    for (int t = 0; t < shape.page_tokens; ++t) {
      for (int c = 0; c < dim; ++c) mean[c] += FloatFromBf16(raw[t * dim + c]);
    }
    for (float& x : mean) x /= static_cast<float>(shape.page_tokens);
    RotateForward(mean.data(), dim);
    for (int c = 0; c < dim; ++c) {
      ASSERT_EQ(tile.k_hi_params[c], Fp16FromFloat(mean[c])) << "mean of channel " << c;
      mean[c] = FloatFromFp16(tile.k_hi_params[c]);
    }
  }
  const uint16_t* a4 = is_k ? tile.k_hi_params + (dim + 31) / 32 * 32 : tile.v_hi_params;
  const uint16_t* a8 = is_k ? tile.k_lo_params : tile.v_lo_params;
  for (int t = 0; t < shape.page_tokens; ++t) {
    std::vector<float> y(dim);
    for (int c = 0; c < dim; ++c) y[c] = FloatFromBf16(raw[t * dim + c]);
    RotateForward(y.data(), dim);
    for (int c = 0; c < dim; ++c) y[c] -= mean[c];
    for (size_t g = 0; g + 1 < begins.size(); ++g) {
      const ExpectedGroup expected = CodeOf(&y[begins[g]], begins[g + 1] - begins[g], is_k);
      ASSERT_EQ(a4[g * shape.page_tokens + t], expected.a4) << "token " << t << " group " << g;
      ASSERT_EQ(a8[g * shape.page_tokens + t], expected.stored_a8) << "token " << t;
      for (int c = begins[g]; c < begins[g + 1]; ++c) {
        const int hi = is_k ? KeyNibble(tile.k_hi, dim, c, t) : ValueNibble(tile.v_hi, dim, c, t);
        const int lo = is_k ? KeyNibble(tile.k_lo, dim, c, t) : ValueNibble(tile.v_lo, dim, c, t);
        ASSERT_EQ(hi * 16 + lo, expected.codes[c - begins[g]]) << "token " << t << " channel " << c;
      }
    }
  }
}

TEST(CodecTest, BytesAreThoseOfAPlainReadingOfTheRecipe) {
  for (const PageShape& shape : kShapes) {
    SCOPED_TRACE(shape.head_dim);
    const TestPage raw = RandomRawPage(shape, 0, 7);
    const TestPage q8 = EncodedByRef(raw, Precision::kQ8);
    for (int32_t layer = 0; layer < shape.layer_count; ++layer) {
      for (int32_t head = 0; head < shape.head_count; ++head) {
        const PageTile source = raw.view().tile(layer, head);
        const PageTile tile = q8.view().tile(layer, head);
        ExpectTensor(source.raw_k, /*is_k=*/true, tile, shape);
        ExpectTensor(source.raw_v, /*is_k=*/false, tile, shape);
      }
    }
  }
}

TEST(CodecTest, EveryTargetGivesTheBytesOfTheReference) {
  for (const PageShape& shape : kShapes) {
    const TestPage raw = RandomRawPage(shape, 0, 11);
    for (const Precision precision : {Precision::kQ8, Precision::kQ4}) {
      const TestPage ref = EncodedByRef(raw, precision);
      ForEachTarget([&] {
        const TestPage page = EncodedPage(raw, precision);
        EXPECT_TRUE(BytesOf(page) == BytesOf(ref)) << shape.head_dim << " " << shape.page_tokens;
        EXPECT_EQ(page.header, ref.header);
      });
    }
  }
}

TEST(CodecTest, HiPlanesAreThePrefixOfTheFullCode) {
  const TestPage raw = RandomRawPage({2, 2, 64, 64}, 64, 3);
  const TestPage q8 = EncodedPage(raw, Precision::kQ8);
  const TestPage q4 = EncodedPage(raw, Precision::kQ4);
  EXPECT_EQ(BytesOf(q4), BytesOf(q8).substr(0, BytesOf(q4).size()));
}

TEST(CodecTest, ChecksumsAndPaddingAreOfTheStoredBytes) {
  const TestPage page = EncodedPage(RandomRawPage({2, 3, 64, 64}, 0, 5), Precision::kQ8);
  for (size_t i = 0; i < page.segments.size(); ++i) {
    const SegmentEntry& entry = page.header.segments[i];
    const ByteSpan bytes = page.segments[i].span();
    EXPECT_EQ(entry.crc32c, Crc32c(bytes.subspan(0, entry.length)));
    for (const std::byte b : bytes.subspan(entry.length)) ASSERT_EQ(b, std::byte{0});
  }
}

// ---- Error bounds

// The header's bound for one tensor of one tile, in the rotated frame.
void ExpectWithinBound(const uint16_t* raw, bool is_k, const PageTile& tile,
                       const PageShape& shape) {
  const int dim = shape.head_dim;
  const std::vector<int> begins = GroupBegins(dim);
  const bool both = (is_k ? tile.k_lo : tile.v_lo) != nullptr;
  const uint16_t* a4 = is_k ? tile.k_hi_params + (dim + 31) / 32 * 32 : tile.v_hi_params;
  const uint16_t* a8 = is_k ? tile.k_lo_params : tile.v_lo_params;
  for (int t = 0; t < shape.page_tokens; ++t) {
    std::vector<double> x(dim), y(dim);
    for (int c = 0; c < dim; ++c) x[c] = FloatFromBf16(raw[t * dim + c]);
    RotateForwardRef(x.data(), y.data(), dim);
    for (size_t g = 0; g + 1 < begins.size(); ++g) {
      double m = 1e-12;
      for (int c = begins[g]; c < begins[g + 1]; ++c) {
        if (is_k) y[c] -= FloatFromFp16(tile.k_hi_params[c]);
        m = std::max(m, std::fabs(y[c]));
      }
      const double step = (both ? 1 : 16) * m / 127.5;
      const double scale = both ? FloatFromFp16(a8[g * shape.page_tokens + t]) / 16.0
                                : FloatFromFp16(a4[g * shape.page_tokens + t]);
      const double bound =
          0.5 * step + 2 * m * std::fabs(scale / step - 1) + m * 0x1p-10 + 8 * 0x1p-24;
      for (int c = begins[g]; c < begins[g + 1]; ++c) {
        const int hi = is_k ? KeyNibble(tile.k_hi, dim, c, t) : ValueNibble(tile.v_hi, dim, c, t);
        double level = hi - 7.5;
        if (both) {
          level = hi * 16 - 127.5 +
                  (is_k ? KeyNibble(tile.k_lo, dim, c, t) : ValueNibble(tile.v_lo, dim, c, t));
        }
        ASSERT_LE(std::fabs(y[c] - level * scale), bound) << "token " << t << " channel " << c;
      }
      EXPECT_LE(scale, 2 * step + 0x1p-24);
    }
  }
}

TEST(CodecTest, ErrorsStayWithinTheBound) {
  for (const PageShape& shape : kShapes) {
    const TestPage raw = RandomRawPage(shape, 64, 13);
    for (const Precision precision : {Precision::kQ8, Precision::kQ4}) {
      const TestPage page = EncodedPage(raw, precision);
      const PageTile source = raw.view().tile(0, 0);
      const PageTile tile = page.view().tile(0, 0);
      ExpectWithinBound(source.raw_k, true, tile, shape);
      ExpectWithinBound(source.raw_v, false, tile, shape);
    }
  }
}

double RelativeError(const TestPage& raw, const TestPage& page) {
  const int64_t size = int64_t{raw.shape.page_tokens} * raw.shape.head_dim;
  std::vector<double> k(size), v(size), k0(size), v0(size);
  PAGODA_EXPECT_OK(DecodeTileRef(raw.view().tile(0, 0), raw.shape, k0.data(), v0.data()));
  PAGODA_EXPECT_OK(DecodeTileRef(page.view().tile(0, 0), raw.shape, k.data(), v.data()));
  double error = 0, energy = 0;
  for (int64_t i = 0; i < size; ++i) {
    error += (v[i] - v0[i]) * (v[i] - v0[i]);
    energy += v0[i] * v0[i];
  }
  return error / energy;
}

TEST(CodecTest, ErrorEnergyIsThatOfTheMeasuredRecipe) {
  const TestPage raw = RandomRawPage({1, 1, 64, 64}, 64, 17);
  EXPECT_NEAR(RelativeError(raw, EncodedPage(raw, Precision::kQ4)), 8.9e-3, 1.5e-3);
  EXPECT_NEAR(RelativeError(raw, EncodedPage(raw, Precision::kQ8)), 3.4e-5, 0.6e-5);
}

// ---- Decoding

TEST(CodecTest, DecodersAgreeWithinTheBoundOnEveryTarget) {
  for (const PageShape& shape : kShapes) {
    const TestPage raw = RandomRawPage(shape, 0, 19);
    for (const Precision precision : {Precision::kRaw16, Precision::kQ8, Precision::kQ4}) {
      const TestPage encoded =
          EncodedPage(raw, precision == Precision::kQ4 ? Precision::kQ4 : Precision::kQ8);
      PageTile tile =
          precision == Precision::kRaw16 ? raw.view().tile(0, 0) : encoded.view().tile(0, 0);
      tile.token_count = shape.page_tokens - 5;
      const int64_t size = int64_t{tile.token_count} * shape.head_dim;
      std::vector<double> k(size), v(size);
      PAGODA_ASSERT_OK(DecodeTileRef(tile, shape, k.data(), v.data()));
      double mean_norm = 0;
      for (int c = 0; tile.k_hi_params != nullptr && c < shape.head_dim; ++c) {
        mean_norm += std::pow(FloatFromFp16(tile.k_hi_params[c]), 2);
      }
      ForEachTarget([&] {
        std::vector<float> k_cpu(size), v_cpu(size);
        PAGODA_ASSERT_OK(DecodeTileCpu(tile, shape, k_cpu.data(), v_cpu.data()));
        for (int t = 0; t < tile.token_count; ++t) {
          double k_norm = 0, v_norm = 0;
          for (int c = 0; c < shape.head_dim; ++c) {
            k_norm += std::pow(k[t * shape.head_dim + c], 2);
            v_norm += std::pow(v[t * shape.head_dim + c], 2);
          }
          const double unit = (std::log2(shape.head_dim) + 5) * 0x1p-24;
          for (int i = t * shape.head_dim; i < (t + 1) * shape.head_dim; ++i) {
            ASSERT_LE(std::fabs(k_cpu[i] - k[i]),
                      unit * (std::sqrt(k_norm) + std::sqrt(mean_norm)));
            ASSERT_LE(std::fabs(v_cpu[i] - v[i]), unit * std::sqrt(v_norm));
          }
        }
      });
    }
  }
}

TEST(CodecTest, SinkRowsAreExactOnPageZeroOnly) {
  const PageShape shape{2, 2, 64, 64};
  const TestPage raw = RandomRawPage(shape, 0, 23);
  const TestPage q4 = EncodedPage(raw, Precision::kQ4);
  const PageTile source = raw.view().tile(1, 1);
  const PageTile tile = q4.view().tile(1, 1);
  ASSERT_EQ(tile.sink_count, kSinkTokens);
  std::vector<float> k(64 * 64), v(64 * 64);
  PAGODA_ASSERT_OK(DecodeTileCpu(tile, shape, k.data(), v.data()));
  for (int i = 0; i < kSinkTokens * 64; ++i) {
    EXPECT_EQ(k[i], FloatFromBf16(source.raw_k[i]));
    EXPECT_EQ(v[i], FloatFromBf16(source.raw_v[i]));
  }
  EXPECT_NE(k[kSinkTokens * 64], FloatFromBf16(source.raw_k[kSinkTokens * 64]));
  const TestPage later = EncodedPage(RandomRawPage(shape, 64, 23), Precision::kQ4);
  EXPECT_EQ(later.view().tile(0, 0).sink_count, 0);
}

// ---- Unusual input

// A page whose rows all hold value(channel, token).
template <typename F>
TestPage Filled(const PageShape& shape, F value) {
  TestPage page = EmptyRawPage(shape, 64);
  const auto [k, v] = RawRows(page, 0, 0);
  for (int t = 0; t < shape.page_tokens; ++t) {
    for (int c = 0; c < shape.head_dim; ++c) {
      k[t * shape.head_dim + c] = v[t * shape.head_dim + c] = Bf16FromFloat(value(c, t));
    }
  }
  return page;
}

TEST(CodecTest, ZeroConstantTinyAndLargePagesEncodeAlikeEverywhere) {
  const PageShape shape{1, 1, 64, 64};
  const std::vector<TestPage> pages = [&] {
    std::vector<TestPage> made;
    made.push_back(Filled(shape, [](int, int) { return 0.0f; }));
    made.push_back(Filled(shape, [](int, int) { return -3.25f; }));
    made.push_back(Filled(shape, [](int c, int t) { return c == t ? 1e-39f : -1e-40f; }));
    made.push_back(Filled(shape, [](int c, int t) { return ((c * 7 + t) % 13 - 6) * 1e-13f; }));
    made.push_back(Filled(shape, [](int c, int t) { return c == 5 && t == 9 ? 131072.0f : 1.0f; }));
    return made;
  }();
  for (size_t i = 0; i < pages.size(); ++i) {
    SCOPED_TRACE(i);
    const TestPage ref = EncodedByRef(pages[i], Precision::kQ8);
    ForEachTarget(
        [&] { EXPECT_TRUE(BytesOf(EncodedPage(pages[i], Precision::kQ8)) == BytesOf(ref)); });
    ExpectWithinBound(pages[i].view().tile(0, 0).raw_v, false, ref.view().tile(0, 0), shape);
  }
  std::vector<double> k(64 * 64), v(64 * 64);
  PAGODA_ASSERT_OK(DecodeTileRef(EncodedByRef(pages[0], Precision::kQ8).view().tile(0, 0), shape,
                                 k.data(), v.data()));
  for (const double x : k) ASSERT_EQ(x, 0);  // a page of zeros comes back as zeros
  for (const double x : v) ASSERT_EQ(x, 0);
}

// A profile's page is the same bytes from raw16, from q8 and from a page that keeps more.
TEST(CodecTest, CuttingPlanesGivesWhatEncodingGives) {
  const std::vector<std::pair<PageShape, std::vector<int32_t>>> cases = {
      {{7, 2, 64, 64}, {}},         {{7, 2, 64, 64}, {0}},         {{7, 2, 80, 32}, {1, 2, 5}},
      {{7, 3, 128, 64}, {2, 3, 6}}, {{9, 8, 128, 128}, {3, 4, 5}}, {{3, 1, 24, 32}, {0, 1, 2}}};
  for (const auto& [shape, layers] : cases) {
    for (const int64_t base : {0, 4096}) {
      const TestPage raw = RandomRawPage(shape, base, 61);
      const TestPage wanted = EncodedPage(raw, Precision::kQ4, layers);
      EXPECT_EQ(PrecisionOf(wanted.header.planes), Precision::kQ4);
      const TestPage q8 = EncodedPage(raw, Precision::kQ8);
      std::vector<int32_t> every_layer(static_cast<size_t>(shape.layer_count));
      std::iota(every_layer.begin(), every_layer.end(), 0);
      const TestPage more = EncodedPage(raw, Precision::kQ4, every_layer);
      for (const TestPage* source : {&q8, &more, &wanted}) {
        const TestPage cut = CutOf(*source, Precision::kQ4, layers);
        EXPECT_EQ(cut.header, wanted.header);  // checksums too
        EXPECT_TRUE(BytesOf(cut) == BytesOf(wanted));
      }
      EXPECT_TRUE(BytesOf(EncodedByRef(raw, Precision::kQ4, layers)) == BytesOf(wanted));
    }
  }
  const TestPage raw = RandomRawPage({4, 1, 64, 32}, 0, 62);
  constexpr int32_t kOne[] = {1};
  constexpr int32_t kTwo[] = {1, 2};
  const auto kMissing = absl::StatusCode::kFailedPrecondition;
  EXPECT_THAT(PlanCutHeader(EncodedPage(raw, Precision::kQ4, kOne).header, Precision::kQ4, kTwo),
              StatusIs(kMissing, "no K bits 0+4 of layer 2"));
  EXPECT_THAT(PlanCutHeader(raw.header, Precision::kQ4),
              StatusIs(kMissing, "no K bits 4+4 of layer 0"));
  EXPECT_THAT(PlanCutHeader(EncodedPage(raw, Precision::kQ2).header, Precision::kQ3),
              StatusIs(kMissing, "no K bits 5+3 of layer 0"));
  EXPECT_THAT(PlanCutHeader(raw.header, Precision::kRaw16),
              StatusIs(absl::StatusCode::kInvalidArgument, "must be q8, q4, q3 or q2"));
}

TEST(CodecTest, WhatCannotBeEncodedIsRefused) {
  const PageShape shape{1, 1, 64, 32};
  const float infinity = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const float bad : {infinity, -infinity, nan, 132096.0f, -3e38f}) {
    for (const bool in_k : {true, false}) {
      TestPage raw = RandomRawPage(shape, 0, 29);
      const auto [k, v] = RawRows(raw, 0, 0);
      (in_k ? k : v)[31 * 64 + 63] = Bf16FromFloat(bad);
      TestPage target;
      target.header = PlanEncodedHeader(raw.header, Precision::kQ8).value();
      target.segments = AllocateSegments(target.header);
      for (const auto encode : {EncodePage, EncodePageRef}) {
        EXPECT_THAT(encode(raw.header, raw.spans(), target.header, target.mutable_spans()),
                    StatusIs(absl::StatusCode::kInvalidArgument, "the codec holds up to"));
      }
    }
  }
  // Each element is fine, their rotated sum is not; then a mean that fp16 cannot hold.
  for (const float each : {130000.0f, 16000.0f}) {
    const TestPage raw =
        Filled(shape, [&](int c, int) { return IsFlippedChannel(c) ? -each : each; });
    TestPage target;
    target.header = PlanEncodedHeader(raw.header, Precision::kQ4).value();
    target.segments = AllocateSegments(target.header);
    for (const auto encode : {EncodePage, EncodePageRef}) {
      EXPECT_THAT(encode(raw.header, raw.spans(), target.header, target.mutable_spans()),
                  StatusIs(absl::StatusCode::kInvalidArgument, "above fp16"));
    }
  }
  const TestPage loud_v = [&] {
    TestPage page = Filled(shape, [&](int c, int) { return IsFlippedChannel(c) ? -2e4f : 2e4f; });
    const auto [k, v] = RawRows(page, 0, 0);
    std::fill_n(k, 64 * 32, uint16_t{0});
    return page;
  }();
  TestPage target;
  target.header = PlanEncodedHeader(loud_v.header, Precision::kQ4).value();
  target.segments = AllocateSegments(target.header);
  for (const auto encode : {EncodePage, EncodePageRef}) {
    EXPECT_THAT(encode(loud_v.header, loud_v.spans(), target.header, target.mutable_spans()),
                StatusIs(absl::StatusCode::kInvalidArgument, "rotated magnitude 159744"));
  }
}

TEST(CodecTest, WrongCallsAreNamed) {
  const TestPage raw = RandomRawPage({1, 1, 64, 32}, 0, 31);
  EXPECT_THAT(PlanEncodedHeader(raw.header, Precision::kRaw16).status(),
              StatusIs(absl::StatusCode::kInvalidArgument, "must be q8, q4, q3 or q2"));
  TestPage q8 = EncodedPage(raw, Precision::kQ8);
  EXPECT_THAT(PlanEncodedHeader(q8.header, Precision::kQ4).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition));  // never encode from codes
  EXPECT_THAT(EncodePage(q8.header, q8.spans(), q8.header, q8.mutable_spans()),
              StatusIs(absl::StatusCode::kFailedPrecondition, "not a complete raw16 page"));
  PageHeader raw_target = raw.header;
  TestPage other = RandomRawPage({1, 1, 64, 32}, 0, 32);
  EXPECT_THAT(EncodePage(raw.header, raw.spans(), raw_target, other.mutable_spans()),
              StatusIs(absl::StatusCode::kFailedPrecondition, "not those of q8 to q2"));
  auto spans = q8.mutable_spans();
  spans.pop_back();
  EXPECT_THAT(EncodePage(raw.header, raw.spans(), q8.header, spans),
              StatusIs(absl::StatusCode::kInvalidArgument, "target spans"));
  spans = q8.mutable_spans();
  spans[1] = spans[1].subspan(0, spans[1].size() - 1);
  EXPECT_THAT(EncodePage(raw.header, raw.spans(), q8.header, spans),
              StatusIs(absl::StatusCode::kInvalidArgument, "target span 1"));

  PageTile tile = q8.view().tile(0, 0);
  const PageShape& shape = q8.shape;
  std::vector<float> k(64 * 32), v(64 * 32);
  tile.token_count = 33;
  EXPECT_THAT(DecodeTileCpu(tile, shape, k.data(), v.data()),
              StatusIs(absl::StatusCode::kInvalidArgument, "33 tokens"));
  tile = q8.view().tile(0, 0);
  tile.v_lo = nullptr;
  EXPECT_THAT(DecodeTileCpu(tile, shape, k.data(), v.data()),
              StatusIs(absl::StatusCode::kInvalidArgument, "q8 are missing"));
  tile = raw.view().tile(0, 0);
  ++tile.raw_k;
  EXPECT_THAT(DecodeTileCpu(tile, shape, k.data(), v.data()),
              StatusIs(absl::StatusCode::kInvalidArgument, "misaligned"));
}

}  // namespace
}  // namespace pagoda::kernels
