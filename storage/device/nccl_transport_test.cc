// Goal: a machine without NCCL, or with another one, gets a status and not an end of the process.
// Method: names of libraries that are not NCCL; the real one where it is installed.
#include "storage/device/nccl_transport.h"

#include <gtest/gtest.h>

#include "storage/base/testing/status_matchers.h"
#include "storage/device/host_runtime.h"

namespace pagoda {
namespace {

TEST(NcclTransportTest, WhatIsMissingIsSaid) {
  EXPECT_THAT(NcclVersion({.library = "libnccl-of-nowhere.so"}),
              StatusIs(absl::StatusCode::kUnavailable));
  const auto other = NcclVersion({.library = "libm.so.6"});
  EXPECT_FALSE(other.ok());
  EXPECT_THAT(NcclVersion({.library = ""}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(NcclVersion({.channels_max = 0}), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(NcclVersion({.channels_max = 33}), StatusIs(absl::StatusCode::kInvalidArgument));
}

TEST(NcclTransportTest, TheInstalledLibraryFits) {
  const auto version = NcclVersion({});
  if (absl::IsUnavailable(version.status())) GTEST_SKIP() << version.status();
  if (absl::IsUnimplemented(version.status())) GTEST_SKIP() << version.status();
  PAGODA_ASSERT_OK(version);
  EXPECT_GE(*version, 22000);
  HostRuntime runtime;
  auto transport = OpenNccl(runtime, {});
  PAGODA_ASSERT_OK(transport);
  EXPECT_THAT((*transport)->Poll(), StatusIs(absl::StatusCode::kUnavailable));
  (*transport)->Abort();  // of nothing
}

}  // namespace
}  // namespace pagoda
