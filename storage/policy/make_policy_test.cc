// Goal: every policy that configuration may name exists, and a wrong name is answered with the
// right ones. Method: make each, and one that is not there.
#include "storage/policy/make_policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "storage/base/testing/status_matchers.h"

namespace pagoda::policy {
namespace {

TEST(MakePolicyTest, EveryNameMakesThatPolicy) {
  EXPECT_EQ(PolicyNames().front(), "lru");
  for (const absl::string_view name : PolicyNames()) {
    const auto policy = MakePolicy(name);
    PAGODA_ASSERT_OK(policy);
    EXPECT_EQ((*policy)->name(), name);
    // It evicts, and it evicts leaves.
    (*policy)->set_capacity_bytes(100);
    for (EntryId id = 1; id <= 20; ++id) (*policy)->Insert({id, id - 1, 10, id});
    const auto victims = (*policy)->PickVictims(100, [](EntryId) { return true; });
    ASSERT_EQ(victims.size(), 10u) << name;
    for (EntryId i = 0; i < 10; ++i) EXPECT_EQ(victims[i], 20 - i) << name;
  }
}

TEST(MakePolicyTest, AnUnknownNameIsToldTheKnownOnes) {
  const auto policy = MakePolicy("fifo");
  ASSERT_EQ(policy.status().code(), absl::StatusCode::kInvalidArgument);
  for (const absl::string_view name : PolicyNames()) {
    EXPECT_THAT(policy.status().message(), ::testing::HasSubstr(std::string(name)));
  }
}

}  // namespace
}  // namespace pagoda::policy
