// Goal: which page a query reads in which form depends on its position alone; pages from a cache
// are taken or refused as stated; fidelity, memory and bytes follow. Method: sequences without a
// model, whose raw pages the test fills itself.
#include "client/worker/kv_sequence.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/codec.h"
#include "kernels/float16.h"
#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

constexpr kernels::PageShape kShape = {
    .layer_count = 3, .head_count = 2, .head_dim = 64, .page_tokens = 64};
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

class KvSequenceTest : public testing::Test {
 protected:
  static KvSequence Make(Precision precision, int64_t window_tokens,
                         int64_t token_count_max = 4096) {
    absl::StatusOr<KvSequence> sequence = KvSequence::Make(kShape, 10000,
                                                           {.precision = precision,
                                                            .window_tokens = window_tokens,
                                                            .token_count_max = token_count_max});
    PAGODA_CHECK(sequence.ok());
    return *std::move(sequence);
  }

  // Writes page `page_index` as a forward pass would: numbers that tell pages and rows apart.
  static void WritePage(KvSequence& sequence, int64_t page_index, float scale = 1) {
    for (int32_t layer = 0; layer < kShape.layer_count; ++layer) {
      for (int32_t head = 0; head < kShape.head_count; ++head) {
        const KvSequence::RawRows rows = sequence.MutableRows(page_index, layer, head);
        for (int64_t i = 0; i < int64_t{64} * 64; ++i) {
          const auto value =
              static_cast<float>((page_index * 131 + layer * 17 + head * 7 + i) % 97);
          rows.k[i] = kernels::Bf16FromFloat(scale * (value - 48));
          rows.v[i] = kernels::Bf16FromFloat(scale * (48 - value));
        }
      }
    }
  }

  void Grow(KvSequence& sequence, int64_t page_count) {
    while (sequence.full_page_count() < page_count) {
      const int64_t page = sequence.full_page_count();
      sequence.Prepare(page, page, pool_);
      WritePage(sequence, page);
      sequence.Advance((page + 1) * 64);
    }
  }

  // A page of equal numbers, as a cache would hand it out.
  static PageBuffer Filled(const KvSequence& sequence, int64_t page_index, Precision precision) {
    PageBuffer raw = sequence.NewPage(page_index, Precision::kRaw16);
    for (const MutableByteSpan segment : raw.mutable_segments()) {
      std::memset(segment.data(), 0x3f, segment.size());  // bf16 0.747
    }
    if (precision == Precision::kRaw16) return raw;
    PageBuffer page = sequence.NewPage(page_index, precision);
    PAGODA_CHECK(kernels::EncodePage(raw.header(), raw.segments(), page.mutable_header(),
                                     page.mutable_segments())
                     .ok());
    return page;
  }

  static std::vector<Precision> Read(const KvSequence& sequence, int64_t query_page) {
    std::vector<kernels::PageTile> tiles;
    sequence.CollectTiles(query_page, 64, 1, 1, &tiles);
    std::vector<Precision> precisions;
    for (const kernels::PageTile& tile : tiles) precisions.push_back(tile.precision);
    return precisions;
  }

  static void ExpectSamePage(const PageBuffer& a, const PageBuffer& b) {
    EXPECT_EQ(a.header(), b.header());
    ASSERT_EQ(a.segments().size(), b.segments().size());
    for (size_t i = 0; i < a.segments().size(); ++i) {
      EXPECT_TRUE(a.segments()[i] == b.segments()[i]) << i;
    }
  }

  ThreadPool pool_{2};
};

constexpr Precision kRaw = Precision::kRaw16;
constexpr Precision kQ8 = Precision::kQ8;
constexpr Precision kQ4 = Precision::kQ4;

TEST_F(KvSequenceTest, EncodedPagesFollowTheWindow) {
  EXPECT_EQ(Make(kRaw, 0).EncodedPageCount(100), 0);
  // (p + 1) * 64 <= P * 64 - window, at windows around whole pages.
  struct Case {
    int64_t window, query_page, expected;
  };
  for (const Case& c :
       {Case{0, 0, 0}, Case{0, 1, 1}, Case{1, 1, 0}, Case{1, 2, 1}, Case{64, 2, 1}, Case{65, 2, 0},
        Case{65, 3, 1}, Case{128, 10, 8}, Case{256, 4, 0}, Case{256, 5, 1}}) {
    const KvSequence sequence = Make(kQ4, c.window);
    EXPECT_EQ(sequence.EncodedPageCount(c.query_page), c.expected)
        << c.window << " " << c.query_page;
  }
  EXPECT_EQ(Make(kRaw, 0).ChunkPagesMax(4), 4);
  EXPECT_EQ(Make(kQ4, 0).ChunkPagesMax(4), 1);
  EXPECT_EQ(Make(kQ8, 1).ChunkPagesMax(4), 2);
  EXPECT_EQ(Make(kQ4, 128).ChunkPagesMax(4), 3);
  EXPECT_EQ(Make(kQ4, 1024).ChunkPagesMax(4), 4);
}

TEST_F(KvSequenceTest, QueriesReadWhatTheirPositionSays) {
  for (const Precision precision : {kQ8, kQ4}) {
    KvSequence sequence = Make(precision, 128);
    Grow(sequence, 6);
    EXPECT_EQ(Read(sequence, 5),
              (std::vector<Precision>{precision, precision, precision, kRaw, kRaw, kRaw}));
    EXPECT_EQ(sequence.raw_page(2), nullptr);
    EXPECT_NE(sequence.encoded_page(2), nullptr);
    EXPECT_NE(sequence.raw_page(3), nullptr);
    EXPECT_EQ(sequence.encoded_page(3), nullptr);
    std::vector<kernels::PageTile> tiles;
    sequence.CollectTiles(5, 17, 0, 0, &tiles);
    EXPECT_EQ(tiles[0].sink_count, kernels::kSinkTokens);
    EXPECT_EQ(tiles[1].sink_count, 0);
    EXPECT_EQ(tiles[5].token_count, 17);
    EXPECT_EQ(tiles[5].base_position, 320);
  }
}

TEST_F(KvSequenceTest, FidelityIsTheLowestThatWasRead) {
  KvSequence raw = Make(kRaw, 128);
  Grow(raw, 6);
  KvSequence low = Make(kQ4, 128);
  Grow(low, 6);
  for (int64_t page = 0; page < 6; ++page) {
    EXPECT_EQ(raw.fidelity(page), kRaw);
    // Page 3 is the first that reads an encoded page (0); the later ones read page 3 or 0 itself.
    EXPECT_EQ(low.fidelity(page), page < 3 ? kRaw : kQ4) << page;
  }
  // A page that came with a lower fidelity hands it on.
  KvSequence loaded = Make(kQ4, 1024);
  PAGODA_ASSERT_OK(loaded.AppendLoaded(Filled(loaded, 0, kRaw), kRaw));
  PAGODA_ASSERT_OK(loaded.AppendLoaded(Filled(loaded, 1, kRaw), kQ8));
  Grow(loaded, 3);
  EXPECT_EQ(loaded.fidelity(2), kQ8);
  // So does reading q8 codes where raw16 would be in the window.
  KvSequence codes = Make(kQ4, 1024);
  PAGODA_ASSERT_OK(codes.AppendLoaded(Filled(codes, 0, kQ8), kRaw));
  Grow(codes, 2);
  EXPECT_EQ(codes.fidelity(0), kRaw);
  EXPECT_EQ(codes.fidelity(1), kQ8);
}

TEST_F(KvSequenceTest, UsablePagesKeepTheWindowAndOneToken) {
  const KvSequence q4 = Make(kQ4, 128);
  const std::vector<Precision> low(10, kQ4);
  std::vector<Precision> mixed(10, kQ4);
  std::fill(mixed.begin() + 6, mixed.end(), kQ8);
  // At least one prompt token is left over.
  EXPECT_EQ(q4.UsablePages(std::vector<Precision>(10, kQ8), 0), 0);
  EXPECT_EQ(q4.UsablePages(std::vector<Precision>(10, kQ8), 64), 0);
  EXPECT_EQ(q4.UsablePages(std::vector<Precision>(10, kQ8), 65), 1);
  EXPECT_EQ(q4.UsablePages(std::vector<Precision>(10, kQ8), 10000), 10);
  // Prompt of 10 pages and a bit: pages 8 and 9 are the window of what follows it.
  EXPECT_EQ(q4.UsablePages(low, 641), 8);
  EXPECT_EQ(q4.UsablePages(low, 640), 8);
  EXPECT_EQ(q4.UsablePages(low, 639), 7);
  EXPECT_EQ(q4.UsablePages(low, 10000), 10);  // all of them lie beyond the window
  EXPECT_EQ(q4.UsablePages(mixed, 641), 10);
  EXPECT_EQ(q4.UsablePages(mixed, 480), 5);  // pages 5 and 6 are the window, and 5 is q4
  EXPECT_EQ(q4.UsablePrecision(7, 641), kQ4);
  EXPECT_EQ(q4.UsablePrecision(8, 641), kQ8);
  EXPECT_EQ(Make(kRaw, 128).UsablePrecision(0, 641), kRaw);
  EXPECT_EQ(q4.UsablePages({kQ8, Precision::kQ3, kQ8}, 10000), 1);
  EXPECT_EQ(q4.UsablePages({kQ8, Precision::kOpaque}, 10000), 1);
  EXPECT_EQ(Make(kQ8, 128).UsablePages(mixed, 10000), 0);
  EXPECT_EQ(Make(kRaw, 128).UsablePages({kRaw, kRaw, kQ8}, 10000), 2);
}

TEST_F(KvSequenceTest, LoadedPagesAreCheckedBeforeTheyCount) {
  KvSequence sequence = Make(kQ8, 0, 200);
  EXPECT_THAT(sequence.AppendLoaded(Filled(sequence, 1, kQ8), kRaw),
              StatusIs(kInvalid, "expected 0"));
  EXPECT_THAT(sequence.AppendLoaded(Filled(sequence, 0, kQ4), kRaw), StatusIs(kInvalid, "q4"));
  EXPECT_THAT(sequence.AppendLoaded(Filled(sequence, 0, kQ8), kQ4), StatusIs(kInvalid, "fidelity"));
  EXPECT_EQ(sequence.token_count(), 0);
  const KvSequence other = *KvSequence::Make(
      {.layer_count = 4, .head_count = 2, .head_dim = 64, .page_tokens = 64}, 10000, {});
  EXPECT_FALSE(sequence.AppendLoaded(other.NewPage(0, kQ8), kRaw).ok());
  for (int64_t page = 0; page < 3; ++page) {
    PAGODA_ASSERT_OK(sequence.AppendLoaded(Filled(sequence, page, kQ8), kRaw));
  }
  EXPECT_EQ(sequence.token_count(), 192);
  EXPECT_THAT(sequence.AppendLoaded(Filled(sequence, 3, kQ8), kRaw), StatusIs(kInvalid, "limit"));
}

TEST_F(KvSequenceTest, LoadedQ8IsReadWholeInTheWindowAndAsQ4Beyond) {
  KvSequence sequence = Make(kQ4, 64);
  for (int64_t page = 0; page < 2; ++page) {
    PAGODA_ASSERT_OK(sequence.AppendLoaded(Filled(sequence, page, kQ8), kRaw));
  }
  const int64_t q8_bytes = sequence.stored_bytes();
  sequence.Prepare(2, 2, pool_);
  EXPECT_EQ(Read(sequence, 2), (std::vector<Precision>{kQ4, kQ8, kRaw}));
  // Page 0 has left the window for good: its lo planes are freed, its bytes are those of a q4 page.
  EXPECT_EQ(PrecisionOf(sequence.encoded_page(0)->header().planes), kQ4);
  EXPECT_EQ(PrecisionOf(sequence.encoded_page(1)->header().planes), kQ8);
  ExpectSamePage(*sequence.encoded_page(0), Filled(sequence, 0, kQ4));
  EXPECT_LT(sequence.encoded_page(0)->stored_bytes(), q8_bytes / 2);
}

TEST_F(KvSequenceTest, ALadderReadsQ8ThenQ4OfOneEncoding) {
  const KvOptions options = {.precision = kQ4, .window_tokens = 64, .q8_tokens = 250};
  KvSequence ladder = *KvSequence::Make(kShape, 10000, options);
  EXPECT_EQ(ladder.EncodedPageCount(7), 6);
  EXPECT_EQ(ladder.AgedPageCount(7), 3);
  EXPECT_EQ(ladder.AgedPageCount(2), 0);
  Grow(ladder, 8);
  EXPECT_EQ(Read(ladder, 7), (std::vector<Precision>{kQ4, kQ4, kQ4, kQ8, kQ8, kQ8, kRaw, kRaw}));
  EXPECT_EQ(PrecisionOf(ladder.encoded_page(2)->header().planes), kQ4);
  EXPECT_EQ(PrecisionOf(ladder.encoded_page(3)->header().planes), kQ8);
  EXPECT_EQ(ladder.raw_page(5), nullptr);
  // What is left of an aged page is the page that q4 would have made at once.
  KvSequence at_once = Make(kQ4, 64);
  Grow(at_once, 8);
  ExpectSamePage(*ladder.encoded_page(1), *at_once.encoded_page(1));
  // The first page that reads q4 is page 4; before it only raw16 and q8 were read.
  EXPECT_EQ(ladder.fidelity(1), kRaw);
  EXPECT_EQ(ladder.fidelity(4), kQ8);
  EXPECT_EQ(ladder.fidelity(5), kQ4);
  // Pages of a cache: what the next token reads at q8 must be there at q8.
  std::vector<Precision> precisions(8, kQ4);
  std::fill(precisions.begin() + 4, precisions.end(), kQ8);
  EXPECT_EQ(ladder.UsablePages(precisions, 8 * 64 + 1), 8);
  EXPECT_EQ(ladder.UsablePages(precisions, 7 * 64 + 1), 3);
  EXPECT_EQ(Make(kQ4, 64).UsablePages(std::vector<Precision>(8, kQ4), 8 * 64 + 1), 7);
}

TEST_F(KvSequenceTest, TopCodesOfRicherPagesAreCutOnceTheyHaveAged) {
  for (const Precision precision : {Precision::kQ3, Precision::kQ2}) {
    KvSequence here = Make(precision, 64);
    PAGODA_ASSERT_OK(here.AppendLoaded(Filled(here, 0, kRaw), kRaw));
    PAGODA_ASSERT_OK(here.AppendLoaded(Filled(here, 1, kRaw), kRaw));
    here.Prepare(2, 2, pool_);
    EXPECT_EQ(PrecisionOf(here.encoded_page(0)->header().planes), precision);
    EXPECT_EQ(Read(here, 2), (std::vector<Precision>{kQ4, kRaw, kRaw}));  // widened to q4's form
    const int64_t q4_codes = 3 * (kernels::LayerBytes(kernels::PlaneId::kKHi, kShape) +
                                  kernels::LayerBytes(kernels::PlaneId::kVHi, kShape));
    EXPECT_EQ(here.widened_bytes(), q4_codes);
    EXPECT_GE(here.peak_bytes(), here.stored_bytes());
    for (const Precision stored : {kQ8, kQ4, Precision::kQ3, Precision::kQ2}) {
      if (stored < precision) continue;
      KvSequence sequence = Make(precision, 64);
      PAGODA_ASSERT_OK(sequence.AppendLoaded(Filled(sequence, 0, stored), kRaw));
      // In the window it is read at all its bits.
      EXPECT_EQ(sequence.widened_bytes(), stored < kQ4 ? q4_codes : 0);
      PAGODA_ASSERT_OK(sequence.AppendLoaded(Filled(sequence, 1, kQ8), kRaw));
      sequence.Prepare(2, 2, pool_);
      EXPECT_EQ(sequence.widened_bytes(), q4_codes);
      EXPECT_EQ(sequence.fidelity(2), precision);
      ExpectSamePage(*here.encoded_page(0), *sequence.encoded_page(0));
    }
  }
}

// q8 holds what two bits have no scale for: such a page is read at q8 for good.
TEST_F(KvSequenceTest, PagesThatTopCodesCannotHoldStayWhatTheyAre) {
  KvSequence sequence =
      *KvSequence::Make(kShape, 10000, {.precision = Precision::kQ2, .window_tokens = 64});
  PageBuffer page = Filled(sequence, 0, kQ8);
  auto* scales = reinterpret_cast<uint16_t*>(
      page.mutable_segments()[page.header().planes[1].first_segment].data());
  scales[7] = kernels::Fp16FromFloat(50000);  // a4 of V
  PAGODA_ASSERT_OK(sequence.AppendLoaded(std::move(page), kRaw));
  PAGODA_ASSERT_OK(sequence.AppendLoaded(Filled(sequence, 1, kQ8), kRaw));
  sequence.Prepare(2, 2, pool_);
  EXPECT_EQ(Read(sequence, 2), (std::vector<Precision>{kQ8, kQ8, kRaw}));
  EXPECT_EQ(sequence.fidelity(2), kQ8);
}

TEST_F(KvSequenceTest, ALadderEndsBelowQ8) {
  KvOptions options = {.precision = kQ8, .window_tokens = 64, .q8_tokens = 250};
  EXPECT_THAT(KvSequence::Make(kShape, 10000, options), StatusIs(kInvalid, "sequences below q8"));
  options = {.precision = kQ4, .window_tokens = 64, .q8_tokens = -1};
  EXPECT_THAT(KvSequence::Make(kShape, 10000, options), StatusIs(kInvalid, "-1 tokens at q8"));
}

TEST_F(KvSequenceTest, AProfileReadsTheSameBytesWhereverAPageComesFrom) {
  const auto with = [](std::vector<int32_t> k_lo_layers) {
    KvOptions options;
    options.precision = kQ4;
    options.window_tokens = 0;
    options.k_lo_layers = std::move(k_lo_layers);
    return *KvSequence::Make(kShape, 10000, options);
  };
  const KvSequence plain = with({});
  const KvSequence more = with({0, 1, 2});
  KvSequence here = with({0, 2});
  const PageBuffer raw = Filled(here, 0, kRaw);
  PAGODA_ASSERT_OK(here.AppendLoaded(Filled(here, 0, kRaw), kRaw));
  here.Prepare(1, 1, pool_);  // encoded here
  for (const KvSequence* from : {&plain, &more, const_cast<const KvSequence*>(&here)}) {
    for (const Precision precision : {kQ8, kQ4}) {
      KvSequence sequence = with({0, 2});
      const absl::Status loaded = sequence.AppendLoaded(Filled(*from, 0, precision), kRaw);
      if (from == &plain && precision == kQ4) {
        EXPECT_THAT(loaded, StatusIs(kInvalid, "needed q4 with K lo in 2 layers"));
        continue;
      }
      PAGODA_ASSERT_OK(loaded);
      sequence.Prepare(1, 1, pool_);
      ExpectSamePage(*here.encoded_page(0), *sequence.encoded_page(0));
      for (int32_t layer = 0; layer < kShape.layer_count; ++layer) {
        std::vector<kernels::PageTile> tiles;
        sequence.CollectTiles(1, 64, layer, 0, &tiles);
        EXPECT_EQ(tiles[0].k_lo != nullptr, layer == 0 || layer == 2);
        EXPECT_EQ(tiles[0].v_lo, nullptr);
      }
    }
  }
  KvOptions beyond;
  beyond.k_lo_layers = {kShape.layer_count};
  EXPECT_THAT(KvSequence::Make(kShape, 10000, beyond), StatusIs(kInvalid, "expected layers"));
}

TEST_F(KvSequenceTest, PagesThatCodesCannotHoldStayRaw) {
  KvSequence sequence = Make(kQ4, 0);
  sequence.Prepare(0, 0, pool_);
  WritePage(sequence, 0);
  sequence.MutableRows(0, 2, 1).k[5] = kernels::Bf16FromFloat(INFINITY);
  sequence.Advance(64);
  Grow(sequence, 3);
  EXPECT_EQ(Read(sequence, 2), (std::vector<Precision>{kRaw, kQ4, kRaw}));
  EXPECT_NE(sequence.raw_page(0), nullptr);
}

TEST_F(KvSequenceTest, RewindMakesRoomForTheSamePage) {
  KvSequence sequence = Make(kQ4, 64);
  Grow(sequence, 4);
  sequence.Rewind(3 * 64);
  EXPECT_EQ(sequence.token_count(), 192);
  Grow(sequence, 4);
  EXPECT_EQ(Read(sequence, 3), (std::vector<Precision>{kQ4, kQ4, kRaw, kRaw}));
}

TEST_F(KvSequenceTest, BytesCountWholePages) {
  KvSequence raw = Make(kRaw, 0);
  EXPECT_EQ(raw.stored_bytes(), 0);
  EXPECT_EQ(raw.raw16_bytes_per_token(), 2 * 2 * 3 * 2 * 64);
  raw.Prepare(0, 0, pool_);
  raw.Advance(1);  // one token takes a page
  EXPECT_EQ(raw.stored_bytes(), 4096 + 64 * raw.raw16_bytes_per_token());
  KvSequence low = Make(kQ4, 64);
  Grow(low, 10);
  const int64_t raw_page = low.raw_page(9)->stored_bytes();
  EXPECT_EQ(low.stored_bytes(), 2 * raw_page + low.encoded_page(0)->stored_bytes() +
                                    7 * low.encoded_page(1)->stored_bytes());
}

TEST_F(KvSequenceTest, RefusesBadOptions) {
  const auto make = [](KvOptions options) { return KvSequence::Make(kShape, 1, options); };
  PAGODA_EXPECT_OK(make({}));
  EXPECT_THAT(make({.precision = Precision::kOpaque}), StatusIs(kInvalid, "opaque"));
  EXPECT_THAT(make({.precision = Precision::kNone}), StatusIs(kInvalid));
  EXPECT_THAT(make({.window_tokens = -1}), StatusIs(kInvalid, "window"));
  EXPECT_THAT(make({.token_count_max = 0}), StatusIs(kInvalid, "limit"));
  EXPECT_THAT(make({.token_count_max = (1 << 24) + 1}), StatusIs(kInvalid, "limit"));
  EXPECT_THAT(KvSequence::Make(
                  {.layer_count = 1, .head_count = 1, .head_dim = 12, .page_tokens = 64}, 1, {}),
              StatusIs(kInvalid));
}

}  // namespace
}  // namespace pagoda
