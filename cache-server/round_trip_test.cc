// Goal: what is pushed is what comes back, byte for byte, at the precision that was asked, in the
// order promised; repeated pushes store once. Method: an in-process daemon and the generated stubs.
#include "cache-server/page_encoding.h"
#include "cache-server/testing/test_daemon.h"
#include "kernels/aligned_buffer.h"
#include "kernels/codec.h"
#include "storage/base/crc32c.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

class RoundTripTest : public ::testing::Test {
 protected:
  void Begin() {
    daemon_.Start();
    client_ = std::make_unique<WireClient>(daemon_.server().address());
    hello_ = *client_->Hello(spec_);
    scope_ = hello_.scopes(0);
    PAGODA_ASSERT_OK(client_->OpenSession());
  }
  void PushAll(const std::vector<TestPage>& chain) {
    const auto pushed = client_->Push(chain);
    PAGODA_ASSERT_OK(pushed);
    ASSERT_EQ(pushed->size(), chain.size());
    for (const v1::PushResponse& response : *pushed) {
      EXPECT_EQ(response.code(), 0) << response.message();
      EXPECT_EQ(response.outcome(), v1::PUSH_OUTCOME_STORED);
    }
  }
  // What the daemon should send for this page at a lower precision.
  EncodedCopy Encoded(const FetchedPage& raw, Precision target) {
    EncodedCopy copy;
    copy.header = *kernels::PlanEncodedHeader(raw.header, target);
    std::vector<kernels::AlignedBuffer> sources;
    std::vector<ByteSpan> source_spans;
    for (const std::string& segment : raw.segments) {
      sources.emplace_back(static_cast<int64_t>(segment.size()));
      std::memcpy(sources.back().data(), segment.data(), segment.size());
      source_spans.push_back(sources.back().span());
    }
    std::vector<MutableByteSpan> targets;
    for (const SegmentEntry& segment : copy.header.segments) {
      copy.segments.emplace_back(segment.stored_bytes());
      targets.push_back(copy.segments.back().mutable_span());
    }
    const absl::Status status = kernels::EncodePage(raw.header, source_spans, copy.header, targets);
    EXPECT_THAT(status, IsOk());
    return copy;
  }
  void ExpectSame(const FetchedPage& fetched, const EncodedCopy& expected) {
    ASSERT_EQ(fetched.header.segments.size(), expected.header.segments.size());
    for (size_t i = 0; i < fetched.segments.size(); ++i) {
      const SegmentEntry& entry = expected.header.segments[i];
      EXPECT_EQ(fetched.header.segments[i].crc32c, entry.crc32c);
      EXPECT_TRUE(fetched.segments[i] ==
                  AsText(expected.segments[i].span().subspan(0, entry.length)))
          << "segment " << i;
    }
    EXPECT_EQ(fetched.code, 0);
  }

  const ModelSpec spec_ = TestModel();
  TestDaemon daemon_;
  std::unique_ptr<WireClient> client_;
  v1::HelloResponse hello_;
  v1::ScopeInfo scope_;
};

TEST_F(RoundTripTest, Raw16ComesBackByteForByte) {
  Begin();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  PushAll(chain);
  const auto lookup = client_->Lookup(client_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  ASSERT_EQ(lookup->pages_size(), 4);
  EXPECT_EQ(lookup->lease_id().size(), 16u);
  EXPECT_EQ(lookup->pages(2).base_position(), 128u);
  EXPECT_EQ(lookup->pages(2).state(), v1::PAGE_STATE_READY);
  EXPECT_EQ(lookup->pages(2).precision(), v1::PRECISION_RAW16);
  const auto pages = client_->Fetch(client_->FetchFor(*lookup));
  PAGODA_ASSERT_OK(pages);
  ASSERT_EQ(pages->size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    const FetchedPage& page = (*pages)[i];
    EXPECT_EQ(page.code, 0);
    EXPECT_EQ(page.segments, chain[i].segments);
    EXPECT_EQ(page.header.record.key, chain[i].key);
    EXPECT_EQ(page.header.parent, chain[i].parent);
    EXPECT_EQ(page.header.parent_is_root, i == 0);
    EXPECT_EQ(page.header.identity, IdentityOf(spec_));
    EXPECT_EQ(page.header.rope_theta, 10000);
    EXPECT_EQ(page.header.backend_tag, 7u);
    EXPECT_FALSE(page.header.pusher.is_zero());
    EXPECT_FALSE(page.header.chunk_key.is_zero());
    for (size_t s = 0; s < page.segments.size(); ++s) {
      EXPECT_EQ(Crc32c(AsBytes(page.segments[s])), page.header.segments[s].crc32c);
    }
  }
}

TEST_F(RoundTripTest, ALowerPrecisionIsServedWithoutChangingWhatIsStored) {
  Begin();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  PushAll(chain);
  const auto lookup = client_->Lookup(client_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  const auto raw = client_->Fetch(client_->FetchFor(*lookup));
  PAGODA_ASSERT_OK(raw);
  for (const auto& [wire, precision] : {std::pair{v1::PRECISION_Q8, Precision::kQ8},
                                        {v1::PRECISION_Q4, Precision::kQ4},
                                        {v1::PRECISION_Q3, Precision::kQ3},
                                        {v1::PRECISION_Q2, Precision::kQ2}}) {
    v1::FetchRequest request = client_->FetchFor(*lookup);
    request.set_precision_max(wire);
    const auto pages = client_->Fetch(request);
    PAGODA_ASSERT_OK(pages);
    ASSERT_EQ(pages->size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(PrecisionOf((*pages)[i].header.planes), precision);
      ExpectSame((*pages)[i], Encoded((*raw)[i], precision));
    }
  }
  const auto again = client_->Lookup(client_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(again);
  EXPECT_EQ(again->pages(0).precision(), v1::PRECISION_RAW16);
}

TEST_F(RoundTripTest, PagesAgeToTheLadderAndQ4IsThePrefixOfQ8) {
  daemon_.options().ladder.models["test-model"] = Precision::kQ8;
  Begin();
  EXPECT_EQ(hello_.ladder(), v1::PRECISION_Q8);
  const std::vector<TestPage> chain = MakeChain(spec_, scope_);
  PushAll(chain);
  const v1::LookupRequest request = client_->LookupFor(spec_, scope_, KeysOf(chain));
  const auto lookup = client_->LookupUntil(request, v1::PRECISION_Q8);
  PAGODA_ASSERT_OK(lookup);
  const auto q8 = client_->Fetch(client_->FetchFor(*lookup));
  PAGODA_ASSERT_OK(q8);
  FetchedPage raw;  // As it was pushed: the header of the stored page, the raw plane.
  for (size_t i = 0; i < 4; ++i) {
    raw.header = (*q8)[i].header;
    raw.header.planes.clear();
    raw.header.segments.clear();
    raw.header.rotation = Rotation::kNone;
    raw.header.recipe = CodeRecipe::kNone;
    kernels::AppendPlanes(Precision::kRaw16, kernels::ShapeOf(raw.header), raw.header);
    raw.segments = chain[i].segments;
    ExpectSame((*q8)[i], Encoded(raw, Precision::kQ8));
  }
  v1::FetchRequest hi_only = client_->FetchFor(*lookup);
  hi_only.set_precision_max(v1::PRECISION_Q4);
  const auto q4 = client_->Fetch(hi_only);
  PAGODA_ASSERT_OK(q4);
  EXPECT_EQ(PrecisionOf((*q4)[0].header.planes), Precision::kQ4);
  ASSERT_LT((*q4)[3].segments.size(), (*q8)[3].segments.size());
  for (const std::string& segment : (*q4)[3].segments) {
    EXPECT_NE(std::find((*q8)[3].segments.begin(), (*q8)[3].segments.end(), segment),
              (*q8)[3].segments.end());
  }

  // Fewer bits than planes: cut for the answer, from q8 what raw16 would give.
  v1::FetchRequest cold = client_->FetchFor(*lookup);
  cold.set_precision_max(v1::PRECISION_Q2);
  const auto q2 = client_->Fetch(cold);
  PAGODA_ASSERT_OK(q2);
  raw.header = (*q8)[3].header;
  raw.header.planes.clear();
  raw.header.segments.clear();
  raw.header.rotation = Rotation::kNone;
  raw.header.recipe = CodeRecipe::kNone;
  kernels::AppendPlanes(Precision::kRaw16, kernels::ShapeOf(raw.header), raw.header);
  raw.segments = chain[3].segments;
  ExpectSame((*q2)[3], Encoded(raw, Precision::kQ2));

  // The ladder goes down: lo planes are shed, hi stays as it was.
  v1::SetLadderRequest lower;
  lower.set_ladder(v1::PRECISION_Q4);
  v1::SetLadderResponse queued;
  ASSERT_TRUE(client_->admin().SetLadder(client_->Context().get(), lower, &queued).ok());
  EXPECT_EQ(queued.pages_queued(), 4u);
  const auto lowered = client_->LookupUntil(request, v1::PRECISION_Q4);
  PAGODA_ASSERT_OK(lowered);
  const auto stored_q4 = client_->Fetch(client_->FetchFor(*lowered));
  PAGODA_ASSERT_OK(stored_q4);
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ((*stored_q4)[i].segments, (*q4)[i].segments);
  // q4 is below what this lookup accepts: a miss.
  v1::LookupRequest high = request;
  high.set_precision_min(v1::PRECISION_Q8);
  const auto miss = client_->Lookup(high);
  PAGODA_ASSERT_OK(miss);
  EXPECT_EQ(miss->pages_size(), 0);
}

TEST_F(RoundTripTest, LayerRangesAndPlanesSendExactlyWhatTheHeaderSays) {
  daemon_.options().ladder.standard = Precision::kQ8;
  Begin();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 2});
  PushAll(chain);
  const auto lookup =
      client_->LookupUntil(client_->LookupFor(spec_, scope_, KeysOf(chain)), v1::PRECISION_Q8);
  PAGODA_ASSERT_OK(lookup);
  v1::FetchRequest request = client_->FetchFor(*lookup);
  v1::PlaneSelector& lo = *request.add_planes();
  lo.set_kind(v1::PLANE_KIND_CODES);
  lo.set_bit_begin(0);
  lo.set_bit_count(4);
  request.set_layer_begin(1);
  request.set_layer_count(1);
  const auto pages = client_->Fetch(request);
  PAGODA_ASSERT_OK(pages);
  ASSERT_EQ(pages->size(), 2u);
  ASSERT_EQ((*pages)[0].header.planes.size(), 2u);  // K lo, V lo
  for (const PlaneEntry& plane : (*pages)[0].header.planes) {
    EXPECT_EQ(plane.bit_begin, 0);
    EXPECT_LE(plane.layer_begin, 1);
    EXPECT_GE(plane.layer_begin + plane.layer_count, 2);
  }
  for (size_t s = 0; s < (*pages)[0].segments.size(); ++s) {
    EXPECT_EQ(Crc32c(AsBytes((*pages)[0].segments[s])), (*pages)[0].header.segments[s].crc32c);
  }
  v1::FetchRequest second = client_->FetchFor(*lookup);
  second.set_page_begin(1);
  second.set_page_count(1);
  const auto one = client_->Fetch(second);
  PAGODA_ASSERT_OK(one);
  ASSERT_EQ(one->size(), 1u);
  EXPECT_EQ((*one)[0].header.record.key, chain[1].key);
}

TEST_F(RoundTripTest, ManySmallPiecesAndSplitMessagesMakeTheSamePage) {
  Begin();
  const std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 1});
  const auto context = client_->Context();
  const auto stream = client_->cache().Push(context.get());
  v1::PushRequest start;
  start.set_session_id(client_->session_id());
  *start.mutable_page() = chain[0].start;
  ASSERT_TRUE(stream->Write(start));
  for (size_t s = 0; s < chain[0].segments.size(); ++s) {
    const std::string& segment = chain[0].segments[s];
    for (size_t at = 0; at < segment.size(); at += 999) {
      v1::PushRequest message;
      v1::Piece& piece = *message.add_pieces();
      piece.set_segment_index(static_cast<uint32_t>(s));
      piece.set_offset(at);
      piece.set_data(segment.substr(at, 999));
      ASSERT_TRUE(stream->Write(message));
    }
  }
  v1::PushRequest commit;
  commit.set_commit(true);
  ASSERT_TRUE(stream->Write(commit));
  stream->WritesDone();
  v1::PushResponse response;
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.outcome(), v1::PUSH_OUTCOME_STORED) << response.message();
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_TRUE(stream->Finish().ok());
  const auto lookup = client_->Lookup(client_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  const auto pages = client_->Fetch(client_->FetchFor(*lookup));
  PAGODA_ASSERT_OK(pages);
  EXPECT_EQ((*pages)[0].segments, chain[0].segments);
}

TEST_F(RoundTripTest, TwoPushersOfOneDocumentStoreItOnce) {
  Begin();
  WireClient other(daemon_.server().address());
  PAGODA_ASSERT_OK(other.OpenSession());
  const std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 24});
  int stored = 0;
  int already = 0;
  const auto count = [&](const absl::StatusOr<std::vector<v1::PushResponse>>& pushed) {
    PAGODA_ASSERT_OK(pushed);
    ASSERT_EQ(pushed->size(), chain.size());
    for (const v1::PushResponse& response : *pushed) {
      EXPECT_EQ(response.code(), 0) << response.message();
      stored += response.outcome() == v1::PUSH_OUTCOME_STORED;
      already += response.outcome() == v1::PUSH_OUTCOME_ALREADY_STORED;
    }
  };
  absl::StatusOr<std::vector<v1::PushResponse>> theirs;
  std::thread thread([&] { theirs = other.Push(chain); });
  const auto ours = client_->Push(chain);
  thread.join();
  count(ours);
  count(theirs);
  EXPECT_EQ(stored, 24);
  EXPECT_EQ(already, 24);
  const auto status = client_->Status();
  PAGODA_ASSERT_OK(status);
  EXPECT_EQ(status->pages(), 24u);
  EXPECT_EQ(status->staged_pages(), 0u);
  EXPECT_EQ(status->counters().at("pagoda_put_pages_total{result=\"stored\"}"), 24u);
  EXPECT_EQ(status->counters().at("pagoda_put_pages_total{result=\"duplicate\"}"), 24u);
}

TEST_F(RoundTripTest, FidelityRisesAndNeverFalls) {
  Begin();
  std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 1});
  std::vector<TestPage> low = MakeChain(spec_, scope_, {.page_count = 1, .content_seed = 2});
  low[0].start.set_fidelity(v1::PRECISION_Q8);
  const auto outcome = [&](const std::vector<TestPage>& pages) {
    const auto pushed = client_->Push(pages);
    EXPECT_THAT(pushed, IsOk());
    return pushed.ok() ? (*pushed)[0].outcome() : v1::PUSH_OUTCOME_UNSPECIFIED;
  };
  EXPECT_EQ(outcome(low), v1::PUSH_OUTCOME_STORED);
  v1::LookupRequest exact = client_->LookupFor(spec_, scope_, KeysOf(chain));
  exact.set_fidelity_min(v1::PRECISION_RAW16);
  EXPECT_EQ(client_->Lookup(exact)->pages_size(), 0);
  EXPECT_EQ(outcome(chain), v1::PUSH_OUTCOME_REPLACED);
  EXPECT_EQ(client_->Lookup(exact)->pages_size(), 1);
  EXPECT_EQ(outcome(low), v1::PUSH_OUTCOME_ALREADY_STORED);
  const auto lookup = client_->Lookup(exact);
  const auto pages = client_->Fetch(client_->FetchFor(*lookup));
  PAGODA_ASSERT_OK(pages);
  EXPECT_EQ((*pages)[0].segments, chain[0].segments);
  // The same key and arithmetic with other bytes: stored bytes stay, the difference is counted.
  const std::vector<TestPage> odd = MakeChain(spec_, scope_, {.page_count = 1, .content_seed = 3});
  EXPECT_EQ(outcome(odd), v1::PUSH_OUTCOME_ALREADY_STORED);
  EXPECT_EQ(client_->Status()->counters().at("pagoda_pusher_mismatch_total"), 1u);
}

TEST_F(RoundTripTest, PagesWithInfinityStayRaw16AndAreServed) {
  daemon_.options().ladder.standard = Precision::kQ4;
  Begin();
  std::vector<TestPage> chain = MakeChain(spec_, scope_, {.page_count = 1});
  chain[0].segments[0][0] = static_cast<char>(0x80);  // bf16 infinity
  chain[0].segments[0][1] = static_cast<char>(0x7f);
  chain[0].start.set_segment_crc32c(0, Crc32c(AsBytes(chain[0].segments[0])));
  PushAll(chain);
  ASSERT_TRUE(daemon_.server().AwaitEncoded(absl::Seconds(5)));
  const auto lookup = client_->Lookup(client_->LookupFor(spec_, scope_, KeysOf(chain)));
  PAGODA_ASSERT_OK(lookup);
  ASSERT_EQ(lookup->pages_size(), 1);
  EXPECT_EQ(lookup->pages(0).precision(), v1::PRECISION_RAW16);
  v1::FetchRequest request = client_->FetchFor(*lookup);
  request.set_precision_max(v1::PRECISION_Q4);
  const auto pages = client_->Fetch(request);
  PAGODA_ASSERT_OK(pages);
  EXPECT_EQ((*pages)[0].segments, chain[0].segments);
  EXPECT_GE(client_->Status()->counters().at("pagoda_encode_failures_total{reason=\"values\"}"),
            1u);
}

}  // namespace
}  // namespace pagoda
