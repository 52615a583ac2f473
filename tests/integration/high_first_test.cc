// Goal: with PlaneOrder::kHighFirst all that q4 is read from comes before any lower bits, by every
// path; the whole is what it would have been; and where the lower bits are lost on their way the
// page is one at q4, and the status says so. Method: a real daemon with pages at q8, shared memory,
// gRPC, a slow relay that is cut, and the test's own encoding of what was pushed.
#include <gtest/gtest.h>

#include <cstring>

#include "cache-server/testing/encoded_form.h"
#include "client/cli/slow_relay.h"
#include "client/high_planes.h"
#include "tests/integration/shm_fixture.h"

namespace pagoda {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(30);

class HighFirstTest : public ShmTest {
 protected:
  void StartAt(Precision precision) {
    daemon_.options().ladder.standard = precision;
    Start();
    chain_ = MakeChain(spec_, scope_, {.page_count = 16});
    Push(chain_);
    ASSERT_TRUE(daemon_.server().AwaitEncoded(kPatience));
  }
  std::unique_ptr<client::Client> ClientAt(const std::string& target, const std::string& shm) {
    client::ClientOptions options;
    options.target = target;
    options.model = spec_;
    options.shm_socket = shm;
    options.reconnect_interval = absl::Milliseconds(50);
    options.transfer_timeout = kPatience;
    auto made = client::Client::Create(options);
    PAGODA_CHECK(made.ok());
    PAGODA_CHECK((*made)->WaitConnected(kPatience).ok());
    return *std::move(made);
  }

  // A fetch into memory of the test's own, filled with a mark.
  struct Started {
    std::unique_ptr<client::PageFetch> fetch;
    std::shared_ptr<std::vector<std::vector<std::string>>> memory;  // by page, by segment
    client::LookupResult hit;
  };
  Started StartFetch(client::Client& client) {
    Started started;
    started.memory = std::make_shared<std::vector<std::vector<std::string>>>(chain_.size());
    const auto hit = Find(client, chain_);
    PAGODA_CHECK(hit.ok());
    started.hit = *hit;
    client::FetchOptions options;
    options.order = client::PlaneOrder::kHighFirst;
    options.target = [memory = started.memory](uint32_t index, const PageHeader& header) {
      std::vector<MutableByteSpan> spans;
      for (const SegmentEntry& segment : header.segments) {
        (*memory)[index].emplace_back(static_cast<size_t>(segment.stored_bytes()), '\x5a');
      }
      for (std::string& segment : (*memory)[index]) {
        spans.push_back({reinterpret_cast<std::byte*>(segment.data()), segment.size()});
      }
      return spans;
    };
    auto fetch = client.StartFetch(*hit, Keys(chain_), options);
    PAGODA_CHECK(fetch.ok());
    started.fetch = *std::move(fetch);
    return started;
  }
  // Of every page, the segments that q4 is read from (or the others) are what encoding gives.
  void ExpectSegments(const Started& started, const std::vector<PageHeader>& headers, bool high) {
    ASSERT_EQ(headers.size(), chain_.size());
    for (size_t p = 0; p < headers.size(); ++p) {
      const EncodedForm form = EncodedFormOf(headers[p], chain_[p], Precision::kQ8);
      const std::vector<bool> is_high = client::HighSegments(headers[p]);
      ASSERT_EQ(is_high.size(), form.segments.size());
      for (size_t s = 0; s < is_high.size(); ++s) {
        if (is_high[s] != high) continue;
        EXPECT_EQ((*started.memory)[p][s].substr(0, form.segments[s].size()), form.segments[s])
            << "page " << p << " segment " << s;
      }
    }
  }
  // Pages without their lower bits, with what came of them still in the caller's memory.
  void ExpectReduced(const client::FetchResult& result) {
    ASSERT_EQ(result.pages.size(), chain_.size());
    EXPECT_FALSE(result.status.ok());
    EXPECT_GT(result.reduced_pages, 0);
    int64_t at_q4 = 0;
    for (const client::FetchedPage& page : result.pages) {
      const Precision precision = PrecisionOf(page.header.planes);
      EXPECT_TRUE(precision == Precision::kQ4 || precision == Precision::kQ8);
      at_q4 += precision == Precision::kQ4;
    }
    EXPECT_EQ(at_q4, result.reduced_pages);
  }

  std::vector<TestPage> chain_;
};

// The order on the wire, by a reader that sees every message.
TEST_F(HighFirstTest, TheDaemonSendsLowerBitsLast) {
  StartAt(Precision::kQ8);
  const auto lookup = wire_->LookupUntil(
      [&] {
        v1::LookupRequest request = wire_->LookupFor(spec_, scope_, KeysOf(chain_));
        request.set_precision_min(v1::PRECISION_Q4);
        request.set_fidelity_min(v1::PRECISION_Q4);
        return request;
      }(),
      v1::PRECISION_Q8);
  PAGODA_ASSERT_OK(lookup);
  v1::FetchRequest request = wire_->FetchFor(*lookup);
  request.set_order(v1::PLANE_ORDER_HIGH_FIRST);
  const auto context = wire_->Context(30);
  const auto stream = wire_->cache().Fetch(context.get());
  (void)stream->Write(request);
  (void)stream->WritesDone();
  v1::FetchResponse response;
  std::map<uint32_t, std::vector<bool>> is_high;
  bool lower_bits = false;
  int pieces = 0;
  while (stream->Read(&response)) {
    for (const v1::PageStart& start : response.starts()) {
      const auto header = DecodePageHeader(AsBytes(start.header()));
      PAGODA_ASSERT_OK(header);
      is_high[start.page_index()] = client::HighSegments(*header);
    }
    for (const v1::Piece& piece : response.pieces()) {
      const bool high = is_high[piece.page_index()].at(piece.segment_index());
      EXPECT_FALSE(high && lower_bits);
      lower_bits = lower_bits || !high;
      ++pieces;
    }
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(lower_bits);
  EXPECT_GT(pieces, 32);
}

TEST_F(HighFirstTest, TheWholeIsTheSameByEveryPath) {
  StartAt(Precision::kQ8);
  for (const bool shm : {true, false}) {
    SCOPED_TRACE(shm ? "shm" : "grpc");
    const auto client = ClientAt(daemon_.server().address(), shm ? "" : "none");
    const auto plain = Fetch(*client, chain_);
    PAGODA_ASSERT_OK(plain);
    Started started = StartFetch(*client);
    PAGODA_ASSERT_OK(started.fetch->WaitHighPlanes(kPatience));
    const auto headers = started.fetch->WaitHeaders(kPatience);
    PAGODA_ASSERT_OK(headers);
    ExpectSegments(started, *headers, /*high=*/true);
    if (shm) {  // who waits copies: nothing of lo was touched
      const std::vector<bool> is_high = client::HighSegments(headers->at(0));
      for (size_t s = 0; s < is_high.size(); ++s) {
        if (!is_high[s]) {
          EXPECT_EQ((*started.memory)[0][s][0], '\x5a');
        }
      }
    }
    PAGODA_EXPECT_OK(started.fetch->WaitLayer(spec_.groups[0].layer_count - 1, kPatience));
    const client::FetchResult result = started.fetch->Wait();
    PAGODA_EXPECT_OK(result.status);
    EXPECT_EQ(result.reduced_pages, 0);
    EXPECT_EQ(result.bytes, plain->bytes);
    ASSERT_EQ(result.pages.size(), chain_.size());
    for (size_t p = 0; p < chain_.size(); ++p) {
      EXPECT_EQ(result.pages[p].header, plain->pages[p].header);
    }
    ExpectSegments(started, *headers, /*high=*/false);
    EXPECT_EQ(client->stats().shm.fetches, shm ? 2 : 0);
    EXPECT_EQ(client->stats().grpc.fetches, shm ? 0 : 2);
  }
}

// The connection is cut while lo travels. A busy machine may have it all by then: again, slower.
TEST_F(HighFirstTest, WhatIsCutOffAfterHiIsAHitAtQ4) {
  StartAt(Precision::kQ8);
  const std::string path = daemon_.folder() + "/relay";
  bool cut_in_time = false;
  double bytes_per_second = 2e6;
  for (int attempt = 0; attempt < 5 && !cut_in_time; ++attempt, bytes_per_second /= 2) {
    auto relay = cli::SlowRelay::Start(path, daemon_.folder() + "/socket", bytes_per_second);
    PAGODA_ASSERT_OK(relay);
    const auto client = ClientAt("unix:" + path, "none");
    Started started = StartFetch(*client);
    PAGODA_ASSERT_OK(started.fetch->WaitHighPlanes(kPatience));
    const auto headers = started.fetch->WaitHeaders(kPatience);
    PAGODA_ASSERT_OK(headers);
    relay->reset();
    const client::FetchResult result = started.fetch->Wait();
    ExpectSegments(started, *headers, /*high=*/true);
    cut_in_time = result.reduced_pages > 0;
    if (cut_in_time) ExpectReduced(result);
  }
  EXPECT_TRUE(cut_in_time);
}

TEST_F(HighFirstTest, WhatIsCancelledAfterHiIsAHitAtQ4) {
  StartAt(Precision::kQ8);
  const auto client = ClientAt(daemon_.server().address(), "");
  Started started = StartFetch(*client);
  PAGODA_ASSERT_OK(started.fetch->WaitHighPlanes(kPatience));
  started.fetch->Cancel();
  const client::FetchResult result = started.fetch->Wait();
  ExpectReduced(result);
  EXPECT_EQ(result.reduced_pages, static_cast<int64_t>(chain_.size()));
  EXPECT_TRUE(absl::IsCancelled(result.status));
}

// The daemon sheds lo between the lookup and the fetch: a lease keeps what it found, so that the
// pages come whole; the next lookup finds them at q4, where nothing is missing.
TEST_F(HighFirstTest, LoThatIsShedMeanwhileIsStillTheLeases) {
  StartAt(Precision::kQ8);
  for (const bool shm : {true, false}) {
    SCOPED_TRACE(shm ? "shm" : "grpc");
    const auto client = ClientAt(daemon_.server().address(), shm ? "" : "none");
    Started started = StartFetch(*client);
    PAGODA_ASSERT_OK(started.fetch->WaitHighPlanes(kPatience));
    v1::SetLadderRequest request;
    request.set_ladder(v1::PRECISION_Q4);
    v1::SetLadderResponse response;
    ASSERT_TRUE(wire_->admin().SetLadder(wire_->Context().get(), request, &response).ok());
    ASSERT_TRUE(daemon_.server().AwaitEncoded(kPatience));
    const client::FetchResult result = started.fetch->Wait();
    PAGODA_EXPECT_OK(result.status);
    EXPECT_EQ(result.pages.size(), chain_.size());
    EXPECT_EQ(result.reduced_pages, 0);
    client->Release(started.hit.lease);
    started.fetch.reset();
    const auto later = Fetch(*client, chain_, {.order = client::PlaneOrder::kHighFirst});
    PAGODA_ASSERT_OK(later);
    PAGODA_EXPECT_OK(later->status);
    ASSERT_EQ(later->pages.size(), chain_.size());
    EXPECT_EQ(PrecisionOf(later->pages[0].header.planes), Precision::kQ4);
    EXPECT_EQ(later->reduced_pages, 0);
  }
}

// raw16 has no lower bits of a code: all of it is needed, and comes first.
TEST_F(HighFirstTest, ExactPagesAreAllHigh) {
  StartAt(Precision::kRaw16);
  const auto client = ClientAt(daemon_.server().address(), "none");
  const auto hit = Find(*client, chain_);
  PAGODA_ASSERT_OK(hit);
  auto fetch = client->StartFetch(*hit, Keys(chain_), {.order = client::PlaneOrder::kHighFirst});
  PAGODA_ASSERT_OK(fetch);
  PAGODA_EXPECT_OK((*fetch)->WaitHighPlanes(kPatience));
  ExpectPushed((*fetch)->Wait(), chain_);
}

}  // namespace
}  // namespace pagoda
