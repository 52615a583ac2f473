// Goal: made-up pages are what a daemon accepts: right sizes, checksums, keys and parents. Method:
// recompute each from its definition.
#include "client/cli/bench_pages.h"

#include <gtest/gtest.h>

#include "storage/base/crc32c.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

constexpr kernels::PageShape kShape{2, 3, 32, 64};

TEST(BenchPagesTest, TheModelIsValidAndItsOwn) {
  PAGODA_EXPECT_OK(ValidateModelSpec(BenchModel(kShape, "a")));
  EXPECT_NE(IdentityOf(BenchModel(kShape, "a")), IdentityOf(BenchModel(kShape, "b")));
}

TEST(BenchPagesTest, PayloadBytes) {
  EXPECT_EQ(RawPayloadBytes(kShape), 2 * 3 * 32 * 64 * 2 * 2);
  EXPECT_EQ(RawPayloadBytes({30, 3, 64, 64}), 1474560);
  EXPECT_EQ(BenchPages(kShape, 5).payload_bytes(), 5 * RawPayloadBytes(kShape));
}

TEST(BenchPagesTest, ItemsChainAndTheirChecksumsHold) {
  const BenchPages pages(kShape, 4);
  client::ScopeInfo scope;
  scope.root.bytes[0] = 7;
  const BenchPages::Chain chain = pages.MakeChain(scope.root, 42);
  ASSERT_EQ(chain.keys.size(), 4u);
  for (int64_t i = 0; i < 4; ++i) {
    const client::PushItem item = pages.Item(chain, scope, i);
    EXPECT_EQ(item.parent_is_root, i == 0);
    EXPECT_EQ(item.key, KeyOf(item.parent, item.token_ids));
    EXPECT_EQ(item.base_position, static_cast<uint64_t>(i) * 64);
    ASSERT_EQ(item.segments.size(), item.segment_crc32c.size());
    int64_t bytes = 0;
    for (size_t s = 0; s < item.segments.size(); ++s) {
      EXPECT_EQ(Crc32c(item.segments[s]), item.segment_crc32c[s]);
      bytes += static_cast<int64_t>(item.segments[s].size());
    }
    EXPECT_EQ(bytes, RawPayloadBytes(kShape));
  }
  EXPECT_EQ(pages.MakeChain(scope.root, 42).keys, chain.keys);
  EXPECT_NE(pages.MakeChain(scope.root, 43).keys[0], chain.keys[0]);
}

}  // namespace
}  // namespace pagoda::cli
