// Goal: each admission writes what it says and nothing else, and remembers no more than it may.
// Method: cases by hand, and a seeded run of the ghost against a plain queue.
#include "storage/policy/ssd_admission.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <random>

#include "storage/base/testing/status_matchers.h"

namespace pagoda::policy {
namespace {

TEST(SsdAdmissionTest, NamesGoBothWays) {
  for (const auto kind : {SsdAdmissionKind::kAlways, SsdAdmissionKind::kSecondTouch,
                          SsdAdmissionKind::kS3FifoGhost}) {
    EXPECT_EQ(*ParseSsdAdmission(SsdAdmissionName(kind)), kind);
  }
  EXPECT_THAT(ParseSsdAdmission("never"),
              StatusIs(absl::StatusCode::kInvalidArgument, "second_touch"));
}

TEST(SsdAdmissionTest, AlwaysAndSecondTouchRememberNothing) {
  SsdAdmission always;
  EXPECT_TRUE(always.Admit(1, false));
  SsdAdmission second(SsdAdmissionKind::kSecondTouch);
  EXPECT_FALSE(second.Admit(1, false));
  EXPECT_FALSE(second.Admit(1, false));
  EXPECT_TRUE(second.Admit(1, true));
  EXPECT_EQ(second.ghost_count(), 0u);
}

TEST(SsdAdmissionTest, GhostAdmitsWhatComesBack) {
  SsdAdmission ghost(SsdAdmissionKind::kS3FifoGhost, 2);
  EXPECT_TRUE(ghost.Admit(9, true));
  EXPECT_FALSE(ghost.Admit(1, false));
  EXPECT_TRUE(ghost.Admit(1, false));
  EXPECT_FALSE(ghost.Admit(1, false));  // admitted, so forgotten
  EXPECT_FALSE(ghost.Admit(2, false));
  EXPECT_FALSE(ghost.Admit(3, false));  // 1 is the oldest
  EXPECT_FALSE(ghost.Admit(1, false));
  EXPECT_TRUE(ghost.Admit(3, false));
  SsdAdmission none(SsdAdmissionKind::kS3FifoGhost, 0);
  EXPECT_FALSE(none.Admit(1, false));
  EXPECT_FALSE(none.Admit(1, false));
}

TEST(SsdAdmissionTest, GhostIsAQueueOfBoundedLength) {
  constexpr size_t kEntries = 16;
  std::mt19937 rng(1);
  SsdAdmission ghost(SsdAdmissionKind::kS3FifoGhost, kEntries);
  std::deque<uint64_t> queue;  // 0 in the place of a forgotten one
  for (int step = 0; step < 5000; ++step) {
    const uint64_t fingerprint = 1 + rng() % 40;
    const auto found = std::find(queue.begin(), queue.end(), fingerprint);
    const bool expected = found != queue.end();
    if (expected) {
      *found = 0;
    } else {
      queue.push_back(fingerprint);
      if (queue.size() > kEntries) queue.pop_front();
    }
    ASSERT_EQ(ghost.Admit(fingerprint, false), expected) << step;
    ASSERT_LE(ghost.ghost_count(), kEntries);
  }
}

}  // namespace
}  // namespace pagoda::policy
