// Goal: a page is seen by those who share its scope and by nobody else, whatever they know.
// Method: a daemon with a token file, callers that try each other's keys, scopes, sessions and
// leases.
#include <sys/stat.h>

#include <fstream>

#include "cache-server/testing/test_daemon.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

using absl::StatusCode;

class ScopesTest : public ::testing::Test {
 protected:
  ScopesTest() {
    const std::string path = daemon_.folder() + "/tokens.yaml";
    std::ofstream(path) << "tokens:\n"
                           "  - {token: acme-token-000001, tenant: acme, groups: [law]}\n"
                           "  - {token: bolt-token-000001, tenant: bolt, groups: [law]}\n"
                           "  - {token: evil-token-000001, tenant: evil, admin: true}\n"
                           "  - {token: news-token-000001, tenant: news, publish: true}\n"
                           "  - {token: view-token-000001, tenant: acme, push: false}\n";
    ::chmod(path.c_str(), 0600);
    daemon_.options().token_file = path;
    daemon_.Start();
  }
  struct Caller {
    std::unique_ptr<WireClient> client;
    v1::HelloResponse hello;
    const v1::ScopeInfo& scope(v1::ScopeKind kind) const {
      for (const v1::ScopeInfo& scope : hello.scopes()) {
        if (scope.kind() == kind) return scope;
      }
      return v1::ScopeInfo::default_instance();
    }
  };
  Caller As(const std::string& name) {
    Caller caller;
    caller.client =
        std::make_unique<WireClient>(daemon_.server().address(), name + "-token-000001");
    caller.hello = *caller.client->Hello(spec_);
    EXPECT_THAT(caller.client->OpenSession(), IsOk());
    return caller;
  }
  int CodeOfPush(const Caller& caller, const std::vector<TestPage>& chain) {
    const auto pushed = caller.client->Push(chain);
    EXPECT_THAT(pushed, IsOk());
    return pushed.ok() ? (*pushed)[0].code() : -1;
  }
  int PagesSeen(const Caller& caller, const v1::ScopeInfo& scope,
                const std::vector<TestPage>& chain) {
    const auto lookup =
        caller.client->Lookup(caller.client->LookupFor(spec_, scope, KeysOf(chain)));
    return lookup.ok() ? lookup->pages_size() : -static_cast<int>(lookup.status().code());
  }

  const ModelSpec spec_ = TestModel();
  TestDaemon daemon_;
};

TEST_F(ScopesTest, WrongTokensAreRefusedEverywhere) {
  for (const char* token : {"", "acme-token-000002", "acme-token-00000"}) {
    WireClient client(daemon_.server().address(), token);
    EXPECT_THAT(client.Hello(spec_), StatusIs(StatusCode::kUnauthenticated));
    EXPECT_THAT(client.OpenSession(), StatusIs(StatusCode::kUnauthenticated));
    EXPECT_THAT(client.Push({}), StatusIs(StatusCode::kUnauthenticated));
    EXPECT_THAT(client.Fetch(v1::FetchRequest()), StatusIs(StatusCode::kUnauthenticated));
    EXPECT_THAT(client.Lookup(v1::LookupRequest()), StatusIs(StatusCode::kUnauthenticated));
    EXPECT_THAT(client.Status(), StatusIs(StatusCode::kUnauthenticated));
  }
}

TEST_F(ScopesTest, PrivatePagesAreSeenByTheirTenantAlone) {
  const Caller acme = As("acme");
  const Caller evil = As("evil");
  const v1::ScopeInfo secret = acme.scope(v1::SCOPE_KIND_PRIVATE);
  EXPECT_NE(secret.root(), evil.scope(v1::SCOPE_KIND_PRIVATE).root());
  const std::vector<TestPage> chain = MakeChain(spec_, secret);
  EXPECT_EQ(CodeOfPush(acme, chain), 0);
  EXPECT_EQ(PagesSeen(acme, secret, chain), 4);
  EXPECT_EQ(PagesSeen(As("view"), secret, chain), 4);  // the same tenant by another token
  // With the very keys and the very scope id, and with the keys in scopes of one's own.
  EXPECT_EQ(PagesSeen(evil, secret, chain), -static_cast<int>(StatusCode::kPermissionDenied));
  EXPECT_EQ(PagesSeen(evil, evil.scope(v1::SCOPE_KIND_PRIVATE), chain), 0);
  EXPECT_EQ(PagesSeen(evil, evil.scope(v1::SCOPE_KIND_PUBLIC), chain), 0);
  // Nor can it plant pages there, or under those keys in its own scope.
  EXPECT_EQ(CodeOfPush(evil, chain), static_cast<int>(StatusCode::kPermissionDenied));
  std::vector<TestPage> planted = chain;
  planted[0].start.set_scope_id(evil.scope(v1::SCOPE_KIND_PRIVATE).scope_id());
  EXPECT_EQ(CodeOfPush(evil, planted), static_cast<int>(StatusCode::kInvalidArgument));
  planted[0].start.set_parent_is_root(false);
  EXPECT_EQ(CodeOfPush(evil, planted), static_cast<int>(StatusCode::kFailedPrecondition));
}

TEST_F(ScopesTest, SessionsAndLeasesOfOthersAreNotFound) {
  const Caller acme = As("acme");
  const Caller evil = As("evil");
  const v1::ScopeInfo secret = acme.scope(v1::SCOPE_KIND_PRIVATE);
  const std::vector<TestPage> chain = MakeChain(spec_, secret);
  EXPECT_EQ(CodeOfPush(acme, chain), 0);
  const auto lookup = acme.client->Lookup(acme.client->LookupFor(spec_, secret, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  const v1::FetchRequest fetch = acme.client->FetchFor(*lookup);
  EXPECT_THAT(evil.client->Fetch(fetch), StatusIs(StatusCode::kNotFound, "session"));
  v1::FetchRequest own = fetch;
  own.set_session_id(evil.client->session_id());
  EXPECT_THAT(evil.client->Fetch(own), StatusIs(StatusCode::kNotFound));
  // Giving back another's lease does nothing.
  v1::ReleaseRequest release;
  v1::ReleaseResponse released;
  release.set_session_id(acme.client->session_id());
  release.add_lease_ids(lookup->lease_id());
  EXPECT_TRUE(evil.client->cache().Release(evil.client->Context().get(), release, &released).ok());
  PAGODA_EXPECT_OK(acme.client->Fetch(fetch));
}

TEST_F(ScopesTest, GroupsShareAndPublicNeedsTheRightToPublish) {
  const Caller acme = As("acme");
  const Caller bolt = As("bolt");
  const Caller evil = As("evil");
  const Caller news = As("news");
  const std::vector<TestPage> shared = MakeChain(spec_, acme.scope(v1::SCOPE_KIND_GROUP));
  EXPECT_EQ(CodeOfPush(acme, shared), 0);
  EXPECT_EQ(PagesSeen(bolt, bolt.scope(v1::SCOPE_KIND_GROUP), shared), 4);
  EXPECT_EQ(PagesSeen(evil, acme.scope(v1::SCOPE_KIND_GROUP), shared),
            -static_cast<int>(StatusCode::kPermissionDenied));

  const std::vector<TestPage> open = MakeChain(spec_, acme.scope(v1::SCOPE_KIND_PUBLIC));
  EXPECT_FALSE(acme.scope(v1::SCOPE_KIND_PUBLIC).may_push());
  EXPECT_EQ(CodeOfPush(acme, open), static_cast<int>(StatusCode::kPermissionDenied));
  EXPECT_TRUE(news.scope(v1::SCOPE_KIND_PUBLIC).may_push());
  EXPECT_EQ(CodeOfPush(news, open), 0);
  EXPECT_EQ(PagesSeen(evil, evil.scope(v1::SCOPE_KIND_PUBLIC), open), 4);

  const Caller view = As("view");
  const std::vector<TestPage> mine =
      MakeChain(spec_, view.scope(v1::SCOPE_KIND_PRIVATE), {.seed = 5});
  EXPECT_EQ(CodeOfPush(view, mine), static_cast<int>(StatusCode::kPermissionDenied));
}

TEST_F(ScopesTest, TheLongestChainWinsAndTheEarlierOneOnATie) {
  const Caller acme = As("acme");
  const Caller news = As("news");
  const v1::ScopeInfo own = acme.scope(v1::SCOPE_KIND_PRIVATE);
  const v1::ScopeInfo open = acme.scope(v1::SCOPE_KIND_PUBLIC);
  const std::vector<TestPage> in_private = MakeChain(spec_, own, {.page_count = 4});
  const std::vector<TestPage> in_public = MakeChain(spec_, open, {.page_count = 4});
  EXPECT_EQ(CodeOfPush(acme, {in_private[0], in_private[1]}), 0);
  EXPECT_EQ(CodeOfPush(news, {in_public[0], in_public[1], in_public[2]}), 0);
  v1::LookupRequest request = acme.client->LookupFor(spec_, own, KeysOf(in_private));
  v1::KeyChain& second = *request.add_chains();
  second.set_scope_id(open.scope_id());
  for (const std::string& key : KeysOf(in_public)) second.add_keys(key);
  auto lookup = acme.client->Lookup(request);
  PAGODA_ASSERT_OK(lookup);
  EXPECT_EQ(lookup->chain_index(), 1u);
  EXPECT_EQ(lookup->pages_size(), 3);
  PAGODA_EXPECT_OK(acme.client->Fetch(acme.client->FetchFor(*lookup)));
  EXPECT_EQ(CodeOfPush(acme, {in_private[2]}), 0);
  lookup = acme.client->Lookup(request);
  PAGODA_ASSERT_OK(lookup);
  EXPECT_EQ(lookup->chain_index(), 0u);
  EXPECT_EQ(lookup->pages_size(), 3);
}

TEST_F(ScopesTest, OnlyAdminsAdminister) {
  const Caller acme = As("acme");
  const Caller evil = As("evil");
  EXPECT_THAT(acme.client->Status(), StatusIs(StatusCode::kPermissionDenied, "admin: true"));
  PAGODA_EXPECT_OK(evil.client->Status());
  v1::EvictResponse evicted;
  EXPECT_EQ(acme.client->admin()
                .Evict(acme.client->Context().get(), v1::EvictRequest(), &evicted)
                .error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  v1::DrainResponse drained;
  EXPECT_EQ(acme.client->admin()
                .Drain(acme.client->Context().get(), v1::DrainRequest(), &drained)
                .error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  const auto context = acme.client->Context();
  const auto pages = acme.client->admin().ListPages(context.get(), v1::ListPagesRequest());
  v1::ListPagesResponse batch;
  EXPECT_FALSE(pages->Read(&batch));
  EXPECT_EQ(pages->Finish().error_code(), grpc::StatusCode::PERMISSION_DENIED);
}

}  // namespace
}  // namespace pagoda
