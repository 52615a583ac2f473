// Goal: whatever happens to a page on its way down, what is read of it is raw16 as pushed or the
// bytes of its one encoding, never another rounding, never a mixture. Method: a daemon with small
// tiers; ten thousand seeded steps of pushes, fetches, ladder changes, evictions and flushes; every
// segment that comes back is compared with an encoding made here from the pushed rows. Once with a
// plain ladder, once with every step and a layer profile.
#include <random>
#include <set>

#include "cache-server/testing/encoded_form.h"
#include "cache-server/testing/test_daemon.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

constexpr int kDocuments = 40;
constexpr int kSteps = 10000;
constexpr v1::Precision kPrecisions[] = {v1::PRECISION_RAW16, v1::PRECISION_Q8, v1::PRECISION_Q4,
                                         v1::PRECISION_Q3, v1::PRECISION_Q2};

constexpr int32_t kKLoLayers[] = {0, 2};

class LadderTest : public ::testing::TestWithParam<bool> {
 protected:
  void Begin() {
    daemon_.options().host.capacity_bytes = int64_t{8} << 20;  // the documents need 20 in raw16
    daemon_.options().session_timeout = absl::Minutes(30);     // nobody sends heartbeats
    if (all_steps()) {
      Ladder& ladder = daemon_.options().ladder.standard;
      ladder.pressure = Precision::kQ4;
      ladder.ssd = Precision::kQ3;
      ladder.idle = Precision::kQ8;
      ladder.idle_after = absl::Seconds(1);
      daemon_.options().ladder.profiles[spec_.model] = {
          spec_.model, IdentityOf(spec_), 4, {std::begin(kKLoLayers), std::end(kKLoLayers)}, 5};
    }
    daemon_.Start();
    client_ = std::make_unique<WireClient>(daemon_.server().address());
    scope_ = client_->Hello(spec_)->scopes(0);
    PAGODA_ASSERT_OK(client_->OpenSession());
    for (uint32_t seed = 1; seed <= kDocuments; ++seed) {
      documents_.push_back(MakeChain(spec_, scope_, {.seed = seed, .content_seed = seed}));
    }
  }

  void ExpectItsOwnBytes(const FetchedPage& page, const TestPage& pushed) {
    const Precision precision = PrecisionOf(page.header.planes);
    ++seen_[precision];
    if (precision == Precision::kRaw16) {
      EXPECT_EQ(page.segments, pushed.segments);
      return;
    }
    auto [known, is_new] = encodings_.try_emplace(pushed.key);
    if (is_new) {
      const EncodedForm form = EncodedFormOf(page.header, pushed, Precision::kQ8);
      known->second.insert(form.segments.begin(), form.segments.end());
      for (const Precision cold : {Precision::kQ3, Precision::kQ2}) {
        const EncodedForm cut = EncodedFormOf(page.header, pushed, cold);
        known->second.insert(cut.segments.begin(), cut.segments.end());
      }
      if (all_steps()) {  // the layers of the profile are cut out of its segments
        const EncodedForm cut = EncodedFormOf(page.header, pushed, Precision::kQ4, kKLoLayers);
        known->second.insert(cut.segments.begin(), cut.segments.end());
      }
    }
    for (const std::string& segment : page.segments) EXPECT_TRUE(known->second.contains(segment));
  }

  void Fetch(int document, std::mt19937& rng) {
    const std::vector<TestPage>& chain = documents_[document];
    v1::LookupRequest request = client_->LookupFor(spec_, scope_, KeysOf(chain));
    request.set_precision_min(v1::PRECISION_Q2);
    request.set_fidelity_min(v1::PRECISION_Q2);
    const auto lookup = client_->Lookup(request);
    PAGODA_ASSERT_OK(lookup);
    if (lookup->pages_size() == 0) return;
    v1::FetchRequest fetch = client_->FetchFor(*lookup);
    if (rng() % 3 == 0) fetch.set_precision_max(kPrecisions[rng() % std::size(kPrecisions)]);
    const auto pages = client_->Fetch(fetch);
    PAGODA_ASSERT_OK(pages);
    for (size_t i = 0; i < pages->size(); ++i) {
      // A page may have gone, or find no room to come up from SSD: a miss.
      if ((*pages)[i].code == 0) ExpectItsOwnBytes((*pages)[i], chain[i]);
    }
  }

  void Step(std::mt19937& rng) {
    const auto document = static_cast<int>(rng() % kDocuments);
    const uint32_t dice = rng() % 100;
    if (dice < 70) return Fetch(document, rng);
    if (dice < 88) {
      PAGODA_EXPECT_OK(client_->Push(documents_[document]));
    } else if (dice < 94) {
      v1::SetLadderRequest request;
      request.set_ladder(kPrecisions[rng() % std::size(kPrecisions)]);
      v1::SetLadderResponse response;
      EXPECT_TRUE(client_->admin().SetLadder(client_->Context().get(), request, &response).ok());
    } else if (dice < 98) {
      v1::EvictRequest request;
      request.mutable_filter()->set_key(std::string(documents_[document][rng() % 4].key.view()));
      constexpr v1::Tier kTiers[] = {v1::TIER_UNSPECIFIED, v1::TIER_HOST, v1::TIER_SSD};
      request.mutable_filter()->set_tier(kTiers[rng() % std::size(kTiers)]);
      v1::EvictResponse response;
      client_->admin().Evict(client_->Context().get(), request, &response);
    } else {
      v1::FlushResponse response;
      EXPECT_TRUE(client_->admin().Flush(client_->Context().get(), {}, &response).ok());
    }
  }

  static bool all_steps() { return GetParam(); }

  const ModelSpec spec_ = TestModel();
  TestDaemon daemon_;
  std::unique_ptr<WireClient> client_;
  v1::ScopeInfo scope_;
  std::vector<std::vector<TestPage>> documents_;
  std::map<PageKey, std::set<std::string>> encodings_;
  std::map<Precision, int> seen_;  // pages compared
};

TEST_P(LadderTest, APageHasOneEncodingForLife) {
  Begin();
  std::mt19937 rng(20);
  for (int step = 0; step < kSteps && !HasFailure(); ++step) Step(rng);
  for (const Precision precision : kStoredPrecisions) {
    // With every step few pages stay raw16 for long.
    EXPECT_GT(seen_[precision], all_steps() ? 0 : 5) << PrecisionName(precision);
  }
  EXPECT_EQ(encodings_.size(), kDocuments * 4u);
}

INSTANTIATE_TEST_SUITE_P(Ladders, LadderTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "AllSteps" : "Plain"; });

}  // namespace
}  // namespace pagoda
