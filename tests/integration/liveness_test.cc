// Goal: an idle session stays, a stopped daemon or worker is noticed, and nothing waits longer than
// it said. Method: a real daemon with a fast heartbeat; SIGSTOP on either side.
#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "client/client.h"
#include "storage/base/clock.h"
#include "storage/base/testing/status_matchers.h"
#include "tests/integration/daemon_process.h"
#include "tests/integration/synthetic_pages.h"

namespace pagoda {
namespace {

constexpr kernels::PageShape kShape{2, 1, 64, 64};

class LivenessTest : public testing::Test {
 protected:
  void SetUp() override {
    config_ = folder_.path() + "/config.yaml";
    std::ofstream(config_) << "heartbeat_seconds: 0.2\nsession_timeout_seconds: 2\n";
    daemon_ = std::make_unique<DaemonProcess>(std::vector<std::string>{"--config", config_});
    PAGODA_ASSERT_OK(daemon_->Start());
    client::ClientOptions options;
    options.target = daemon_->target();
    options.model = document_.model();
    options.control_timeout = absl::Milliseconds(500);
    options.reconnect_interval = absl::Milliseconds(50);
    auto made = client::Client::Create(options);
    PAGODA_ASSERT_OK(made);
    client_ = *std::move(made);
    PAGODA_ASSERT_OK(client_->WaitConnected(absl::Seconds(30)));
  }

  absl::StatusOr<client::LookupResult> Lookup() {
    const auto scope = client_->FindScope({ScopeKind::kPrivate, ""});
    client::LookupQuery query;
    query.chains = {{scope->id, document_.KeysFrom(scope->root)}};
    return client_->Lookup(query);
  }

  const SyntheticDocument document_{kShape, 2, 1};
  TemporaryFolder folder_;
  std::string config_;
  std::unique_ptr<DaemonProcess> daemon_;
  std::unique_ptr<client::Client> client_;
};

TEST_F(LivenessTest, AnIdleSessionStays) {
  client_->OpenSequence(100, 256, Precision::kQ8);
  absl::SleepFor(absl::Seconds(4));  // Twice the session's timeout.
  EXPECT_EQ(client_->stats().reconnects, 0);
  const auto status = daemon_->Status();
  PAGODA_ASSERT_OK(status);
  EXPECT_EQ(status->sessions(), 1u);
  EXPECT_EQ(status->sequences(), 1u);
}

TEST_F(LivenessTest, AStoppedDaemonIsAMissAndIsFoundAgain) {
  daemon_->Signal(SIGSTOP);
  const absl::Duration asked = SystemClock().Monotonic();
  EXPECT_FALSE(Lookup().ok());
  EXPECT_LT(SystemClock().Monotonic() - asked, absl::Seconds(3));
  const absl::Duration until = SystemClock().Monotonic() + absl::Seconds(20);
  while (client_->connected() && SystemClock().Monotonic() < until) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  EXPECT_FALSE(client_->connected());
  EXPECT_THAT(Lookup(), StatusIs(absl::StatusCode::kUnavailable));
  daemon_->Signal(SIGCONT);
  // The first session may be one that the stopped daemon had in its queue: asking again finds it.
  const absl::Duration found_by = SystemClock().Monotonic() + absl::Seconds(30);
  while (!Lookup().ok() && SystemClock().Monotonic() < found_by) {
    absl::SleepFor(absl::Milliseconds(50));
  }
  PAGODA_EXPECT_OK(Lookup());
}

}  // namespace
}  // namespace pagoda
