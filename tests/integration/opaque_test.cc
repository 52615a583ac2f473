// Goal: an engine's own blocks come back as they were pushed, whole, by every path, at no other
// precision; and keys that stand for several parts are found, held and fetched part by part.
// Method: a real daemon and the real client; blocks of odd sizes, one record for each kv head.
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "kernels/page_layout.h"
#include "storage/base/crc32c.h"
#include "storage/base/status_macros.h"
#include "tests/integration/shm_fixture.h"

namespace pagoda {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kHeads = 3;
constexpr uint16_t kLayers = 7;
constexpr uint32_t kLayerBytes = 100'003;  // of one head: two layers fit a segment
constexpr uint32_t kBlockTokens = 48;      // no size of ours

ModelSpec OpaqueModel() {
  ModelSpec spec;
  spec.model = "opaque-model";
  spec.kv_dtype = KvDtype::kOpaque;
  spec.groups = {{GroupKind::kFull, kLayers, kHeads, 64, 0}};
  spec.opaque_layout = "test/block48";
  return spec;
}

class OpaqueTest : public ShmTest {
 protected:
  void StartDaemon() {
    daemon_.Start();
    client_ = Client("");
  }
  std::unique_ptr<client::Client> Client(const std::string& shm_socket) {
    client::ClientOptions options;
    options.target = daemon_.server().address();
    options.model = OpaqueModel();
    options.page_tokens = kBlockTokens;
    options.shm_socket = shm_socket;
    options.reconnect_interval = absl::Milliseconds(50);
    auto made = client::Client::Create(options);
    PAGODA_CHECK(made.ok());
    const absl::Status connected = (*made)->WaitConnected(kSoon);
    PAGODA_EXPECT_OK(connected);
    return *std::move(made);
  }

  // Keys of an engine's hashes.
  std::vector<PageKey> BlockKeys(size_t count) {
    std::vector<PageKey> keys;
    const auto scope = client_->FindScope({ScopeKind::kPrivate, ""});
    for (size_t i = 0; i < count; ++i) {
      keys.push_back(ExternalKeyOf(scope->root, "hash of block " + std::to_string(i)));
    }
    return keys;
  }
  static std::string LayersOf(size_t block, uint32_t head) {
    std::string bytes(size_t{kLayers} * kLayerBytes, '\0');
    uint32_t state = static_cast<uint32_t>(block * 131 + head * 7 + 1);
    for (char& c : bytes) {
      state = state * 1664525 + 1013904223;
      c = static_cast<char>(state >> 24);
    }
    return bytes;
  }
  client::PushItem Item(const std::vector<PageKey>& keys, size_t block, uint32_t head) {
    const auto scope = client_->FindScope({ScopeKind::kPrivate, ""});
    auto bytes = std::make_shared<std::string>(LayersOf(block, head));
    client::PushItem item;
    item.scope = scope->id;
    item.key = keys[block];
    item.parent = block == 0 ? scope->root : keys[block - 1];
    item.parent_is_root = block == 0;
    item.base_position = block * kBlockTokens;
    item.precision = Precision::kOpaque;
    item.opaque_layer_bytes = kLayerBytes;
    item.part = {0, static_cast<uint16_t>(head), 1};
    for (const kernels::LayerRun& run : kernels::OpaqueSegmentLayers(kLayers, kLayerBytes)) {
      item.segments.push_back(
          AsBytes(*bytes).subspan(size_t{static_cast<uint32_t>(run.begin)} * kLayerBytes,
                                  size_t{static_cast<uint32_t>(run.count)} * kLayerBytes));
      item.segment_crc32c.push_back(Crc32c(item.segments.back()));
    }
    item.owner = bytes;
    return item;
  }
  // The answer for one page.
  absl::StatusOr<client::PushOutcome> PushOne(client::Client& client, client::PushItem item) {
    absl::StatusOr<client::PushOutcome> answer = absl::UnknownError("no answer");
    auto pusher = client.OpenPusher({}, [&](const PageKey&, const auto& told) { answer = told; });
    PAGODA_CHECK(pusher.ok());
    PAGODA_RETURN_IF_ERROR((*pusher)->Push(std::move(item)));
    PAGODA_RETURN_IF_ERROR((*pusher)->Flush(kSoon));
    return answer;
  }
  void PushBlocks(client::Client& client, const std::vector<PageKey>& keys, size_t begin,
                  size_t end) {
    for (size_t block = begin; block < end; ++block) {
      for (uint32_t head = 0; head < kHeads; ++head) {
        PAGODA_EXPECT_OK(PushOne(client, Item(keys, block, head)));
      }
    }
  }
  static std::vector<client::PagePart> AllHeads() { return {{0, 0, 1}, {0, 1, 1}, {0, 2, 1}}; }
  absl::StatusOr<client::LookupResult> FindParts(client::Client& client,
                                                 const std::vector<PageKey>& keys,
                                                 std::vector<client::PagePart> parts) {
    client::LookupQuery query;
    query.chains = {{client.FindScope({ScopeKind::kPrivate, ""})->id, keys}};
    query.parts = std::move(parts);
    return client.Lookup(query);
  }
  static std::string Joined(const client::FetchedPage& page) {
    std::string all;
    for (size_t i = 0; i < page.segments.size(); ++i) {
      all +=
          std::string(AsText(page.segments[i].span().subspan(0, page.header.segments[i].length)));
    }
    return all;
  }
  // Every block and head, byte for byte.
  void ExpectBlocks(client::Client& client, const std::vector<PageKey>& keys, size_t blocks) {
    const auto hit = FindParts(client, keys, AllHeads());
    PAGODA_ASSERT_OK(hit);
    ASSERT_EQ(hit->pages.size(), blocks * kHeads);
    const auto result = client.Fetch(*hit, keys, {});
    PAGODA_ASSERT_OK(result);
    PAGODA_EXPECT_OK(result->status);
    ASSERT_EQ(result->pages.size(), blocks * kHeads);
    for (size_t i = 0; i < result->pages.size(); ++i) {
      const client::FetchedPage& page = result->pages[i];
      EXPECT_EQ(page.header.record.head_begin, i % kHeads);
      EXPECT_EQ(PrecisionOf(page.header.planes), Precision::kOpaque);
      EXPECT_TRUE(Joined(page) == LayersOf(i / kHeads, i % kHeads)) << "page " << i;
    }
    client.Release(hit->lease);
  }

  std::unique_ptr<client::Client> client_;
};

TEST_F(OpaqueTest, BlocksComeBackByEveryPath) {
  StartDaemon();
  const std::vector<PageKey> keys = BlockKeys(4);
  PushBlocks(*client_, keys, 0, 2);
  const auto over_grpc = Client("none");
  PushBlocks(*over_grpc, keys, 2, 4);
  ExpectBlocks(*client_, keys, 4);
  ExpectBlocks(*over_grpc, keys, 4);
  EXPECT_GT(client_->stats().shm_pages, 0);
  EXPECT_EQ(over_grpc->stats().shm_pages, 0);
}

TEST_F(OpaqueTest, MapsShowTheBytes) {
  StartDaemon();
  const std::vector<PageKey> keys = BlockKeys(2);
  PushBlocks(*client_, keys, 0, 2);
  const auto hit = FindParts(*client_, keys, AllHeads());
  PAGODA_ASSERT_OK(hit);
  const auto mapped = client_->Map(*hit, keys, {});
  PAGODA_ASSERT_OK(mapped);
  ASSERT_EQ((*mapped)->size(), 2 * kHeads);
  for (size_t i = 0; i < (*mapped)->size(); ++i) {
    const auto page = (*mapped)->Page(i);
    PAGODA_ASSERT_OK(page);
    std::string all;
    for (const ByteSpan segment : page->segments) all += std::string(AsText(segment));
    EXPECT_TRUE(all == LayersOf(i / kHeads, i % kHeads)) << "page " << i;
  }
  EXPECT_TRUE((*mapped)->StillValid());
}

TEST_F(OpaqueTest, SsdKeepsThemOverARestart) {
  StartDaemon();
  const std::vector<PageKey> keys = BlockKeys(3);
  PushBlocks(*client_, keys, 0, 3);
  PAGODA_ASSERT_OK(daemon_.Stop());
  daemon_.Start();
  client_ = Client("");
  ExpectBlocks(*client_, keys, 3);
}

// A prefix that ends inside a key: the last key has some of its parts only.
TEST_F(OpaqueTest, ALookupTellsOfPartsOfTheLastKey) {
  StartDaemon();
  const std::vector<PageKey> keys = BlockKeys(3);
  PushBlocks(*client_, keys, 0, 1);
  PAGODA_EXPECT_OK(PushOne(*client_, Item(keys, 1, 0)));
  const auto hit = FindParts(*client_, keys, AllHeads());
  PAGODA_ASSERT_OK(hit);
  EXPECT_EQ(hit->pages.size(), kHeads + 1);
  // A shard's own heads.
  const auto first = FindParts(*client_, keys, {{0, 0, 1}});
  PAGODA_ASSERT_OK(first);
  EXPECT_EQ(first->pages.size(), 2u);
  const auto last = FindParts(*client_, keys, {{0, 2, 1}});
  PAGODA_ASSERT_OK(last);
  EXPECT_EQ(last->pages.size(), 1u);
}

TEST_F(OpaqueTest, EverythingElseIsRefused) {
  StartDaemon();
  const std::vector<PageKey> keys = BlockKeys(1);
  const auto broken = [&](auto change) {
    client::PushItem item = Item(keys, 0, 0);
    change(item);
    return PushOne(*client_, std::move(item)).status();
  };
  using absl::StatusCode;
  EXPECT_THAT(broken([](auto& i) { i.precision = Precision::kRaw16; }),
              StatusIs(StatusCode::kInvalidArgument, "kv_dtype"));
  EXPECT_THAT(broken([](auto& i) { i.opaque_layer_bytes = 0; }),
              StatusIs(StatusCode::kInvalidArgument, "opaque_layer_bytes"));
  EXPECT_THAT(broken([](auto& i) { i.opaque_layer_bytes = 17 << 20; }),
              StatusIs(StatusCode::kInvalidArgument, "opaque_layer_bytes"));
  EXPECT_THAT(broken([](auto& i) { i.opaque_layer_bytes = kLayerBytes - 1; }),
              StatusIs(StatusCode::kDataLoss, "checksum"));
  EXPECT_THAT(broken([](auto& i) { i.segment_crc32c.pop_back(); }),
              StatusIs(StatusCode::kInvalidArgument, "segment"));
  EXPECT_THAT(broken([](auto& i) { i.segment_crc32c[1] ^= 1; }),
              StatusIs(StatusCode::kDataLoss, "checksum"));
  EXPECT_THAT(broken([](auto& i) {
                i.part = {0, 3, 1};
              }),
              StatusIs(StatusCode::kInvalidArgument, "part"));
  EXPECT_THAT(FindParts(*client_, keys, {{0, 0, 1}, {0, 2, 2}}).status(),
              StatusIs(StatusCode::kInvalidArgument, "part"));
}

TEST_F(OpaqueTest, TheyHaveNoLadder) {
  daemon_.options().ladder.standard = Precision::kQ4;
  StartDaemon();
  EXPECT_EQ(client_->server_info()->ladder, Precision::kOpaque);
  const std::vector<PageKey> keys = BlockKeys(1);
  PushBlocks(*client_, keys, 0, 1);
  ASSERT_TRUE(daemon_.server().AwaitEncoded(kSoon));
  WireClient wire = daemon_.Client();
  v1::SetLadderRequest request;
  v1::SetLadderResponse response;
  request.set_ladder(v1::PRECISION_Q8);
  EXPECT_TRUE(wire.admin().SetLadder(wire.Context().get(), request, &response).ok());
  const Identity identity = IdentityOf(OpaqueModel());
  request.set_identity(std::string(identity.view()));
  const grpc::Status refused = wire.admin().SetLadder(wire.Context().get(), request, &response);
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(refused.error_message(), HasSubstr("opaque"));
  ASSERT_TRUE(daemon_.server().AwaitEncoded(kSoon));
  ExpectBlocks(*client_, keys, 1);
}

}  // namespace
}  // namespace pagoda
