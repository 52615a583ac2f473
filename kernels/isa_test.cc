// Goal: every instruction set that is offered can be chosen, and gives what the best one gives.
// Method: one small call with each.
#include "kernels/isa.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "kernels/attention.h"
#include "kernels/testing/each_target.h"
#include "kernels/testing/random_page.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::kernels {
namespace {

std::vector<float> Attend() {
  const TestPage page = EncodedPage(RandomRawPage({1, 1, 64, 64}, 64, 1), Precision::kQ4);
  std::vector<PageTile> tiles = {page.view().tile(0, 0)};
  const std::vector<float> q(64, 0.3f);
  std::vector<float> out(64);
  AttentionParams params;
  params.q = q.data();
  params.out = out.data();
  params.q_stride = params.out_stride = 64;
  params.query_count = 1;
  params.group_count = 1;
  params.head_dim = 64;
  params.page_tokens = 64;
  params.first_position = 127;
  params.softmax_scale = 0.125f;
  params.pages = tiles;
  AttentionScratch scratch;
  PAGODA_EXPECT_OK(AttentionCpu(params, scratch));
  return out;
}

TEST(IsaTest, EachCanBeChosen) {
  const std::vector<std::string> names = AvailableIsas();
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.back(), "portable");
  const std::vector<float> expected = Attend();
  for (const std::string& name : names) {
    SCOPED_TRACE(name);
    PAGODA_ASSERT_OK(UseIsa(name));
    const std::vector<float> out = Attend();
    for (size_t i = 0; i < out.size(); ++i) EXPECT_NEAR(out[i], expected[i], 0.02);
  }
  for (const char* const name : {"avx512-vnni", "avx512", "avx2", "sse4", "neon"}) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      std::printf("SKIPPED: %s is not on this processor\n", name);
    }
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
}

TEST(IsaTest, OthersAreNamed) {
  EXPECT_THAT(UseIsa("avx1024"), StatusIs(absl::StatusCode::kInvalidArgument, "portable"));
}

}  // namespace
}  // namespace pagoda::kernels
