// Goal: q3 and q2 are the upper bits of hi under scales of their own, the same bytes by every way
// down and on every target, and read as what they say. Method: a plain reading of top_codes.h,
// element by element; pages cut from each richer form; the energy of the error; scales at the edge.
#include "kernels/top_codes.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "kernels/codec.h"
#include "kernels/testing/each_target.h"
#include "kernels/testing/random_page.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels {
namespace {

const std::vector<PageShape>& Shapes() {
  static const auto* const kShapes =
      new std::vector<PageShape>{{3, 2, 64, 64},   {2, 1, 80, 32}, {1, 3, 24, 32}, {2, 2, 128, 128},
                                 {1, 1, 256, 256}, {5, 1, 16, 32}, {1, 2, 40, 64}};
  return *kShapes;
}

// The code of a channel and a token in hi's layout.
int CodeAt(const uint32_t* words, const PageShape& shape, bool is_k, int c, int t) {
  const int element = is_k ? c % 8 : t % 8;
  const int64_t v_rows = AlignUp(shape.head_dim, 32) / 32;
  const int64_t word = is_k ? (int64_t{t / 32} * (shape.head_dim / 8) + c / 8) * 32 + t % 32
                            : ((t / 32 * v_rows + c / 32) * 4 + t % 32 / 8) * 32 + c % 32;
  return static_cast<int>(words[word] >> (element % 4 * 8 + element / 4 * 4) & 15);
}

struct Tensors {
  const uint16_t* params;
  const uint32_t* codes;
};
Tensors Of(const PageTile& tile, bool is_k) {
  return is_k ? Tensors{tile.k_hi_params, tile.k_hi} : Tensors{tile.v_hi_params, tile.v_hi};
}

// `poorer` holds what `richer` does without its lowest bit; both widened, of `bits` and bits - 1.
void ExpectCut(const PageTile& richer, const PageTile& poorer, const PageShape& shape, int bits) {
  constexpr int kOffset[] = {0, 0, 6, 4, 0};  // of widened codes, by their bits
  const ChannelGroups groups = GroupsOf(shape.head_dim);
  for (const bool is_k : {true, false}) {
    const Tensors from = Of(richer, is_k);
    const Tensors to = Of(poorer, is_k);
    const int64_t mean_words = is_k ? MeanWords(shape.head_dim) : 0;
    for (int64_t i = 0; i < mean_words; ++i) ASSERT_EQ(to.params[i], from.params[i]);
    for (int t = 0; t < shape.page_tokens; ++t) {
      for (int g = 0; g < groups.count; ++g) {
        double ff = 0;
        double fh = 0;
        double hh = 0;
        for (int c = groups.begin[g]; c < groups.begin[g + 1]; ++c) {
          const int u = CodeAt(from.codes, shape, is_k, c, t) - kOffset[bits];
          const int half = CodeAt(to.codes, shape, is_k, c, t) - kOffset[bits - 1];
          ASSERT_EQ(half, u / 2);
          const double f = 2 * u - ((1 << bits) - 1);
          const double h = 2 * half - ((1 << (bits - 1)) - 1);
          ff += f * f;
          fh += f * h;
          hh += h * h;
        }
        const int64_t at = mean_words + int64_t{g} * shape.page_tokens + t;
        const float a = FloatFromFp16(from.params[at]);
        const auto top = static_cast<float>(is_k ? ff : fh);
        const auto bottom = static_cast<float>(is_k ? fh : hh);
        ASSERT_EQ(to.params[at], Fp16FromFloat(a * top / bottom)) << g << " " << t;
      }
    }
  }
}

TEST(TopCodesTest, CodesAreTheUpperBitsAndScalesFollowFromThem) {
  ForEachTarget([] {
    for (const PageShape& shape : Shapes()) {
      const TestPage raw = RandomRawPage(shape, 0, 71);
      const TestPage q4 = EncodedPage(raw, Precision::kQ4);
      const TestPage q3 = CutOf(q4, Precision::kQ3);
      const TestPage q2 = CutOf(q3, Precision::kQ2);
      const PageView views[] = {q4.view(), q3.view(), q2.view()};
      EXPECT_EQ(views[1].precision(), Precision::kQ3);
      EXPECT_EQ(views[2].precision(), Precision::kQ2);
      for (int32_t layer = 0; layer < shape.layer_count; ++layer) {
        for (int32_t head = 0; head < shape.head_count; ++head) {
          ExpectCut(views[0].tile(layer, head), views[1].tile(layer, head), shape, 4);
          ExpectCut(views[1].tile(layer, head), views[2].tile(layer, head), shape, 3);
        }
      }
    }
  });
}

TEST(TopCodesTest, EveryWayDownGivesTheSameBytes) {
  for (const PageShape& shape : Shapes()) {
    for (const int64_t base : {0, 4096}) {
      const TestPage raw = RandomRawPage(shape, base, 72);
      const TestPage q8 = EncodedPage(raw, Precision::kQ8);
      constexpr int32_t kFirst[] = {0};
      const TestPage profile = EncodedPage(raw, Precision::kQ4, kFirst);
      const TestPage q3 = EncodedPage(raw, Precision::kQ3);
      const TestPage q2 = EncodedPage(raw, Precision::kQ2);
      EXPECT_EQ(PrecisionOf(q3.header.planes), Precision::kQ3);
      EXPECT_EQ(PrecisionOf(q2.header.planes), Precision::kQ2);
      for (const TestPage* source : {&q8, &profile, &q3}) {
        const TestPage cut3 = CutOf(*source, Precision::kQ3);
        const TestPage cut2 = CutOf(*source, Precision::kQ2);
        EXPECT_EQ(cut3.header, q3.header);  // checksums too
        EXPECT_EQ(cut2.header, q2.header);
        EXPECT_TRUE(BytesOf(cut3) == BytesOf(q3));
        EXPECT_TRUE(BytesOf(cut2) == BytesOf(q2));
      }
      EXPECT_TRUE(BytesOf(EncodedByRef(raw, Precision::kQ2)) == BytesOf(q2));
    }
  }
}

// Sum of squared errors over that of the values, K about its mean.
std::pair<double, double> ErrorEnergy(const TestPage& raw, const TestPage& page) {
  const PageShape& shape = raw.shape;
  const auto size = static_cast<size_t>(shape.page_tokens * shape.head_dim);
  std::vector<double> k(size), v(size), k_true(size), v_true(size);
  PAGODA_CHECK(DecodeTileRef(page.view().tile(0, 0), shape, k.data(), v.data()).ok());
  PAGODA_CHECK(DecodeTileRef(raw.view().tile(0, 0), shape, k_true.data(), v_true.data()).ok());
  double k_error = 0, k_power = 0, v_error = 0, v_power = 0;
  for (int c = 0; c < shape.head_dim; ++c) {
    double mean = 0;
    for (int t = 0; t < shape.page_tokens; ++t) mean += k_true[t * shape.head_dim + c];
    mean /= shape.page_tokens;
    for (int t = 0; t < shape.page_tokens; ++t) {
      const size_t i = t * shape.head_dim + c;
      k_error += std::pow(k[i] - k_true[i], 2);
      v_error += std::pow(v[i] - v_true[i], 2);
      k_power += std::pow(k_true[i] - mean, 2);
      v_power += std::pow(v_true[i], 2);
    }
  }
  return {k_error / k_power, v_error / v_power};
}

TEST(TopCodesTest, ErrorEnergyIsThatOfUniformCodesOfTheirRate) {
  const TestPage raw = RandomRawPage({1, 1, 128, 64}, 4096, 73);
  const auto [k3, v3] = ErrorEnergy(raw, EncodedPage(raw, Precision::kQ3));
  const auto [k2, v2] = ErrorEnergy(raw, EncodedPage(raw, Precision::kQ2));
  // A Gaussian over max |y| of 64: steps of about 0.61 and 1.22 sigma.
  EXPECT_NEAR(v3, 0.035, 0.01);
  EXPECT_NEAR(k3, 0.035, 0.01);
  EXPECT_NEAR(v2, 0.13, 0.03);
  EXPECT_NEAR(k2, 0.15, 0.04);  // unbiased costs energy
}

TEST(TopCodesTest, ScalesThatFp16CannotHoldAreRefused) {
  const TestPage raw = RandomRawPage({1, 1, 64, 32}, 4096, 74);
  for (const bool is_k : {true, false}) {
    for (const float scale : {50000.0f, -50000.0f, INFINITY, NAN}) {
      TestPage q4 = EncodedPage(raw, Precision::kQ4);
      const Tensors codes = Of(q4.view().tile(0, 0), is_k);
      const_cast<uint16_t*>(codes.params)[(is_k ? 64 : 0) + 31] = Fp16FromFloat(scale);
      for (const Precision target : {Precision::kQ3, Precision::kQ2}) {
        PageHeader header = PlanCutHeader(q4.header, target).value();
        std::vector<AlignedBuffer> segments = AllocateSegments(header);
        std::vector<MutableByteSpan> spans;
        for (AlignedBuffer& segment : segments) spans.push_back(segment.mutable_span());
        EXPECT_THAT(CutPage(q4.header, q4.spans(), header, spans),
                    StatusIs(absl::StatusCode::kInvalidArgument, "of token 31"));
      }
    }
  }
}

}  // namespace
}  // namespace pagoda::kernels
