// Goal: a child is started, watched and stopped, and how it ended is told. Method: /bin/sh as the
// daemon; each way to end.
#include "client/cli/daemon_process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <fstream>

#include "absl/time/clock.h"
#include "client/cli/temp_folder.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

class DaemonProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<TempFolder> folder = TempFolder::Make("daemon_process_test_");
    PAGODA_ASSERT_OK(folder);
    folder_ = std::make_unique<TempFolder>(*std::move(folder));
  }

  absl::StatusOr<std::unique_ptr<DaemonProcess>> StartShell(const std::string& script) {
    return DaemonProcess::Start({"/bin/sh", {"-c", script}, folder_->File("log")});
  }
  static void WaitEnded(DaemonProcess& process) {
    for (int i = 0; i < 1000 && process.CheckAlive().ok(); ++i) {
      absl::SleepFor(absl::Milliseconds(5));
    }
  }
  void WaitForLog() {
    for (int i = 0; i < 1000; ++i) {
      std::ifstream log(folder_->File("log"));
      if (log.peek() != EOF) return;
      absl::SleepFor(absl::Milliseconds(5));
    }
  }

  std::unique_ptr<TempFolder> folder_;
};

TEST_F(DaemonProcessTest, StopsOnSigtermWithCodeZero) {
  auto process = StartShell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
  PAGODA_ASSERT_OK(process);
  WaitForLog();
  PAGODA_EXPECT_OK((*process)->CheckAlive());
  PAGODA_EXPECT_OK((*process)->Stop(absl::Seconds(10)));
  PAGODA_EXPECT_OK((*process)->Stop(absl::Seconds(10)));  // again: the same answer
  EXPECT_THAT((*process)->CheckAlive(), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(DaemonProcessTest, AnExitCodeAndTheLastLogLineAreTold) {
  auto process = StartShell("echo first; echo 'port 7070 is in use' >&2; exit 1");
  PAGODA_ASSERT_OK(process);
  WaitEnded(**process);
  EXPECT_THAT((*process)->CheckAlive(),
              StatusIs(absl::StatusCode::kUnavailable, "(exit code 1): port 7070 is in use"));
  EXPECT_THAT((*process)->Stop(absl::Seconds(1)), StatusIs(absl::StatusCode::kUnavailable));
}

TEST_F(DaemonProcessTest, ASignalIsTold) {
  auto process = StartShell("kill -9 $$");
  PAGODA_ASSERT_OK(process);
  WaitEnded(**process);
  EXPECT_THAT((*process)->CheckAlive(),
              StatusIs(absl::StatusCode::kUnavailable, "(signal 9): it said nothing"));
}

TEST_F(DaemonProcessTest, OneThatDoesNotListenIsKilled) {
  auto process = StartShell("trap '' TERM; echo ready; while :; do sleep 0.01; done");
  PAGODA_ASSERT_OK(process);
  WaitForLog();
  EXPECT_THAT((*process)->Stop(absl::Milliseconds(50)),
              StatusIs(absl::StatusCode::kDeadlineExceeded, "was killed"));
  EXPECT_NE(kill((*process)->pid(), 0), 0);
}

TEST_F(DaemonProcessTest, TheDestructorStops) {
  auto process = StartShell("trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done");
  PAGODA_ASSERT_OK(process);
  WaitForLog();
  const pid_t pid = (*process)->pid();
  process->reset();
  EXPECT_NE(kill(pid, 0), 0);
}

TEST_F(DaemonProcessTest, AProgramThatIsNotThere) {
  EXPECT_THAT(DaemonProcess::Start({"/nowhere/pagodad", {}, folder_->File("log")}),
              StatusIs(absl::StatusCode::kNotFound, "/nowhere/pagodad"));
  EXPECT_THAT(ProgramBesideThisOne("no-such-program"),
              StatusIs(absl::StatusCode::kNotFound, "no-such-program"));
}

TEST(TempFolderTest, IsPrivateAndGoesAway) {
  std::string path;
  {
    absl::StatusOr<TempFolder> folder = TempFolder::Make("temp_folder_test_");
    PAGODA_ASSERT_OK(folder);
    path = folder->path();
    PAGODA_EXPECT_OK(folder->WriteFile("a", "text"));
    EXPECT_THAT(folder->WriteFile("a", "twice"), StatusIs(absl::StatusCode::kInternal));
    EXPECT_THAT(folder->WriteFile("none/a", ""), StatusIs(absl::StatusCode::kInternal));
    std::ifstream file(folder->File("a"));
    std::string text;
    std::getline(file, text);
    EXPECT_EQ(text, "text");
  }
  EXPECT_FALSE(std::ifstream(path + "/a").good());
}

}  // namespace
}  // namespace pagoda::cli
