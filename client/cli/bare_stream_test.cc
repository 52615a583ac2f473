// Goal: the bound moves all its bytes in both directions and says when it cannot. Method: a server
// on each kind of socket.
#include "client/cli/bare_stream.h"

#include <gtest/gtest.h>

#include "client/cli/temp_folder.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda::cli {
namespace {

TEST(BareStreamTest, BothDirectionsOnBothSockets) {
  absl::StatusOr<TempFolder> folder = TempFolder::Make("bare_stream_test_");
  PAGODA_ASSERT_OK(folder);
  for (const std::string& address :
       {std::string("127.0.0.1:0"), "unix:" + folder->File("bare.sock")}) {
    auto server = BareServer::Start(address);
    PAGODA_ASSERT_OK(server);
    BareClient client((*server)->address());
    for (const bool copy : {false, true}) {
      PAGODA_EXPECT_OK(client.Receive({1 << 20, 8, copy}));
      PAGODA_EXPECT_OK(client.Send({1 << 20, 8, copy}));
      PAGODA_EXPECT_OK(client.Receive({1, 1, copy}));
      PAGODA_EXPECT_OK(client.Send({1, 0, copy}));
    }
  }
}

TEST(BareStreamTest, AnAddressInUseAndNobodyThere) {
  auto server = BareServer::Start("127.0.0.1:0");
  PAGODA_ASSERT_OK(server);
  EXPECT_THAT(BareServer::Start((*server)->address()),
              StatusIs(absl::StatusCode::kUnavailable, "cannot listen"));
  const std::string address = (*server)->address();
  server->reset();
  BareClient client(address);
  EXPECT_THAT(client.Receive({1 << 10, 1, true}), StatusIs(absl::StatusCode::kUnavailable));
  EXPECT_THAT(client.Send({1 << 10, 1, true}), StatusIs(absl::StatusCode::kUnavailable));
}

}  // namespace
}  // namespace pagoda::cli
