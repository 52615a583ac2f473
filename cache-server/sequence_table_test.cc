// Goal: a page is needed exactly as long and as exactly as open sequences say. Method: edges of the
// window by hand, then random events against a table that recomputes every need from scratch.
#include "cache-server/sequence_table.h"

#include <map>
#include <random>
#include <set>

#include "storage/base/testing/status_matchers.h"

namespace pagoda {
namespace {

SessionId Session(uint8_t n) {
  SessionId id;
  id.bytes[0] = n;
  return id;
}
SequenceId Sequence(uint8_t n) {
  SequenceId id;
  id.bytes[0] = n;
  return id;
}
PageRef Page(uint8_t n) {
  PageRef page;
  page.record.key.bytes[0] = n;
  return page;
}
SequencePage At(uint8_t n, uint64_t end) { return {Page(n), end}; }

class SequenceTableTest : public ::testing::Test {
 protected:
  absl::Status Open(uint8_t s, uint8_t q, SequenceShape shape) {
    return table_.Open(Session(s), Sequence(q), shape, changed_);
  }
  absl::Status Attach(uint8_t s, uint8_t q, std::vector<SequencePage> pages,
                      absl::Duration now = absl::ZeroDuration()) {
    return table_.Attach(Session(s), Sequence(q), pages, now, changed_);
  }
  absl::Status Advance(uint8_t s, uint8_t q, uint64_t length) {
    changed_.clear();
    return table_.Advance(Session(s), Sequence(q), length, changed_);
  }
  PageNeed Need(uint8_t n) { return table_.NeedOf(Page(n).record); }

  SequenceTable table_{{.sequences_per_session_max = 3, .pages_per_sequence_max = 5}};
  std::vector<PageRef> changed_;
};

constexpr PageNeed kNobody{false, Precision::kNone};
constexpr PageNeed kWindow{true, Precision::kRaw16};

TEST_F(SequenceTableTest, APageLeavesTheWindowExactlyAtItsEdge) {
  PAGODA_ASSERT_OK(Open(1, 1, {100, 36, Precision::kQ8}));  // the window begins at 64
  PAGODA_ASSERT_OK(Attach(1, 1, {At(1, 64), At(2, 65), At(3, 128)}));
  EXPECT_EQ(Need(1), (PageNeed{false, Precision::kQ8}));
  EXPECT_EQ(Need(2), kWindow);
  EXPECT_EQ(Need(3), kWindow);
  PAGODA_ASSERT_OK(Advance(1, 1, 101));
  EXPECT_EQ(changed_, std::vector<PageRef>{Page(2)});
  EXPECT_EQ(Need(2), (PageNeed{false, Precision::kQ8}));
  PAGODA_ASSERT_OK(Advance(1, 1, 163));
  EXPECT_EQ(Need(3), kWindow);
  PAGODA_ASSERT_OK(Advance(1, 1, 164));
  EXPECT_EQ(changed_, std::vector<PageRef>{Page(3)});
  changed_.clear();
  PAGODA_ASSERT_OK(table_.Close(Session(1), Sequence(1), changed_));
  EXPECT_EQ(changed_.size(), 3u);
  EXPECT_EQ(Need(1), kNobody);
  EXPECT_EQ(table_.held_page_count(), 0u);
  EXPECT_EQ(table_.sequence_count(), 0u);
}

TEST_F(SequenceTableTest, TheMostDemandingSequenceWins) {
  PAGODA_ASSERT_OK(Open(1, 1, {1000, 10, Precision::kQ4}));
  PAGODA_ASSERT_OK(Open(2, 1, {1000, 10, Precision::kQ8}));
  PAGODA_ASSERT_OK(Open(2, 2, {64, 64, Precision::kQ4}));
  PAGODA_ASSERT_OK(Attach(1, 1, {At(1, 64)}));
  EXPECT_EQ(Need(1).precision, Precision::kQ4);
  PAGODA_ASSERT_OK(Attach(2, 1, {At(1, 64)}));
  EXPECT_EQ(Need(1).precision, Precision::kQ8);
  PAGODA_ASSERT_OK(Attach(2, 2, {At(1, 64)}));
  EXPECT_EQ(Need(1), kWindow);
  changed_.clear();
  table_.CloseSession(Session(2), changed_);
  EXPECT_EQ(Need(1), (PageNeed{false, Precision::kQ4}));
  EXPECT_FALSE(changed_.empty());
}

TEST_F(SequenceTableTest, EarlyPagesAreInTheWindowUntilOpenedOrDropped) {
  PAGODA_ASSERT_OK(Attach(1, 1, {At(1, 64), At(2, 128)}, absl::Seconds(5)));
  EXPECT_EQ(Need(1), kWindow);
  EXPECT_THAT(Advance(1, 1, 10), StatusIs(absl::StatusCode::kNotFound));
  changed_.clear();
  PAGODA_ASSERT_OK(Open(1, 1, {128, 64, Precision::kQ4}));
  EXPECT_EQ(Need(1), (PageNeed{false, Precision::kQ4}));
  EXPECT_EQ(Need(2), kWindow);
  EXPECT_EQ(changed_, std::vector<PageRef>{Page(1)});
  PAGODA_ASSERT_OK(Attach(1, 2, {At(3, 64)}, absl::Seconds(5)));
  table_.DropEarly(absl::Seconds(5), changed_);
  EXPECT_EQ(Need(3), kWindow);
  table_.DropEarly(absl::Seconds(6), changed_);
  EXPECT_EQ(Need(3), kNobody);
  EXPECT_EQ(Need(2), kWindow);  // opened: it stays
}

TEST_F(SequenceTableTest, RefusesWhatItMust) {
  PAGODA_ASSERT_OK(Open(1, 1, {10, 10, Precision::kQ4}));
  EXPECT_THAT(Open(1, 1, {10, 10, Precision::kQ4}), StatusIs(absl::StatusCode::kAlreadyExists));
  EXPECT_THAT(Advance(1, 1, 9), StatusIs(absl::StatusCode::kInvalidArgument, "only grows"));
  PAGODA_EXPECT_OK(Advance(1, 1, 10));
  EXPECT_THAT(Advance(1, 1, uint64_t{1} << 63), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Advance(1, 9, 10), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Advance(9, 1, 10), StatusIs(absl::StatusCode::kNotFound));
  EXPECT_THAT(Open(1, 4, {10, 10, Precision::kOpaque}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Open(1, 4, {UINT64_MAX, 10, Precision::kQ4}),
              StatusIs(absl::StatusCode::kInvalidArgument));
  PAGODA_ASSERT_OK(Open(1, 2, {10, 10, Precision::kQ4}));
  PAGODA_ASSERT_OK(Open(1, 3, {10, 10, Precision::kQ4}));
  EXPECT_THAT(Open(1, 4, {10, 10, Precision::kQ4}),
              StatusIs(absl::StatusCode::kResourceExhausted, "sequences_per_session_max"));
  EXPECT_THAT(Attach(1, 4, {At(1, 64)}), StatusIs(absl::StatusCode::kResourceExhausted));
  EXPECT_THAT(Attach(1, 1, {At(1, 1), At(2, 2), At(3, 3), At(4, 4), At(5, 5), At(6, 6)}),
              StatusIs(absl::StatusCode::kResourceExhausted, "pages_per_sequence_max"));
  EXPECT_EQ(Need(5), kWindow);
  EXPECT_EQ(Need(6), kNobody);
  // Positions that no window can tell apart are ignored, also when the sequence goes.
  PAGODA_EXPECT_OK(Attach(1, 2, {At(7, 0), At(8, UINT64_MAX)}));
  EXPECT_EQ(Need(7), kNobody);
  PAGODA_EXPECT_OK(Advance(1, 2, 100));
  PAGODA_EXPECT_OK(table_.Close(Session(1), Sequence(2), changed_));
  EXPECT_THAT(table_.Close(Session(1), Sequence(2), changed_),
              StatusIs(absl::StatusCode::kNotFound));
}

// The specification: no counts, everything recomputed.
struct Plain {
  SequenceShape shape;
  bool early = false;
  std::map<uint8_t, uint64_t> ends;
};
PageNeed PlainNeed(const std::map<std::pair<uint8_t, uint8_t>, Plain>& all, uint8_t page) {
  PageNeed need;
  for (const auto& [id, sequence] : all) {
    const auto found = sequence.ends.find(page);
    if (found == sequence.ends.end()) continue;
    const bool in_window = sequence.early || found->second + sequence.shape.window_tokens >
                                                 sequence.shape.length_tokens;
    need.in_window |= in_window;
    need.precision =
        std::max(need.precision, in_window ? Precision::kRaw16 : sequence.shape.wanted);
  }
  return need;
}

TEST(SequenceTableSimulation, AgreesWithRecomputingEverything) {
  constexpr uint8_t kPages = 12;
  for (uint32_t seed = 1; seed <= 20; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937 random(seed);
    const auto pick = [&](uint32_t n) { return random() % n; };
    SequenceTable table({.sequences_per_session_max = 100, .pages_per_sequence_max = 100});
    std::map<std::pair<uint8_t, uint8_t>, Plain> plain;
    for (int step = 0; step < 600; ++step) {
      const auto s = static_cast<uint8_t>(pick(3));
      const auto q = static_cast<uint8_t>(pick(3));
      const auto found = plain.find({s, q});
      std::map<uint8_t, PageNeed> before;
      for (uint8_t p = 0; p < kPages; ++p) before[p] = table.NeedOf(Page(p).record);
      std::vector<PageRef> changed;
      switch (pick(5)) {
        case 0: {
          const SequenceShape shape{pick(500), pick(200),
                                    kStoredPrecisions[pick(kStoredPrecisions.size())]};
          const bool may = found == plain.end() || found->second.early;
          EXPECT_EQ(table.Open(Session(s), Sequence(q), shape, changed).ok(), may);
          if (may) {
            plain[{s, q}].shape = shape;
            plain[{s, q}].early = false;
          }
          break;
        }
        case 1: {
          const uint64_t length = pick(800);
          const bool may = found != plain.end() && !found->second.early &&
                           length >= found->second.shape.length_tokens;
          EXPECT_EQ(table.Advance(Session(s), Sequence(q), length, changed).ok(), may);
          if (may) found->second.shape.length_tokens = length;
          break;
        }
        case 2: {
          const auto p = static_cast<uint8_t>(pick(kPages));
          const uint64_t end = 1 + pick(600);
          const SequencePage page = At(p, end);
          PAGODA_EXPECT_OK(table.Attach(Session(s), Sequence(q), absl::MakeConstSpan(&page, 1),
                                        absl::ZeroDuration(), changed));
          if (found == plain.end()) plain[{s, q}].early = true;
          plain[{s, q}].ends.emplace(p, end);
          break;
        }
        case 3:
          EXPECT_EQ(table.Close(Session(s), Sequence(q), changed).ok(), found != plain.end());
          plain.erase({s, q});
          break;
        default:
          if (pick(10) != 0) break;
          table.CloseSession(Session(s), changed);
          for (uint8_t each = 0; each < 3; ++each) plain.erase({s, each});
      }
      std::set<uint8_t> named;
      for (const PageRef& page : changed) named.insert(page.record.key.bytes[0]);
      for (uint8_t p = 0; p < kPages; ++p) {
        const PageNeed now = table.NeedOf(Page(p).record);
        ASSERT_EQ(now, PlainNeed(plain, p)) << "step " << step << " page " << int{p};
        if (now != before[p]) {
          ASSERT_TRUE(named.contains(p)) << "step " << step;
        }
      }
      ASSERT_EQ(table.sequence_count(), plain.size());
    }
  }
}

}  // namespace
}  // namespace pagoda
