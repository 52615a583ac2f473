// Goal: promises of smaller pages count against the excess exactly while they may be kept: until
// they settle, or until they are late. Method: both sides of every edge by hand; a seeded story
// against a plain list of promises.
#include "storage/policy/shed_plan.h"

#include <gtest/gtest.h>

#include <map>
#include <random>

namespace pagoda::policy {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(1);
absl::Duration At(double seconds) { return absl::Seconds(seconds); }

TEST(ShedPlanTest, PromisesCountUntilTheySettle) {
  ShedPlan plan(kPatience);
  EXPECT_EQ(plan.MissingBytes(100, At(0)), 100);
  EXPECT_EQ(plan.MissingBytes(-5, At(0)), 0);
  plan.Ask(1, 60, At(0));
  plan.Ask(2, 30, At(0));
  EXPECT_TRUE(plan.asked(1));
  EXPECT_EQ(plan.MissingBytes(100, At(0.5)), 10);
  EXPECT_EQ(plan.MissingBytes(90, At(0.5)), 0);
  EXPECT_EQ(plan.MissingBytes(50, At(0.5)), 0);
  plan.Settle(1);
  plan.Settle(1);
  plan.Settle(7);
  EXPECT_FALSE(plan.asked(1));
  EXPECT_EQ(plan.MissingBytes(100, At(0.5)), 70);
}

TEST(ShedPlanTest, LatePromisesAreForgotten) {
  ShedPlan plan(kPatience);
  plan.Ask(1, 60, At(0));
  plan.Ask(2, 30, At(0.5));
  EXPECT_EQ(plan.MissingBytes(100, At(0.999)), 10);
  EXPECT_EQ(plan.MissingBytes(100, At(1)), 70);
  EXPECT_FALSE(plan.asked(1));
  EXPECT_FALSE(plan.MayAsk(1));  // it did not follow: who asks it again waits again
  EXPECT_EQ(plan.MissingBytes(100, At(1.5)), 100);
  plan.Settle(1);
  EXPECT_TRUE(plan.MayAsk(1));
  plan.Ask(1, 60, At(1.5));
  EXPECT_EQ(plan.MissingBytes(100, At(2.4)), 40);
}

TEST(ShedPlanTest, HoldsOffForOnePatienceHoweverOftenItAsks) {
  ShedPlan plan(kPatience);
  EXPECT_FALSE(plan.HoldsOff(At(0)));
  plan.NoteExcess(100, At(1));
  plan.Ask(1, 100, At(1));
  plan.NoteExcess(100, At(1.9));
  plan.Ask(2, 100, At(1.9));
  EXPECT_TRUE(plan.HoldsOff(At(1.999)));
  EXPECT_FALSE(plan.HoldsOff(At(2)));
  plan.NoteExcess(50, At(3));  // it lasts
  EXPECT_FALSE(plan.HoldsOff(At(3)));
  plan.NoteExcess(0, At(4));
  EXPECT_FALSE(plan.HoldsOff(At(4)));
  plan.NoteExcess(1, At(5));
  EXPECT_TRUE(plan.HoldsOff(At(5.9)));
}

TEST(ShedPlanTest, RefusedPagesCountNoMoreAndAreNotAskedAgain) {
  ShedPlan plan(kPatience);
  plan.Refuse(1);  // nobody asked it
  EXPECT_TRUE(plan.MayAsk(1));
  plan.Ask(1, 60, At(0));
  EXPECT_TRUE(plan.AskedInTime(1, At(0.5)));
  plan.Refuse(1);
  EXPECT_EQ(plan.MissingBytes(100, At(0.5)), 100);
  EXPECT_FALSE(plan.asked(1));
  EXPECT_FALSE(plan.MayAsk(1));
  plan.Settle(1);
  plan.Ask(1, 60, At(0.5));
  EXPECT_FALSE(plan.AskedInTime(1, At(1.5)));  // late
}

TEST(ShedPlanTest, SumsAreThoseOfTheLivingPromises) {
  ShedPlan plan(kPatience);
  std::map<EntryId, std::pair<int64_t, absl::Duration>> living;
  std::mt19937 rng(3);
  absl::Duration now;
  for (int step = 0; step < 20000; ++step) {
    now += absl::Milliseconds(rng() % 40);
    int64_t sum = 0;
    for (auto it = living.begin(); it != living.end();) {
      it = it->second.second <= now ? living.erase(it) : std::next(it);
    }
    for (const auto& [id, promise] : living) sum += promise.first;
    ASSERT_EQ(plan.MissingBytes(1 << 20, now), (1 << 20) - sum);
    const auto id = static_cast<EntryId>(1 + step);
    if (rng() % 3 == 0 && !living.empty()) {
      plan.Settle(living.begin()->first);
      living.erase(living.begin());
    } else if (step % 1000 < 900) {
      plan.Ask(id, 1 + rng() % 100, now);
      living[id] = {plan.promised_bytes() - sum, now + kPatience};
    }
  }
}

}  // namespace
}  // namespace pagoda::policy
