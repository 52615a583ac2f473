// Goal: a page that was committed is read back exactly or not at all, and what may replace what is
// as promised. Method: each promise of tiered_store.h by hand, then seeded random runs over every
// method with all sums compared.
#include "storage/tiered_store.h"

#include <gtest/gtest.h>

#include <random>

#include "storage/testing/store_fixture.h"

namespace pagoda {
namespace {

using absl::StatusCode;
using TieredStoreTest = StoreTest;

// ---- Staging and committing ---------------------------------------------------------------------

TEST_F(TieredStoreTest, CommittedPageIsReadBackExactly) {
  OpenWithoutSsd();
  for (const TestPage& page : TestChain(3)) {
    EXPECT_EQ(*Push(page), CommitOutcome::kStored);
    EXPECT_TRUE(IsExactly(*Get(page), page));
    EXPECT_TRUE(IsExactly(**Load(page), page));
  }
  const LookupAnswer answer = Lookup(TestChain(5));
  ASSERT_EQ(answer.pages.size(), 3u);
  EXPECT_EQ(answer.pages[2].tier, TierKind::kHost);
  EXPECT_EQ(answer.pages[2].state, PageState::kReady);
  EXPECT_EQ(answer.pages[2].precision, Precision::kRaw16);
  EXPECT_EQ(answer.pages[2].base_position, 128u);
  EXPECT_EQ(answer.lease, 0u);
  ExpectExact();
}

TEST_F(TieredStoreTest, NothingIsVisibleBeforeCommitAndAbandonedPagesVanish) {
  OpenWithoutSsd();
  {
    const StagedPage staged = Staged(TestRoot(1));
    EXPECT_EQ(Get(TestRoot(1)), nullptr);
    EXPECT_EQ(store_->Stats().host.staged_bytes, staged.bytes());
    EXPECT_EQ(store_->Stats().staged_page_count, 1);
    ExpectExact();
  }
  EXPECT_EQ(store_->Stats().host.staged_bytes, 0);
  EXPECT_EQ(store_->Stats().host.used_bytes, 0);
}

TEST_F(TieredStoreTest, BadCommitsAreRefusedAndLeaveNothing) {
  OpenWithoutSsd();
  StagedPage staged = Staged(TestRoot(1));
  staged.segment(1)[0] ^= std::byte{1};
  EXPECT_THAT(store_->Commit(std::move(staged)), StatusIs(StatusCode::kDataLoss, "segment 1"));
  staged = Staged(TestRoot(1));
  staged.mutable_header().content_hash.bytes[0] ^= 1;
  EXPECT_THAT(store_->Commit(std::move(staged)),
              StatusIs(StatusCode::kInvalidArgument, "content hash"));
  EXPECT_THAT(Push(TestRoot(1).Child(2)), StatusIs(StatusCode::kFailedPrecondition, "parent"));
  EXPECT_THAT(store_->Stage(ScopeIdOf({ScopeKind::kPublic, ""}), HeaderOf(TestRoot(1))),
              StatusIs(StatusCode::kInvalidArgument, "scope"));
  EXPECT_EQ(store_->Stats().counters.commits_refused, 3);
  EXPECT_EQ(store_->Stats().page_count, 0);
  EXPECT_EQ(store_->Stats().host.used_bytes, 0);
}

TEST_F(TieredStoreTest, ParentOfAnotherScopeDoesNotCount) {
  OpenWithoutSsd();
  PAGODA_ASSERT_OK(Push(TestRoot(1)));
  TestPage child = TestRoot(1).Child(2);
  child.tenant = "other";
  EXPECT_THAT(Push(child), StatusIs(StatusCode::kFailedPrecondition, "parent"));
}

TEST_F(TieredStoreTest, ExistingKeyStays) {
  OpenWithoutSsd();
  const TestPage page = TestRoot(1);
  PAGODA_ASSERT_OK(Push(page));
  EXPECT_EQ(*Push(page), CommitOutcome::kAlreadyStored);
  EXPECT_EQ(store_->Stats().counters.content_mismatches, 0);
  TestPage other = page;
  other.content = 1;
  EXPECT_EQ(*Push(other), CommitOutcome::kAlreadyStored);
  EXPECT_EQ(store_->Stats().counters.content_mismatches, 1);
  other.backend_tag = 5;  // other arithmetic may give other bytes
  EXPECT_EQ(*Push(other), CommitOutcome::kAlreadyStored);
  EXPECT_EQ(store_->Stats().counters.content_mismatches, 1);
  EXPECT_TRUE(IsExactly(*Get(page), page));
  ExpectExact();
}

TEST_F(TieredStoreTest, FidelityRisesAndNeverFalls) {
  OpenWithoutSsd();
  TestPage low = TestRoot(1);
  low.fidelity = Precision::kQ4;
  TestPage high = low;
  high.fidelity = Precision::kQ8;
  high.content = 1;
  PAGODA_ASSERT_OK(Push(low));
  EXPECT_EQ(Lookup({low}, Precision::kNone, Precision::kQ8).pages.size(), 0u);
  EXPECT_EQ(*Push(high), CommitOutcome::kReplaced);
  EXPECT_EQ(*Push(low), CommitOutcome::kAlreadyStored);
  EXPECT_TRUE(IsExactly(*Get(low), high));
  EXPECT_EQ(Lookup({low}, Precision::kNone, Precision::kQ8).pages.size(), 1u);
  EXPECT_EQ(Lookup({low}, Precision::kNone, Precision::kRaw16).pages.size(), 0u);
  ExpectExact();
}

TEST_F(TieredStoreTest, TooCoarsePageIsReplacedOnlyWhenAsked) {
  OpenWithoutSsd();
  TestPage coarse = TestRoot(1);
  coarse.precision = Precision::kQ4;
  const TestPage fine = TestRoot(1);
  PAGODA_ASSERT_OK(Push(coarse));
  EXPECT_EQ(Lookup({fine}, Precision::kQ8).pages.size(), 0u);
  EXPECT_EQ(Lookup({fine}, Precision::kQ4).pages.size(), 1u);
  EXPECT_EQ(*Push(fine), CommitOutcome::kAlreadyStored);
  EXPECT_EQ(*Push(fine, {.keep_at_least = Precision::kQ4}), CommitOutcome::kAlreadyStored);
  EXPECT_EQ(*Push(fine, {.keep_at_least = Precision::kQ8}), CommitOutcome::kReplaced);
  EXPECT_EQ(*Push(coarse, {.keep_at_least = Precision::kOpaque}), CommitOutcome::kAlreadyStored);
  EXPECT_TRUE(IsExactly(*Get(fine), fine));
}

TEST_F(TieredStoreTest, OtherScopesAndModelsMiss) {
  OpenWithoutSsd();
  PAGODA_ASSERT_OK(Push(TestRoot(1)));
  const RecordKey key = TestRoot(1).record();
  LookupQuery query;
  query.keys = absl::MakeConstSpan(&key, 1);
  query.scope = ScopeIdOf({ScopeKind::kPrivate, "other"});
  EXPECT_TRUE(store_->LookupPrefix(query)->pages.empty());
  EXPECT_EQ(store_->GetResident(key, query.scope), nullptr);
  EXPECT_THAT(store_->Pin(key, query.scope), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(store_->Remove(key, query.scope), StatusIs(StatusCode::kNotFound));
  query.scope = TestRoot(1).scope();
  query.identity = Identity{};
  EXPECT_TRUE(store_->LookupPrefix(query)->pages.empty());
  query.identity = HeaderOf(TestRoot(1)).identity;
  EXPECT_EQ(store_->LookupPrefix(query)->pages.size(), 1u);
}

TEST_F(TieredStoreTest, QuarantinedPageIsAMissUntilItIsReplaced) {
  Open();
  const std::vector<TestPage> chain = TestChain(2);
  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  PersistAll(chain);
  PAGODA_ASSERT_OK(store_->Quarantine(chain[0].record(), chain[0].scope()));
  EXPECT_EQ(Lookup(chain).pages.size(), 0u);
  EXPECT_EQ(Get(chain[0]), nullptr);
  EXPECT_THAT(Load(chain[0]), StatusIs(StatusCode::kNotFound));
  EXPECT_THAT(store_->PersistAsync(chain[0].record(), chain[0].scope()),
              StatusIs(StatusCode::kNotFound));
  PAGODA_ASSERT_OK(store_->Shutdown(absl::Seconds(30)));
  Open();  // the mark is forgotten, and so is the page; what followed it went as an orphan
  EXPECT_EQ(store_->Stats().page_count, 0);

  for (const TestPage& page : chain) PAGODA_ASSERT_OK(Push(page));
  PersistAll({chain[1]});
  PAGODA_ASSERT_OK(store_->Quarantine(chain[0].record(), chain[0].scope()));
  TestPage again = chain[0];
  again.content = 1;
  EXPECT_EQ(*Push(again), CommitOutcome::kReplaced);
  EXPECT_EQ(Lookup(chain).pages.size(), 2u);
  EXPECT_TRUE(IsExactly(*Get(again), again));
  ExpectExact();  // and the SSD copy of the old one is gone
  EXPECT_EQ(store_->Stats().ssd.page_count, 1);
}

// ---- Encodings ----------------------------------------------------------------------------------

TEST_F(TieredStoreTest, NewEncodingDisturbsNoReader) {
  Open();
  const TestPage raw = TestRoot(1);
  TestPage q8 = raw;
  q8.precision = Precision::kQ8;
  PAGODA_ASSERT_OK(Push(raw));
  PersistAll({raw});
  HostPagePtr reader = Get(raw);
  const LookupAnswer leased =
      Lookup({raw}, Precision::kNone, Precision::kNone, {"session", "request", absl::Seconds(10)});
  PAGODA_ASSERT_OK(store_->ReplaceEncoding(reader, Staged(q8)));
  EXPECT_TRUE(IsExactly(*reader, raw));
  EXPECT_TRUE(IsExactly(**store_->GetLeased("session", leased.lease, raw.record()), raw));
  EXPECT_TRUE(IsExactly(*Get(raw), q8));
  EXPECT_EQ(Lookup({raw}).pages[0].precision, Precision::kQ8);
  EXPECT_THAT(store_->ReplaceEncoding(reader, Staged(q8)), StatusIs(StatusCode::kAborted));
  reader = nullptr;
  store_->ReleaseSession("session");
  ExpectExact();  // SSD has followed, the old bytes are gone
  DropFromHost();
  EXPECT_TRUE(IsExactly(**Load(raw), q8));
}

TEST_F(TieredStoreTest, EncodingOfAnotherContentIsRefused) {
  OpenWithoutSsd();
  PAGODA_ASSERT_OK(Push(TestRoot(1)));
  TestPage other = TestRoot(1);
  other.precision = Precision::kQ8;
  other.content = 1;
  EXPECT_THAT(store_->ReplaceEncoding(Get(TestRoot(1)), Staged(other)),
              StatusIs(StatusCode::kInvalidArgument, "content"));
  StagedPage broken = Staged(TestRoot(1));
  broken.segment(0)[0] ^= std::byte{1};
  EXPECT_THAT(store_->ReplaceEncoding(Get(TestRoot(1)), std::move(broken)),
              StatusIs(StatusCode::kDataLoss));
}

// ---- Everything together ------------------------------------------------------------------------

TEST_F(TieredStoreTest, RandomRunsStayExact) {
  for (uint32_t seed = 1; seed <= 2; ++seed) {
    std::mt19937 rng(seed);
    options_.ssd.path = folder_.Sub("ssd" + std::to_string(seed));
    Open();
    std::vector<TestPage> specs = TestChain(8);
    for (const TestPage& page : TestChain(5, 50, specs[3].Child(50))) specs.push_back(page);
    for (int step = 0; step < 1200; ++step) {
      TestPage page = specs[rng() % specs.size()];
      const RecordKey key = page.record();
      const ScopeId scope = page.scope();
      switch (rng() % 12) {
        case 0:
          store_->Remove(key, scope).IgnoreError();
          break;
        case 1:
          store_->PersistAsync(key, scope).IgnoreError();
          break;
        case 2: {
          const auto loaded = Load(page);
          ASSERT_TRUE(loaded.ok() || loaded.status().code() == StatusCode::kNotFound);
          break;
        }
        case 3: {
          PageFilter filter;
          filter.record = key;
          filter.tier = rng() % 2 == 0 ? TierKind::kHost : TierKind::kSsd;
          filter.keep_locked = rng() % 2 == 0;
          store_->Evict(filter);
          break;
        }
        case 4: {
          const HostPagePtr host = Get(page);
          if (host == nullptr || host->precision() != Precision::kRaw16) break;
          page.precision = Precision::kQ8;
          page.fidelity = host->header().fidelity;
          PAGODA_ASSERT_OK(store_->ReplaceEncoding(host, Staged(page)));
          break;
        }
        case 5:
          store_->AcquireLease(scope, {key}, {"s", std::to_string(rng() % 3), absl::Seconds(5)})
              .IgnoreError();
          break;
        case 6:
          clock_.Advance(absl::Seconds(1));
          store_->ExpireLeases();
          break;
        case 7:
          store_->Pin(key, scope).IgnoreError();
          break;
        case 8:
          store_->Unpin(key, scope).IgnoreError();
          break;
        default:
          page.fidelity = rng() % 2 == 0 ? Precision::kRaw16 : Precision::kQ8;
          Push(page).IgnoreError();
      }
      PAGODA_ASSERT_OK(store_->CheckAccounting()) << "seed " << seed << " step " << step;
      if (step % 100 == 0) {
        store_->ReleaseSession("s");
        ExpectExact();
      }
      if (step % 400 == 399) {
        PAGODA_EXPECT_OK(store_->Shutdown(absl::Seconds(30)));
        Open();
        ExpectExact();
      }
    }
    store_->ReleaseSession("s");
    store_->Evict({});
    ExpectExact();
    EXPECT_EQ(store_->Stats().host.used_bytes, 0);
    EXPECT_EQ(store_->Stats().ssd.used_bytes, 0);
  }
}

}  // namespace
}  // namespace pagoda
