// Goal: a floor holds against others to the byte and never against oneself; hot pages stay up to
// their share and no further. Method: cases at each edge.
#include "storage/policy/eviction_guard.h"

#include <gtest/gtest.h>

#include <cmath>

#include "storage/base/testing/status_matchers.h"
#include "storage/policy/use_count.h"

namespace pagoda::policy {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

ScopeId Named(const std::string& name) { return ScopeIdOf({ScopeKind::kPrivate, name}); }
VictimCandidate Of(const std::string& scope, int64_t scope_bytes, int64_t bytes, uint8_t uses = 0) {
  return {Named(scope), scope_bytes, bytes, uses};
}

TEST(EvictionGuardTest, FloorHoldsAgainstOthersToTheByte) {
  const ScopeFloors floors = {{Named("a"), 100}};
  EvictionGuard guard(floors, {}, 1000, nullptr);
  EXPECT_TRUE(guard.MayTake(Of("a", 130, 20)));
  EXPECT_TRUE(guard.MayTake(Of("a", 130, 10)));  // 100 are left
  EXPECT_FALSE(guard.MayTake(Of("a", 130, 1)));
  EXPECT_TRUE(guard.MayTake(Of("b", 10, 10)));
  const ScopeId a = Named("a");
  EvictionGuard own(floors, {}, 1000, &a);
  EXPECT_TRUE(own.MayTake(Of("a", 100, 50)));
}

TEST(EvictionGuardTest, HotPagesStayUpToTheirShare) {
  const ScopeFloors none;
  EvictionGuard guard(none, {.uses_min = 3, .share = 0.1}, 1000, nullptr);
  EXPECT_TRUE(guard.MayTake(Of("a", 500, 10, 2)));
  EXPECT_FALSE(guard.MayTake(Of("a", 500, 60, 3)));
  EXPECT_FALSE(guard.MayTake(Of("a", 500, 40, 9)));
  EXPECT_TRUE(guard.MayTake(Of("a", 500, 1, 9)));  // 100 of 1000 are kept already
  EvictionGuard off(none, {}, 1000, nullptr);
  EXPECT_TRUE(off.MayTake(Of("a", 500, 10, 255)));
}

TEST(EvictionGuardTest, OptionsAreChecked) {
  PAGODA_EXPECT_OK(HotPinOptions{}.Validate());
  EXPECT_THAT((HotPinOptions{.uses_min = 256}.Validate()), StatusIs(kInvalid, "uses_min"));
  EXPECT_THAT((HotPinOptions{.uses_min = 1, .share = 0.6}.Validate()), StatusIs(kInvalid, "share"));
  EXPECT_THAT((HotPinOptions{.uses_min = 1, .share = std::nan("")}.Validate()),
              StatusIs(kInvalid, "share"));
  PAGODA_EXPECT_OK(ValidateFloors({{Named("a"), 400}, {Named("b"), 350}}, 1000, 0.75));
  EXPECT_THAT(ValidateFloors({{Named("a"), 400}, {Named("b"), 351}}, 1000, 0.75),
              StatusIs(kInvalid, "751 bytes; must be at most 750"));
  EXPECT_THAT(ValidateFloors({{Named("a"), -1}}, 1000, 0.75), StatusIs(kInvalid, "-1"));
}

TEST(UseCountTest, EveryWindowHalves) {
  EXPECT_EQ(AddUse(0, 0, 5, 60), 1);
  EXPECT_EQ(AddUse(1, 5, 50, 60), 2);
  EXPECT_EQ(AddUse(8, 59, 60, 60), 5);  // one window later
  EXPECT_EQ(DecayedUses(8, 0, 179, 60), 2);
  EXPECT_EQ(DecayedUses(255, 0, 8 * 60, 60), 0);
  EXPECT_EQ(AddUse(255, 5, 5, 60), 255);
  EXPECT_EQ(DecayedUses(7, 100, 90, 60), 7);  // a clock that stands, or steps back
}

}  // namespace
}  // namespace pagoda::policy
