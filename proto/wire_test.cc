// Goal: nothing is lost or let through between messages and our types. Method: round trips, every
// enum edge, every status code.
#include "proto/wire.h"

#include <gtest/gtest.h>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

ModelSpec Sample() {
  ModelSpec spec;
  spec.model = "m";
  spec.weights_revision = "w";
  spec.adapter = "a";
  spec.kv_dtype = KvDtype::kF16;
  spec.groups = {{GroupKind::kFull, 2, 3, 64, 0}, {GroupKind::kSlidingWindow, 1, 2, 128, 4096}};
  spec.rope = {RopeStyle::kInterleaved, 5e5, 64, "linear:2"};
  spec.attention_mode = "tri-shape";
  spec.opaque_layout = "vec";
  return spec;
}

TEST(WireTest, ModelSpecRoundTripKeepsTheIdentity) {
  const auto back = FromWire(ToWire(Sample()));
  PAGODA_ASSERT_OK(back);
  EXPECT_EQ(*back, Sample());
  EXPECT_EQ(IdentityOf(*back), IdentityOf(Sample()));
}

TEST(WireTest, BadModelSpecsAreRefused) {
  v1::ModelSpec spec = ToWire(Sample());
  spec.set_kv_dtype(static_cast<v1::KvDtype>(257));  // Would wrap to 1.
  EXPECT_THAT(FromWire(spec), StatusIs(absl::StatusCode::kInvalidArgument, "kv_dtype"));
  spec = ToWire(Sample());
  for (int i = 0; i < 9; ++i) spec.add_groups();
  EXPECT_THAT(FromWire(spec), StatusIs(absl::StatusCode::kInvalidArgument, "11 layer groups"));
  EXPECT_THAT(FromWire(v1::ModelSpec()), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(WireTest, PrecisionFallbackAndUnknown) {
  EXPECT_EQ(*FromWire(v1::PRECISION_UNSPECIFIED, Precision::kQ8), Precision::kQ8);
  EXPECT_EQ(*FromWire(v1::PRECISION_RAW16, Precision::kQ8), Precision::kRaw16);
  EXPECT_FALSE(FromWire(static_cast<v1::Precision>(5), Precision::kQ8).ok());
  EXPECT_FALSE(FromWire(static_cast<v1::Precision>(256 + 4), Precision::kQ8).ok());
}

TEST(WireTest, StatusCodesAreTheSameOnBothSides) {
  for (int code = 0; code <= 16; ++code) {
    const absl::Status status(static_cast<absl::StatusCode>(code), code == 0 ? "" : "why");
    EXPECT_EQ(FromGrpc(ToGrpc(status)), status) << code;
  }
}

TEST(WireTest, KnownAnswerIsFixed) {
  EXPECT_EQ(KnownAnswer().hex(),
            "2ed6c6c073e0fefa8eecc5f47045ce47233ed0753d1526200eabc04c636bc172");
}

}  // namespace
}  // namespace pagoda
