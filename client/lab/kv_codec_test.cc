// Goal: every codec does what its published rule says, counts its bits, and our prefixes are what
// the product decodes. Method: values that a plain Python reading of the rules wrote down
// (tests/golden/lab_codecs.txt); the product's encoder and decoder; sizes counted by hand.
#include "client/lab/kv_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "client/worker/splitmix64.h"
#include "kernels/testing/random_page.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::lab {
namespace {

constexpr int32_t kHeadDim = 64;
constexpr int64_t kPage = 64;

// As tile() of tests/golden/make_lab_codecs_golden.py.
std::vector<float> GoldenTile(uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<float> rows;
  for (int token = 0; token < 128; ++token) {
    for (int c = 0; c < kHeadDim; ++c) {
      double x = (static_cast<double>(random.Next() >> 40) - (1 << 23)) / (1 << 21);
      x *= (c % 17 == 3 ? 4 : 1) * (token % 8 == 7 ? 0.25 : 1);
      rows.push_back(static_cast<float>(x + (c * 7 % 13 - 6) / 2.0));
    }
  }
  return rows;
}

void Apply(const KvCodec& codec, const RoundTrip& round_trip, std::vector<float>& rows) {
  const auto token_count = static_cast<int64_t>(rows.size()) / kHeadDim;
  for (int64_t token = 0; token < token_count; token += codec.tile_tokens) {
    round_trip({&rows[token * kHeadDim], codec.tile_tokens, kHeadDim});
  }
}

TEST(KvCodec, GoldenValues) {
  std::ifstream file("tests/golden/lab_codecs.txt");
  ASSERT_TRUE(file.is_open());
  int line_count = 0;
  for (std::string line; std::getline(file, line);) {
    if (absl::StartsWith(line, "#")) continue;
    SCOPED_TRACE(line);
    ++line_count;
    std::istringstream words(line);
    std::string name, tensor;
    double relative_error = 0;
    words >> name >> tensor >> relative_error;
    const absl::StatusOr<KvCodec> codec = MakeKvCodec(name, kHeadDim, kPage);
    PAGODA_ASSERT_OK(codec);
    const std::vector<float> exact = GoldenTile(tensor == "K" ? 1 : 2);
    std::vector<float> rows = exact;
    Apply(*codec, tensor == "K" ? codec->k : codec->v, rows);
    double error = 0, energy = 0;
    for (size_t i = 0; i < rows.size(); ++i) {
      error += (double{rows[i]} - exact[i]) * (double{rows[i]} - exact[i]);
      energy += double{exact[i]} * exact[i];
    }
    // One number that float and double put into neighbouring cells would show.
    EXPECT_NEAR(error / energy, relative_error, 1e-4 * relative_error);
    for (int i = 0; i < 8; ++i) {
      double expected = 0;
      ASSERT_TRUE(words >> expected);
      EXPECT_NEAR(rows[5 * i * kHeadDim + 7 * i], expected, 2e-5 * (1 + std::fabs(expected)));
    }
  }
  EXPECT_EQ(line_count, 28);  // two for each codec but the product's own
}

TEST(KvCodec, BitsCountEverythingThatIsStored) {
  struct Case {
    const char* name;
    double k_bits, v_bits, k_bits_128, v_bits_128;
  };
  // clang-format off
  const Case cases[] = {
      // codes, scales of 64 channels, mean of a page (K)      two groups of 64 in a head of 128
      {"q8", 8 + .5 + .25, 8 + .5, 8 + .5 + .25, 8 + .5},
      {"q4", 4 + .25 + .25, 4 + .25, 4 + .25 + .25, 4 + .25},
      {"q3", 3 + .25 + .25, 3 + .25, 3 + .25 + .25, 3 + .25},
      {"q2", 2 + .25 + .25, 2 + .25, 2 + .25 + .25, 2 + .25},
      {"e88", 8 + .25 + .25, 8 + .25, 8 + .25 + .25, 8 + .25},
      {"e43", 4 + .25 + .25, 3 + .25, 4 + .25 + .25, 3 + .25},
      {"e22", 2 + .25 + .25, 2 + .25, 2 + .25 + .25, 2 + .25},
      {"q8_0", 8.5, 8.5, 8.5, 8.5},
      {"q4_0+H", 4.5, 4.5, 4.5, 4.5},
      {"kivi2", 2.5, 2.5, 2.5, 2.5},
      {"hf4", 4.5, 4.5, 4.5, 4.5},
      // scale and zero of each row of the tile, scale of each column
      {"kvarn2", 2 + .25 + .25, 2 + .5 + .125, 2 + .25 + .125, 2 + .25 + .125},
  };
  // clang-format on
  for (const Case& expected : cases) {
    SCOPED_TRACE(expected.name);
    const absl::StatusOr<KvCodec> codec = MakeKvCodec(expected.name, 64, 64);
    PAGODA_ASSERT_OK(codec);
    EXPECT_EQ(codec->name, expected.name);
    EXPECT_DOUBLE_EQ(codec->k_bits, expected.k_bits);
    EXPECT_DOUBLE_EQ(codec->v_bits, expected.v_bits);
    const absl::StatusOr<KvCodec> wide = MakeKvCodec(expected.name, 128, 64);
    PAGODA_ASSERT_OK(wide);
    EXPECT_DOUBLE_EQ(wide->k_bits, expected.k_bits_128);
    EXPECT_DOUBLE_EQ(wide->v_bits, expected.v_bits_128);
  }
}

// The bytes that the layout gives a tile are those that the table counts (64 channels need no
// padding).
TEST(KvCodec, BitsOfTheProductAreThoseOfItsLayout) {
  const kernels::PageShape shape = {1, 1, kHeadDim, kPage};
  const auto bits = [&](std::vector<kernels::PlaneId> planes) {
    int64_t bytes = 0;
    for (const kernels::PlaneId plane : planes) bytes += kernels::LayerBytes(plane, shape);
    return 8.0 * static_cast<double>(bytes) / (kPage * kHeadDim);
  };
  using enum kernels::PlaneId;
  EXPECT_EQ(MakeKvCodec("q4", kHeadDim, kPage)->k_bits, bits({kKHi}));
  EXPECT_EQ(MakeKvCodec("q4", kHeadDim, kPage)->v_bits, bits({kVHi}));
  EXPECT_EQ(MakeKvCodec("q8", kHeadDim, kPage)->k_bits, bits({kKHi, kKLo}));
  EXPECT_EQ(MakeKvCodec("q8", kHeadDim, kPage)->v_bits, bits({kVHi, kVLo}));
}

TEST(KvCodec, PrefixesOfEightAndFourBitsAreWhatTheProductDecodes) {
  for (const int32_t head_dim : {64, 80, 128, 192}) {
    const kernels::PageShape shape = {1, 1, head_dim, kPage};
    const kernels::TestPage raw = kernels::RandomRawPage(shape, 64, 3);
    for (const auto& [precision, name] :
         {std::pair(Precision::kQ8, "e88"), std::pair(Precision::kQ4, "e44")}) {
      SCOPED_TRACE(absl::StrCat(name, " ", head_dim));
      const kernels::TestPage encoded = kernels::EncodedPage(raw, precision);
      std::vector<double> k(kPage * head_dim), v(k);
      PAGODA_ASSERT_OK(
          kernels::DecodeTileRef(encoded.view(precision).tile(0, 0), shape, k.data(), v.data()));
      const kernels::PageTile exact = raw.view().tile(0, 0);
      std::vector<float> lab_k, lab_v;
      for (int64_t i = 0; i < kPage * head_dim; ++i) {
        lab_k.push_back(kernels::FloatFromBf16(exact.raw_k[i]));
        lab_v.push_back(kernels::FloatFromBf16(exact.raw_v[i]));
      }
      const absl::StatusOr<KvCodec> codec = MakeKvCodec(name, head_dim, kPage);
      PAGODA_ASSERT_OK(codec);
      codec->k({lab_k.data(), kPage, head_dim});
      codec->v({lab_v.data(), kPage, head_dim});
      for (int64_t i = 0; i < kPage * head_dim; ++i) {
        ASSERT_NEAR(lab_k[i], k[i], 2e-5 * (1 + std::fabs(k[i]))) << i;
        ASSERT_NEAR(lab_v[i], v[i], 2e-5 * (1 + std::fabs(v[i]))) << i;
      }
    }
  }
}

TEST(KvCodec, ZerosStayZeros) {
  for (const std::string& name : KvCodecNames()) {
    SCOPED_TRACE(name);
    const absl::StatusOr<KvCodec> codec = MakeKvCodec(name, kHeadDim, kPage);
    PAGODA_ASSERT_OK(codec);
    if (codec->product.has_value()) continue;
    std::vector<float> rows(codec->tile_tokens * kHeadDim);
    Apply(*codec, codec->k, rows);
    Apply(*codec, codec->v, rows);
    // A mid-rise code has no zero: half a step of the least scale is left.
    for (const float x : rows) ASSERT_NEAR(x, 0, 1e-6);
  }
}

TEST(KvCodec, UnknownNamesAndHeadsAreRefused) {
  EXPECT_THAT(MakeKvCodec("q5", 64, 64),
              StatusIs(absl::StatusCode::kInvalidArgument, "no codec q5; there are q8, e88"));
  EXPECT_THAT(MakeKvCodec("q4_0", 80, 64),
              StatusIs(absl::StatusCode::kInvalidArgument, "multiple of 64"));
  EXPECT_THAT(MakeKvCodec("kvarn2", 64, 256),
              StatusIs(absl::StatusCode::kInvalidArgument, "pages that divide 128"));
  PAGODA_EXPECT_OK(MakeKvCodec("kvarn2", 64, 128));
  PAGODA_EXPECT_OK(MakeKvCodec("q4", 80, 256));
}

}  // namespace
}  // namespace pagoda::lab
