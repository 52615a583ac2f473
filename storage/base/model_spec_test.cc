// Goal: identities differ whenever anything that changes K or V differs, and bad specs are refused
// with the field named. Method: change each field in turn.
#include "storage/base/model_spec.h"

#include <gtest/gtest.h>

#include <functional>
#include <set>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

ModelSpec Good() {
  ModelSpec spec;
  spec.model = "test";
  spec.weights_revision = "abc";
  spec.groups = {{GroupKind::kFull, 30, 3, 64, 0}};
  spec.rope = {RopeStyle::kHalfSplit, 100000, 64, ""};
  return spec;
}

TEST(ModelSpecTest, TestVector) {  // proto/README.md
  EXPECT_EQ(IdentityOf(Good()).hex(),
            "ac0b1cafbd2a7f2f0eb20646417a3a5a7d3d747dcb5f5fa225121eacc2e29c87");
}

TEST(ModelSpecTest, EveryFieldChangesTheIdentity) {
  const std::vector<std::function<void(ModelSpec&)>> changes = {
      [](ModelSpec&) {},
      [](ModelSpec& s) { s.model = "other"; },
      [](ModelSpec& s) { s.weights_revision = "abd"; },
      [](ModelSpec& s) { s.adapter = "lora"; },
      [](ModelSpec& s) { s.kv_dtype = KvDtype::kF16; },
      [](ModelSpec& s) { s.groups[0].kind = GroupKind::kSlidingWindow; },
      [](ModelSpec& s) { s.groups[0].layer_count = 31; },
      [](ModelSpec& s) { s.groups[0].kv_head_count = 4; },
      [](ModelSpec& s) { s.groups[0].head_dim = 128; },
      [](ModelSpec& s) { s.groups[0].window_tokens = 1; },
      [](ModelSpec& s) { s.groups.push_back(s.groups[0]); },
      [](ModelSpec& s) { s.rope.style = RopeStyle::kInterleaved; },
      [](ModelSpec& s) { s.rope.theta = 10000; },
      [](ModelSpec& s) { s.rope.rotary_dims = 32; },
      [](ModelSpec& s) { s.rope.scaling = "linear:2"; },
      [](ModelSpec& s) { s.attention_mode = "tri-shape"; },
      [](ModelSpec& s) { s.opaque_layout = "vec"; },
      // Text that moves from one field to the next must not collide.
      [](ModelSpec& s) { s.model = "tes", s.weights_revision = "tabc"; },
  };
  std::set<std::string> seen;
  for (const auto& change : changes) {
    ModelSpec spec = Good();
    change(spec);
    EXPECT_TRUE(seen.insert(IdentityOf(spec).hex()).second) << seen.size();
  }
}

TEST(ModelSpecTest, RefusesBadFieldsByName) {
  PAGODA_EXPECT_OK(ValidateModelSpec(Good()));
  const std::vector<std::pair<std::function<void(ModelSpec&)>, const char*>> bad = {
      {[](ModelSpec& s) { s.model = ""; }, "model is empty"},
      {[](ModelSpec& s) { s.model = std::string(257, 'x'); }, "model has 257 bytes"},
      {[](ModelSpec& s) { s.groups.clear(); }, "0 layer groups"},
      {[](ModelSpec& s) { s.groups.resize(9, s.groups[0]); }, "9 layer groups"},
      {[](ModelSpec& s) { s.groups[0].layer_count = 1025; }, "layer_count is 1025"},
      {[](ModelSpec& s) { s.groups[0].head_dim = 0; }, "head_dim is 0"},
      {[](ModelSpec& s) { s.groups[0].kv_head_count = 0; }, "kv_head_count is 0"},
      {[](ModelSpec& s) { s.rope.theta = 1.0 / 0.0; }, "rope.theta"},
      {[](ModelSpec& s) { s.kv_dtype = static_cast<KvDtype>(9); }, "kv_dtype is 9"},
  };
  for (const auto& [change, text] : bad) {
    ModelSpec spec = Good();
    change(spec);
    EXPECT_THAT(ValidateModelSpec(spec), StatusIs(absl::StatusCode::kInvalidArgument, text));
  }
}

}  // namespace
}  // namespace pagoda
