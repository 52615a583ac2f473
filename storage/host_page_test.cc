// Goal: a page is exactly what was staged, its padding shows nothing, and its bytes come back when
// the last holder is gone. Method: stage over dirty memory, freeze, compare; break each rule.
#include "storage/host_page.h"

#include <gtest/gtest.h>

#include <cstring>

#include "storage/base/crc32c.h"
#include "storage/base/testing/status_matchers.h"
#include "storage/testing/test_pages.h"

namespace pagoda {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

std::shared_ptr<HostTier> MakeTier() {
  HostTierOptions options;
  options.capacity_bytes = 8 << 20;
  return *HostTier::Create(options);
}

TEST(HostPageTest, FrozenPageIsWhatWasStaged) {
  const auto tier = MakeTier();
  const TestPage spec = TestRoot(1);
  StagedPage staged = *StagedPage::Create(tier, HeaderOf(spec));
  Fill(spec, staged);
  staged.mutable_header().content_hash = ContentHashOf(staged.header().segments);
  PAGODA_EXPECT_OK(staged.VerifyChecksums());
  EXPECT_EQ(staged.bytes(), HeaderOf(spec).stored_bytes());
  HostPagePtr page = *StagedPage::Freeze(std::move(staged));
  EXPECT_TRUE(IsExactly(*page, spec));
  EXPECT_EQ(page->precision(), Precision::kRaw16);
  EXPECT_EQ(page->bytes(), tier->usage().used_bytes);
  page = nullptr;
  EXPECT_EQ(tier->usage().used_bytes, 0);
}

TEST(HostPageTest, PaddingOfDirtyMemoryIsCleared) {
  const auto tier = MakeTier();
  const TestPage spec = TestRoot(1);
  for (int round = 0; round < 2; ++round) {  // the second round reuses what the first soiled
    StagedPage staged = *StagedPage::Create(tier, HeaderOf(spec));
    for (size_t i = 0; i < staged.segment_count(); ++i) {
      const MutableByteSpan payload = staged.segment(i);
      for (size_t at = payload.size(); at < 8192; ++at) {
        ASSERT_EQ(payload.data()[at], std::byte{0});
      }
      std::memset(payload.data(), 0xff, 8192);  // padding too, as no honest writer would
    }
  }
}

TEST(HostPageTest, AMovedPageSharesWhatDoesNotMove) {
  const auto tier = MakeTier();
  TestPage spec = TestRoot(1);
  spec.segment_bytes = (1 << 20) - 1;  // a chunk, or nearly one, for each segment
  const auto make = [&] {
    StagedPage staged = *StagedPage::Create(tier, HeaderOf(spec));
    Fill(spec, staged);
    staged.mutable_header().content_hash = ContentHashOf(staged.header().segments);
    return *StagedPage::Freeze(std::move(staged));
  };
  const HostPagePtr page = make();
  page->SetUse(SlabUse::kResident, 1);
  const uint32_t header_chunk = 0;
  EXPECT_EQ(page->BytesIn(header_chunk), page->header().header_bytes());
  // There is no hole of that size elsewhere.
  EXPECT_THAT(page->MovedOutOf(1), StatusIs(absl::StatusCode::kResourceExhausted));
  // A chunk in which nothing of it lies: the move is a copy of nothing.
  const HostPagePtr same = *page->MovedOutOf(7);
  EXPECT_TRUE(IsExactly(*same, spec));
  EXPECT_EQ(same->segment(0).data(), page->segment(0).data());
  EXPECT_EQ(tier->usage().used_bytes, page->bytes());
  PAGODA_EXPECT_OK(tier->CheckAccounting());
}

TEST(HostPageTest, AMoveCopiesVerifiesAndLeavesTheOldPageAlone) {
  const auto tier = MakeTier();
  const TestPage spec = TestRoot(1);
  const auto make = [&] {
    StagedPage staged = *StagedPage::Create(tier, HeaderOf(spec));
    Fill(spec, staged);
    staged.mutable_header().content_hash = ContentHashOf(staged.header().segments);
    return *StagedPage::Freeze(std::move(staged));
  };
  // Segments of 8192 bytes, 128 in a chunk: the second chunk gets the last page's.
  std::vector<HostPagePtr> pages;
  for (int i = 0; i < 65; ++i) pages.push_back(make());
  HostPagePtr page = pages.back();
  const uint32_t chunk = 2;
  ASSERT_EQ(page->BytesIn(chunk), 16384);
  pages.clear();  // holes in the first
  // Something must hold the first chunk open.
  std::vector<Slab> anchor;
  anchor.push_back(*tier->Allocate(spec.scope(), 8192));
  while (anchor.back().chunk() == chunk) anchor.push_back(*tier->Allocate(spec.scope(), 8192));
  HostPagePtr moved = *page->MovedOutOf(chunk);
  EXPECT_TRUE(IsExactly(*moved, spec));
  EXPECT_TRUE(IsExactly(*page, spec));
  EXPECT_EQ(moved->BytesIn(chunk), 0);
  EXPECT_EQ(moved->header_bytes().data(), page->header_bytes().data());
  EXPECT_NE(moved->segment(0).data(), page->segment(0).data());
  // A flipped bit in memory is noticed before it spreads.
  const_cast<std::byte*>(page->segment(1).data())[0] ^= std::byte{1};
  EXPECT_THAT(page->MovedOutOf(chunk), StatusIs(absl::StatusCode::kDataLoss, "segment 1"));
}

TEST(HostPageTest, BytesComeBackWhereverAStagedPageIsLeft) {
  const auto tier = MakeTier();
  const TestPage spec = TestRoot(1);
  {
    StagedPage first = *StagedPage::Create(tier, HeaderOf(spec));
    StagedPage second = *StagedPage::Create(tier, HeaderOf(spec));
    const int64_t one = second.bytes();
    first = std::move(second);
    EXPECT_EQ(tier->usage().used_bytes, one);
  }
  EXPECT_EQ(tier->usage().used_bytes, 0);
}

TEST(HostPageTest, PageOutlivesItsTiersOwner) {
  auto tier = MakeTier();
  const TestPage spec = TestRoot(1);
  StagedPage staged = *StagedPage::Create(tier, HeaderOf(spec));
  Fill(spec, staged);
  staged.mutable_header().content_hash = ContentHashOf(staged.header().segments);
  const HostPagePtr page = *StagedPage::Freeze(std::move(staged));
  tier = nullptr;
  EXPECT_TRUE(IsExactly(*page, spec));
}

TEST(HostPageTest, AppendedBytesAreCheckedOnTheWay) {
  const auto tier = MakeTier();
  const TestPage spec = TestRoot(1);
  StagedPage staged = *StagedPage::Create(tier, HeaderOf(spec));
  Fill(spec, staged);
  StagedPage appended = *StagedPage::Create(tier, staged.header());
  for (size_t i = 0; i < staged.segment_count(); ++i) {
    const ByteSpan bytes = staged.segment(i);
    const size_t cut = std::min<size_t>(bytes.size(), 7);
    appended.Append(i, bytes.subspan(0, cut));
    appended.Append(i, bytes.subspan(cut));
    EXPECT_EQ(appended.appended_crc32c(i), Crc32c(bytes));
  }
  PAGODA_EXPECT_OK(appended.VerifyChecksums());
  appended.mutable_header().segments[1].crc32c ^= 1;
  EXPECT_THAT(appended.VerifyChecksums(), StatusIs(absl::StatusCode::kDataLoss, "segment 1"));

  // What did not come to its end is read again.
  StagedPage part = *StagedPage::Create(tier, staged.header());
  Fill(spec, part);
  part.Append(1, ByteSpan(staged.segment(1)).subspan(0, 1));
  PAGODA_EXPECT_OK(part.VerifyChecksums());
  part.segment(1).back() ^= std::byte{1};
  EXPECT_THAT(part.VerifyChecksums(), StatusIs(absl::StatusCode::kDataLoss, "segment 1"));
}

TEST(HostPageTest, WrongChecksumIsNamed) {
  const auto tier = MakeTier();
  const TestPage spec = TestRoot(1);
  StagedPage staged = *StagedPage::Create(tier, HeaderOf(spec));
  Fill(spec, staged);
  staged.segment(1).back() ^= std::byte{1};
  EXPECT_THAT(staged.VerifyChecksums(), StatusIs(absl::StatusCode::kDataLoss, "segment 1"));
}

TEST(HostPageTest, TablesThatBreakTheRulesAreRefused) {
  const auto tier = MakeTier();
  const PageHeader good = HeaderOf(TestRoot(1));
  PageHeader bad = good;
  bad.segments[0].length = 0;
  EXPECT_THAT(StagedPage::Create(tier, bad), StatusIs(kInvalid, "segment 0"));
  bad = good;
  bad.segments[1].length = (1 << 20) + 1;
  EXPECT_THAT(StagedPage::Create(tier, bad), StatusIs(kInvalid, "one chunk"));
  bad = good;
  bad.planes[0].layer_count = 1;
  EXPECT_THAT(StagedPage::Create(tier, bad), StatusIs(kInvalid));
  bad = good;
  bad.planes.resize(65, bad.planes[0]);
  EXPECT_THAT(StagedPage::Create(tier, bad), StatusIs(kInvalid, "65 planes"));
  bad = good;
  bad.segments.resize(4097, bad.segments[0]);
  EXPECT_THAT(StagedPage::Create(tier, bad), StatusIs(kInvalid, "4097 segments"));
  bad = good;
  bad.token_ids.resize(65537);
  EXPECT_THAT(StagedPage::Create(tier, bad), StatusIs(kInvalid, "65537 token ids"));
  EXPECT_EQ(tier->usage().used_bytes, 0);
}

TEST(HostPageTest, ShapeMayNotChangeAfterStaging) {
  const auto tier = MakeTier();
  for (int change = 0; change < 4; ++change) {
    const TestPage spec = TestRoot(1);
    StagedPage staged = *StagedPage::Create(tier, HeaderOf(spec));
    Fill(spec, staged);
    PageHeader& header = staged.mutable_header();
    if (change == 0) header.segments[0].length += 8192;
    if (change == 1) header.segments.pop_back();
    if (change == 2) header.token_ids.resize(4096);
    if (change == 3) header.fidelity = static_cast<Precision>(5);
    EXPECT_THAT(StagedPage::Freeze(std::move(staged)), StatusIs(kInvalid)) << change;
    EXPECT_EQ(tier->usage().used_bytes, 0) << change;
  }
}

}  // namespace
}  // namespace pagoda
