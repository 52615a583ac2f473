// Goal: sessions end once, for the right reason, and everything that worked for them hears of it.
// Method: a fake clock; streams that count.
#include "cache-server/session_registry.h"

#include "storage/base/testing/fake_clock.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

struct CountingStream : SessionStream {
  void OnSessionEnd(SessionEndReason) override { ++ends; }
  void OnDraining() override { ++drains; }
  int ends = 0;
  int drains = 0;
};

class SessionRegistryTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  std::vector<std::pair<SessionId, SessionEndReason>> ended_;
  SessionRegistry registry_{
      {.sessions_max = 2, .streams_per_session_max = 2, .timeout = absl::Seconds(10)},
      clock_,
      [this](const SessionId& id, SessionEndReason reason) { ended_.emplace_back(id, reason); }};
  std::shared_ptr<CountingStream> own_ = std::make_shared<CountingStream>();
};

TEST_F(SessionRegistryTest, SilenceEndsASessionAndMessagesKeepIt) {
  const auto id = registry_.Open("acme", own_);
  PAGODA_ASSERT_OK(id);
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(registry_.EndSilent(), 0);  // exactly the timeout is not longer than it
  PAGODA_ASSERT_OK(registry_.Touch(*id));
  clock_.Advance(absl::Seconds(10));
  EXPECT_EQ(registry_.EndSilent(), 0);
  clock_.Advance(absl::Milliseconds(1));
  EXPECT_EQ(registry_.EndSilent(), 1);
  EXPECT_EQ(own_->ends, 1);
  ASSERT_EQ(ended_.size(), 1u);
  EXPECT_EQ(ended_[0].second, SessionEndReason::kTimeout);
  EXPECT_THAT(registry_.Touch(*id), StatusIs(absl::StatusCode::kNotFound));
  registry_.End(*id, SessionEndReason::kClosed);
  EXPECT_EQ(ended_.size(), 1u);
}

TEST_F(SessionRegistryTest, OtherTenantsDoNotFindIt) {
  const auto id = registry_.Open("acme", own_);
  PAGODA_ASSERT_OK(id);
  PAGODA_EXPECT_OK(registry_.Check(*id, "acme"));
  EXPECT_THAT(registry_.Check(*id, "evil"), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(registry_.AddStream(*id, "evil", own_), StatusIs(absl::StatusCode::kNotFound));
}

TEST_F(SessionRegistryTest, StreamsAreBoundedAndToldOfTheEnd) {
  const auto id = registry_.Open("acme", own_);
  PAGODA_ASSERT_OK(id);
  auto first = std::make_shared<CountingStream>();
  auto second = std::make_shared<CountingStream>();
  PAGODA_ASSERT_OK(registry_.AddStream(*id, "acme", first));
  PAGODA_ASSERT_OK(registry_.AddStream(*id, "acme", second));
  EXPECT_THAT(registry_.AddStream(*id, "acme", std::make_shared<CountingStream>()),
              StatusIs(absl::StatusCode::kResourceExhausted, "staged_pages_per_session_max"));
  registry_.RemoveStream(*id, first.get());
  for (const auto& link : {first, std::make_shared<CountingStream>()}) {
    PAGODA_ASSERT_OK(registry_.AddPeerStream(*id, "acme", link));
  }
  EXPECT_THAT(registry_.AddPeerStream(*id, "acme", std::make_shared<CountingStream>()),
              StatusIs(absl::StatusCode::kResourceExhausted, "2 links"));
  EXPECT_THAT(registry_.AddPeerStream(*id, "other", std::make_shared<CountingStream>()),
              StatusIs(absl::StatusCode::kNotFound));
  registry_.RemoveStream(*id, first.get());
  registry_.End(*id, SessionEndReason::kClosed);
  EXPECT_EQ(first->ends, 0);
  EXPECT_EQ(second->ends, 1);
  EXPECT_EQ(own_->ends, 1);
}

TEST_F(SessionRegistryTest, SessionsAreBoundedAndNoneOpenWhileDraining) {
  const auto first = registry_.Open("acme", own_);
  PAGODA_ASSERT_OK(first);
  PAGODA_ASSERT_OK(registry_.Open("acme", std::make_shared<CountingStream>()));
  EXPECT_THAT(registry_.Open("acme", std::make_shared<CountingStream>()),
              StatusIs(absl::StatusCode::kResourceExhausted, "sessions_max"));
  registry_.End(*first, SessionEndReason::kClosed);
  registry_.StartDraining();
  EXPECT_TRUE(registry_.draining());
  EXPECT_THAT(registry_.Open("acme", std::make_shared<CountingStream>()),
              StatusIs(absl::StatusCode::kUnavailable, "draining"));
  EXPECT_FALSE(registry_.AwaitNone(absl::Milliseconds(1)));
  registry_.EndAll(SessionEndReason::kShutdown);
  EXPECT_TRUE(registry_.AwaitNone(absl::ZeroDuration()));
  EXPECT_EQ(registry_.session_count(), 0u);
}

}  // namespace
}  // namespace pagoda
