// Goal: what has changed while a page waited for the encoder counts, and no page keeps others from
// their turn. Method: an encoder over a store without SSD, real pages, a clock that the test moves.
#include "cache-server/encoder.h"

#include <cstring>

#include "kernels/testing/random_page.h"
#include "storage/testing/store_fixture.h"

namespace pagoda {
namespace {

class EncoderTest : public StoreTest {
 protected:
  EncoderTest() {
    LadderOptions ladder;
    ladder.standard.idle = Precision::kQ4;
    ladder.standard.idle_after = absl::Minutes(10);
    models_.emplace(ladder, /*models_max=*/4, /*path=*/"");
  }
  void Start(uint32_t queue_pages_max) {
    OpenWithoutSsd();
    Encoder::Options options;
    options.queue_pages_max = queue_pages_max;
    encoder_.emplace(options, *store_, *models_, metrics_, clock_);
  }
  PageRef PushRaw(uint32_t token) {
    const kernels::PageShape shape = {
        .layer_count = 2, .head_count = 2, .head_dim = 64, .page_tokens = 64};
    const kernels::TestPage raw = kernels::RandomRawPage(shape, /*base_position=*/64, token);
    PageHeader header = HeaderOf(TestRoot(token));
    header.record.head_count = raw.header.record.head_count;
    header.layer_count = raw.header.layer_count;
    header.base_position = raw.header.base_position;
    header.planes = raw.header.planes;
    header.segments = raw.header.segments;
    header.content_hash = {};
    AssignOffsets(header);
    auto staged = store_->Stage(header.scope, header);
    PAGODA_EXPECT_OK(staged);
    for (size_t i = 0; i < raw.segments.size(); ++i) {
      const ByteSpan from = raw.spans()[i];
      std::memcpy(staged->padded_segment(i).data(), from.data(), from.size());
    }
    PAGODA_EXPECT_OK(store_->Commit(*std::move(staged)));
    return {header.record, header.scope};
  }
  Precision PrecisionNow(const PageRef& page) {
    EXPECT_TRUE(encoder_->AwaitIdle(absl::Seconds(60)));
    return store_->GetResident(page.record, page.scope)->precision();
  }

  std::optional<ModelRegistry> models_;
  Metrics metrics_{{}, {}};
  std::optional<Encoder> encoder_;  // goes before the store
};

TEST_F(EncoderTest, APageThatWasUsedSinceTheScanIsNotIdle) {
  Start(/*queue_pages_max=*/100);
  const PageRef page = PushRaw(1);
  encoder_->Consider(page, absl::Hours(1));  // so it was when it was seen
  EXPECT_EQ(PrecisionNow(page), Precision::kQ8);
  clock_.Advance(absl::Hours(1));
  encoder_->Consider(page, absl::Hours(1));
  EXPECT_EQ(PrecisionNow(page), Precision::kQ4);
  encoder_.reset();
}

TEST_F(EncoderTest, WhatNobodyCanWriteIsNotQueued) {
  Start(/*queue_pages_max=*/100);
  const PageRef page = PushRaw(1);
  EXPECT_EQ(encoder_->ConsiderAll(std::nullopt), 1);
  EXPECT_EQ(PrecisionNow(page), Precision::kQ8);
  EXPECT_EQ(store_->Stats().dirty_page_count, 1);
  EXPECT_EQ(encoder_->ConsiderAll(std::nullopt), 0);
  encoder_.reset();
}

TEST_F(EncoderTest, AScanGoesOnWhereTheQueueWasFull) {
  constexpr uint32_t kHeld = 8;
  Start(/*queue_pages_max=*/1);
  std::vector<SequencePage> held;
  for (uint32_t i = 1; i <= kHeld; ++i) held.push_back({PushRaw(i), /*end_position=*/128});
  const PageRef last = PushRaw(kHeld + 1);
  // Above the ladder, and they have to stay so.
  PAGODA_ASSERT_OK(encoder_->AttachPages(SessionId{}, SequenceId{}, held));
  for (uint32_t i = 0; i <= kHeld; ++i) {
    EXPECT_GT(encoder_->ConsiderAll(std::nullopt), 0);
    EXPECT_TRUE(encoder_->AwaitIdle(absl::Seconds(60)));
  }
  EXPECT_EQ(PrecisionNow(last), Precision::kQ8);
  EXPECT_EQ(PrecisionNow(held[0].page), Precision::kRaw16);
  encoder_.reset();
}

}  // namespace
}  // namespace pagoda
