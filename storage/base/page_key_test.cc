// Goal: keys are the same in every process, language and release. Method: the test vectors of
// proto/README.md, and each input changing the key.
#include "storage/base/page_key.h"

#include <gtest/gtest.h>

#include <numeric>

namespace pagoda {
namespace {

ScopeSecret TestSecret() {
  ScopeSecret secret;
  std::iota(secret.bytes.begin(), secret.bytes.end(), 0);
  return secret;
}

TEST(PageKeyTest, TestVectors) {
  const PageKey root = RootOf(Identity{}, ScopeKind::kPublic, TestSecret());
  EXPECT_EQ(root.hex(), "beac59cacbd7e036eece341ad4c0af999e188aeaf3053979b9d034134507047b");
  const std::vector<uint32_t> ids = {1, 2, 3, 4};
  const PageKey first = KeyOf(root, ids);
  EXPECT_EQ(first.hex(), "3b8c84c2b981bb32cd36f794e0ff92616e0cc911ace2f42e21b5b10d9c45f440");
  EXPECT_EQ(KeyOf(first, ids, "x").hex(),
            "daf8bb527f195ad2a004d04f466fa7175ddcf25228e2347d722ad0c78f8902e4");
  EXPECT_EQ(ExternalKeyOf(root, "engine-hash").hex(),
            "1cbff6adfc6d715de5f682f71110204c84702da7a7ca443a081538b24f00a029");
  EXPECT_EQ(ChunkKeyOf(root, ids).hex(),
            "583cc3068376e92e6adef9daf8af7f02cc41f0b38159cc85559302e605d42d16");
  EXPECT_EQ(ScopeIdOf({ScopeKind::kPrivate, "acme"}).hex(), "2cc8e787e6a04dc65e66271a9f468485");
  EXPECT_EQ(ScopeSecretOf(TestSecret().view(), {ScopeKind::kPrivate, "acme"}).hex(),
            "8e28e47c30daf210b5c21080e1ef29895fa66b5ae5dffd898514cd80618aa450");
}

TEST(PageKeyTest, EveryInputChangesTheKey) {
  Identity other;
  other.bytes[31] = 1;
  ScopeSecret secret = TestSecret();
  const PageKey root = RootOf(Identity{}, ScopeKind::kPrivate, secret);
  EXPECT_NE(root, RootOf(other, ScopeKind::kPrivate, secret));
  EXPECT_NE(root, RootOf(Identity{}, ScopeKind::kPublic, secret));
  secret.bytes[0] ^= 1;
  EXPECT_NE(root, RootOf(Identity{}, ScopeKind::kPrivate, secret));
  const std::vector<uint32_t> ids = {5, 6};
  EXPECT_NE(KeyOf(root, ids), KeyOf(root, {5, 7}));
  EXPECT_NE(KeyOf(root, ids), KeyOf(KeyOf(root, ids), ids));
  EXPECT_NE(KeyOf(root, ids), KeyOf(root, ids, "lora"));
}

TEST(PageKeyTest, ChainCoversFullPagesOnly) {
  const PageKey root = RootOf(Identity{}, ScopeKind::kPrivate, TestSecret());
  std::vector<uint32_t> ids(130);
  std::iota(ids.begin(), ids.end(), 0);
  const std::vector<PageKey> keys = KeyChain(root, ids, 64);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0], KeyOf(root, absl::MakeSpan(ids).subspan(0, 64)));
  EXPECT_EQ(keys[1], KeyOf(keys[0], absl::MakeSpan(ids).subspan(64, 64)));
  EXPECT_TRUE(KeyChain(root, absl::MakeSpan(ids).subspan(0, 63), 64).empty());
}

TEST(PageKeyTest, RecordKeyRoundTripAndLengths) {
  RecordKey record{KeyOf(PageKey{}, {1}), 3, 8, 4};
  const std::string encoded = record.Encode();
  EXPECT_EQ(RecordKey::Decode(encoded), record);
  EXPECT_FALSE(RecordKey::Decode(encoded.substr(1)).has_value());
  EXPECT_FALSE(RecordKey::Decode(encoded + "x").has_value());
}

TEST(ScopeTest, ParsesAndNames) {
  EXPECT_EQ(ScopeName(*ParseScope("group:legal")), "group:legal");
  EXPECT_EQ(ParseScope("public")->kind, ScopeKind::kPublic);
  EXPECT_EQ(ParseScope("private")->kind, ScopeKind::kPrivate);
  EXPECT_FALSE(ParseScope("group:").ok());
  EXPECT_FALSE(ParseScope("everyone").ok());
}

}  // namespace
}  // namespace pagoda
