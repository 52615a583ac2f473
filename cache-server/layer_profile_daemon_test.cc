// Goal: a daemon obeys a model's layer profile: a page that comes down to q4 keeps K lo in those
// layers, with the bytes that encoding gives, however it came down and from wherever it is read; a
// profile of another model is not used and the operator sees why. Method: real daemons, pages
// compared with encodings made here.
#include <fstream>

#include "cache-server/testing/encoded_form.h"
#include "cache-server/testing/test_daemon.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

constexpr int32_t kKLoLayers[] = {0, 2, 3};

LayerProfile ProfileOf(const ModelSpec& spec) {
  return {spec.model, IdentityOf(spec), 4, {std::begin(kKLoLayers), std::end(kKLoLayers)}, 5};
}

class LayerProfileDaemonTest : public ::testing::Test {
 protected:
  void Start(Precision ladder) {
    daemon_.options().ladder.standard = ladder;
    daemon_.options().session_timeout = absl::Minutes(30);
    daemon_.Start();
    Connect();
  }
  void Connect() {
    client_ = std::make_unique<WireClient>(daemon_.server().address());
    scope_ = client_->Hello(spec_)->scopes(0);
    PAGODA_ASSERT_OK(client_->OpenSession());
    chain_ = MakeChain(spec_, scope_, {});
  }
  v1::LookupResponse LookupAt(v1::Precision precision) {
    v1::LookupRequest request = client_->LookupFor(spec_, scope_, KeysOf(chain_));
    request.set_precision_min(v1::PRECISION_Q4);
    request.set_fidelity_min(v1::PRECISION_Q4);
    const auto lookup = client_->LookupUntil(request, precision);
    PAGODA_EXPECT_OK(lookup);
    return *lookup;
  }
  std::vector<FetchedPage> FetchAt(const v1::LookupResponse& lookup, v1::Precision most,
                                   uint32_t layer_begin = 0, uint32_t layer_count = 0) {
    v1::FetchRequest fetch = client_->FetchFor(lookup);
    fetch.set_precision_max(most);
    fetch.set_layer_begin(layer_begin);
    fetch.set_layer_count(layer_count);
    const auto pages = client_->Fetch(fetch);
    PAGODA_EXPECT_OK(pages);
    return *pages;
  }
  void ExpectProfileForm(const std::vector<FetchedPage>& pages) {
    ASSERT_EQ(pages.size(), chain_.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      ASSERT_EQ(pages[i].code, 0) << pages[i].message;
      const EncodedForm form =
          EncodedFormOf(pages[i].header, chain_[i], Precision::kQ4, kKLoLayers);
      EXPECT_EQ(pages[i].header, form.header);  // planes and checksums
      EXPECT_EQ(pages[i].segments, form.segments);
    }
  }
  v1::ModelStatus Model() {
    v1::ListModelsResponse models;
    EXPECT_TRUE(client_->admin().ListModels(client_->Context().get(), {}, &models).ok());
    EXPECT_EQ(models.models_size(), 1);
    return models.models(0);
  }

  const ModelSpec spec_ = TestModel();
  TestDaemon daemon_;
  std::unique_ptr<WireClient> client_;
  v1::ScopeInfo scope_;
  std::vector<TestPage> chain_;
};

TEST_F(LayerProfileDaemonTest, PagesComeDownToQ4WithTheLayersOfTheProfile) {
  daemon_.options().ladder.profiles[spec_.model] = ProfileOf(spec_);
  Start(Precision::kQ4);
  PAGODA_ASSERT_OK(client_->Push(chain_));
  const v1::LookupResponse lookup = LookupAt(v1::PRECISION_Q4);
  ASSERT_EQ(lookup.pages_size(), 4);
  ExpectProfileForm(FetchAt(lookup, v1::PRECISION_UNSPECIFIED));
  ExpectProfileForm(FetchAt(lookup, v1::PRECISION_Q4));
  // Of a range of layers comes what the page has of them.
  const std::vector<FetchedPage> some = FetchAt(lookup, v1::PRECISION_Q4, 1, 1);
  ASSERT_EQ(some.size(), 4u);
  for (const PlaneEntry& plane : some[1].header.planes) EXPECT_EQ(plane.bit_begin, 4);
  EXPECT_EQ(PrecisionOf(FetchAt(lookup, v1::PRECISION_Q4, 2, 1)[1].header.planes), Precision::kQ4);
  const v1::ModelStatus model = Model();
  EXPECT_EQ(std::vector<int32_t>(model.k_lo_layers().begin(), model.k_lo_layers().end()),
            ProfileOf(spec_).k_lo_layers);
  EXPECT_EQ(model.profile_problem(), "");

  // From SSD, after a restart.
  v1::FlushResponse flushed;
  ASSERT_TRUE(client_->admin().Flush(client_->Context().get(), {}, &flushed).ok());
  client_.reset();
  PAGODA_ASSERT_OK(daemon_.Stop());
  daemon_.Start();
  Connect();
  ExpectProfileForm(FetchAt(LookupAt(v1::PRECISION_Q4), v1::PRECISION_UNSPECIFIED));
}

TEST_F(LayerProfileDaemonTest, Raw16AndQ8AreAnsweredAtQ4WithTheSameBytes) {
  daemon_.options().ladder.profiles[spec_.model] = ProfileOf(spec_);
  Start(Precision::kRaw16);
  PAGODA_ASSERT_OK(client_->Push(chain_));
  ExpectProfileForm(FetchAt(LookupAt(v1::PRECISION_RAW16), v1::PRECISION_Q4));
  v1::SetLadderRequest request;
  v1::SetLadderResponse response;
  request.set_ladder(v1::PRECISION_Q8);
  ASSERT_TRUE(client_->admin().SetLadder(client_->Context().get(), request, &response).ok());
  const v1::LookupResponse lookup = LookupAt(v1::PRECISION_Q8);
  ExpectProfileForm(FetchAt(lookup, v1::PRECISION_Q4));
  EXPECT_EQ(FetchAt(lookup, v1::PRECISION_Q8)[2].segments,
            EncodedFormOf(FetchAt(lookup, v1::PRECISION_Q8)[2].header, chain_[2], Precision::kQ8)
                .segments);
  // From q8 nothing is encoded again: the planes are cut out.
  request.set_ladder(v1::PRECISION_Q4);
  ASSERT_TRUE(client_->admin().SetLadder(client_->Context().get(), request, &response).ok());
  ExpectProfileForm(FetchAt(LookupAt(v1::PRECISION_Q4), v1::PRECISION_UNSPECIFIED));
}

TEST_F(LayerProfileDaemonTest, AProfileOfAnotherModelIsNotUsed) {
  LayerProfile profile = ProfileOf(spec_);
  profile.identity.bytes[0] ^= 1;
  daemon_.options().ladder.profiles[spec_.model] = profile;
  Start(Precision::kQ4);
  PAGODA_ASSERT_OK(client_->Push(chain_));
  const std::vector<FetchedPage> pages =
      FetchAt(LookupAt(v1::PRECISION_Q4), v1::PRECISION_UNSPECIFIED);
  EXPECT_EQ(pages[3].segments, EncodedFormOf(pages[3].header, chain_[3], Precision::kQ4).segments);
  const v1::ModelStatus model = Model();
  EXPECT_EQ(model.k_lo_layers_size(), 0);
  EXPECT_THAT(model.profile_problem(), ::testing::HasSubstr("measure it with"));
}

}  // namespace
}  // namespace pagoda
