// Goal: a daemon takes each step of a ladder when it is due and not before, with the bytes of the
// page's one encoding, and a lookup never gets less than it names. Method: real daemons, one step
// each; a clock that the test moves; pages compared with encodings made here.
#include "cache-server/testing/encoded_form.h"
#include "cache-server/testing/test_daemon.h"
#include "storage/base/testing/fake_clock.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

class LadderStepsDaemonTest : public ::testing::Test {
 protected:
  static constexpr uint32_t kDocuments = 28;  // 8 MiB at q8, 4 at q4
  void MakeMemoryShort() {
    daemon_.options().host.capacity_bytes = int64_t{16} << 20;
    daemon_.options().policies.host.marks = {.start = 0.4, .stop = 0.3, .hard = 0.95};
  }
  void Start(const Ladder& ladder, const Clock& clock = SystemClock()) {
    daemon_.options().ladder.standard = ladder;
    daemon_.options().session_timeout = absl::Minutes(30);  // nobody sends heartbeats
    daemon_.Start(clock);
    Connect();
  }
  void Connect() {
    client_ = std::make_unique<WireClient>(daemon_.server().address());
    scope_ = client_->Hello(spec_)->scopes(0);
    PAGODA_ASSERT_OK(client_->OpenSession());
  }
  std::vector<TestPage> Document(uint32_t seed) {
    return MakeChain(spec_, scope_, {.seed = seed, .content_seed = seed});
  }
  v1::LookupRequest RequestFor(const std::vector<TestPage>& chain, v1::Precision least) {
    v1::LookupRequest request = client_->LookupFor(spec_, scope_, KeysOf(chain));
    request.set_precision_min(least);
    return request;
  }
  void PushAndSettle(const std::vector<TestPage>& chain) {
    for (int tries = 0; tries < 200; ++tries) {
      const auto pushed = client_->Push(chain);
      PAGODA_ASSERT_OK(pushed);
      ASSERT_TRUE(daemon_.server().AwaitEncoded(absl::Seconds(20)));
      bool all = true;
      for (const v1::PushResponse& response : *pushed) all = all && response.code() == 0;
      if (all) return;
      absl::SleepFor(absl::Milliseconds(10));  // memory is short for a moment
    }
    FAIL() << "no room";
  }
  void Flush() {
    v1::FlushResponse flushed;
    ASSERT_TRUE(client_->admin().Flush(client_->Context().get(), {}, &flushed).ok());
  }
  void DropFromHost() {
    v1::EvictRequest request;
    request.mutable_filter()->set_tier(v1::TIER_HOST);
    v1::EvictResponse response;
    ASSERT_TRUE(client_->admin().Evict(client_->Context().get(), request, &response).ok());
  }
  // What a lookup at `least` finds is at least that, and has the right bytes. Returns its pages.
  int ExpectHonoured(const std::vector<TestPage>& chain, v1::Precision least) {
    const auto lookup = client_->Lookup(RequestFor(chain, least));
    PAGODA_EXPECT_OK(lookup);
    if (!lookup.ok() || lookup->pages_size() == 0) return 0;
    const auto pages = client_->Fetch(client_->FetchFor(*lookup));
    PAGODA_EXPECT_OK(pages);
    int count = 0;
    for (; count < static_cast<int>(pages->size()) && (*pages)[count].code == 0; ++count) {
      const FetchedPage& page = (*pages)[count];
      const Precision precision = PrecisionOf(page.header.planes);
      EXPECT_GE(precision, static_cast<Precision>(least));
      if (precision == Precision::kRaw16) continue;
      EXPECT_EQ(page.segments, EncodedFormOf(page.header, chain[count], precision).segments);
    }
    return count;
  }
  double Metric(const std::string& line) {
    const std::string text = daemon_.server().MetricsText();
    const size_t at = text.find(line + " ");
    return at == std::string::npos ? 0 : std::stod(text.substr(at + line.size() + 1));
  }

  const ModelSpec spec_ = TestModel();
  FakeClock clock_;  // outlives the daemon
  TestDaemon daemon_;
  std::unique_ptr<WireClient> client_;
  v1::ScopeInfo scope_;
};

class SsdStepTest : public LadderStepsDaemonTest,
                    public ::testing::WithParamInterface<Precision> {};

TEST_P(SsdStepTest, SsdGetsItsOwnPrecision) {
  const auto cold = static_cast<v1::Precision>(GetParam());
  const std::string name(PrecisionName(GetParam()));
  Ladder ladder = Precision::kQ8;
  ladder.ssd = GetParam();
  Start(ladder);
  const std::vector<TestPage> chain = Document(1);
  PushAndSettle(chain);
  Flush();
  EXPECT_EQ(ExpectHonoured(chain, v1::PRECISION_Q8), 4);  // memory keeps its own
  EXPECT_EQ(Metric("pagoda_tier_pages{tier=\"host\",precision=\"q8\"}"), 4);
  EXPECT_EQ(Metric("pagoda_tier_pages{tier=\"ssd\",precision=\"" + name + "\"}"), 4);
  ASSERT_TRUE(client_->CloseSession().ok());  // its leases hold pages
  Connect();
  DropFromHost();
  EXPECT_EQ(ExpectHonoured(chain, v1::PRECISION_Q8), 0);
  EXPECT_EQ(ExpectHonoured(chain, cold), 4);
  EXPECT_EQ(Metric("pagoda_tier_pages{tier=\"host\",precision=\"" + name + "\"}"), 4);
  // Who needs more computes it again, and what is pushed then stands in its place.
  const std::string sequence(16, 's');
  client_->OpenSequence(sequence, /*length=*/100000, /*window=*/0, v1::PRECISION_Q8);
  const auto pushed = client_->Push(chain, sequence);
  PAGODA_ASSERT_OK(pushed);
  for (const v1::PushResponse& response : *pushed) {
    EXPECT_EQ(response.outcome(), v1::PUSH_OUTCOME_REPLACED);
  }
  ASSERT_TRUE(daemon_.server().AwaitEncoded(absl::Seconds(20)));
  EXPECT_EQ(ExpectHonoured(chain, v1::PRECISION_Q8), 4);
}

INSTANTIATE_TEST_SUITE_P(Precisions, SsdStepTest,
                         ::testing::Values(Precision::kQ4, Precision::kQ3, Precision::kQ2),
                         [](const auto& info) { return std::string(PrecisionName(info.param)); });

TEST_F(LadderStepsDaemonTest, IdlePagesComeDownAndUsedOnesDoNot) {
  Ladder ladder = Precision::kQ8;
  ladder.idle = Precision::kQ4;
  ladder.idle_after = absl::Minutes(10);
  Start(ladder, clock_);
  const std::vector<TestPage> old = Document(1);
  const std::vector<TestPage> used = Document(2);
  PushAndSettle(old);
  PushAndSettle(used);
  clock_.Advance(absl::Minutes(6));
  daemon_.server().Sweep();
  ASSERT_TRUE(daemon_.server().AwaitEncoded(absl::Seconds(20)));
  EXPECT_EQ(Metric("pagoda_tier_pages{tier=\"host\",precision=\"q8\"}"), 8);
  EXPECT_EQ(ExpectHonoured(used, v1::PRECISION_Q8), 4);  // a use
  clock_.Advance(absl::Minutes(6));
  daemon_.server().Sweep();
  ASSERT_TRUE(daemon_.server().AwaitEncoded(absl::Seconds(20)));
  EXPECT_EQ(Metric("pagoda_tier_pages{tier=\"host\",precision=\"q8\"}"), 4);
  EXPECT_EQ(Metric("pagoda_tier_pages{tier=\"host\",precision=\"q4\"}"), 4);
  EXPECT_EQ(ExpectHonoured(used, v1::PRECISION_Q8), 4);
  EXPECT_EQ(ExpectHonoured(old, v1::PRECISION_Q4), 4);
}

class PressureStepTest : public LadderStepsDaemonTest,
                         public ::testing::WithParamInterface<Precision> {};

TEST_P(PressureStepTest, BitsGoFirstAndComeBackFromSsd) {
  MakeMemoryShort();
  Ladder ladder = Precision::kQ8;
  ladder.pressure = GetParam();
  Start(ladder);
  std::vector<std::vector<TestPage>> documents;
  for (uint32_t seed = 1; seed <= kDocuments; ++seed) {
    documents.push_back(Document(seed));
    PushAndSettle(documents.back());
    Flush();  // all of it is on SSD at q8 before memory gives anything up
  }
  const std::string shed = absl::StrCat("pagoda_shed_bytes_total{place=\"pressure\",precision=\"",
                                        PrecisionName(GetParam()), "\"}");
  for (int i = 0; i < 500 && Metric(shed) == 0; ++i) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_GT(Metric(shed), 0);
  // Whoever asks for q8 gets it: from memory, or from what SSD has kept.
  for (const std::vector<TestPage>& document : documents) {
    EXPECT_EQ(ExpectHonoured(document, static_cast<v1::Precision>(GetParam())), 4);
    EXPECT_EQ(ExpectHonoured(document, v1::PRECISION_Q8), 4);
  }
}

INSTANTIATE_TEST_SUITE_P(Precisions, PressureStepTest,
                         ::testing::Values(Precision::kQ4, Precision::kQ2),
                         [](const auto& info) { return std::string(PrecisionName(info.param)); });

TEST_F(LadderStepsDaemonTest, WithoutThatStepPressureTakesNoPlanes) {
  MakeMemoryShort();
  Start(Precision::kQ8);
  for (uint32_t seed = 1; seed <= kDocuments; ++seed) PushAndSettle(Document(seed));
  EXPECT_EQ(Metric("pagoda_tier_pages{tier=\"host\",precision=\"q4\"}"), 0);
  EXPECT_EQ(Metric("pagoda_tier_pages{tier=\"ssd\",precision=\"q4\"}"), 0);
}

TEST_F(LadderStepsDaemonTest, TheOperatorSeesTheSteps) {
  Ladder ladder = Precision::kQ8;
  ladder.idle = Precision::kQ4;
  ladder.idle_after = absl::Minutes(10);
  ladder.pressure = Precision::kQ4;
  Start(ladder);
  v1::ListModelsResponse models;
  ASSERT_TRUE(client_->admin().ListModels(client_->Context().get(), {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).ladder(), v1::PRECISION_Q8);
  const v1::LadderSteps& steps = models.models(0).steps();
  EXPECT_EQ(steps.idle(), v1::PRECISION_Q4);
  EXPECT_EQ(steps.idle_after_seconds(), 600);
  EXPECT_EQ(steps.pressure(), v1::PRECISION_Q4);
  EXPECT_EQ(steps.ssd(), v1::PRECISION_UNSPECIFIED);
}

}  // namespace
}  // namespace pagoda
