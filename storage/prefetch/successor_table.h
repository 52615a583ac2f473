// Which page is used after which: a first-order table of at most four successors a page, of which
// the two most frequent are predicted when they are frequent enough. Pure.
//
// Old habits fade: a row's counts are halved when they reach uses_max, and all rows when the table
// is full; rows without uses go.
//
// Threads    externally synchronised
// Limits     pages_max rows
// Cost       Learn, Of: one hash look-up; about 100 bytes a row
// Source     the seed articles' "next page" prefetch: first order, top 2, confidence 0.5
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/prefetch/prefetch_page.h"

namespace pagoda::prefetch {

class SuccessorTable {
 public:
  struct Options {
    int64_t pages_max = 16384;
    int64_t uses_max = 64;        // of one row, before it is halved
    int64_t uses_min = 2;         // once is no habit
    double confidence_min = 0.5;  // of a path: the product along it
    int64_t depth_max = 4;        // steps ahead
  };
  struct Prediction {
    PageId page;
    double confidence;
  };
  explicit SuccessorTable(const Options& options) : options_(options) {}

  // `to` was used right after `from`.
  void Learn(PageId from, PageId to);
  // The pages that follow `from` within depth_max steps, nearest first, each once.
  std::vector<Prediction> Predict(PageId from) const;
  // The confidence that `to` follows `from` directly; 0 if unknown.
  double ConfidenceOf(PageId from, PageId to) const;

  int64_t row_count() const { return static_cast<int64_t>(rows_.size()); }

 private:
  static constexpr int kSlots = 4;
  static constexpr int kPredicted = 2;
  struct Slot {
    PageId page = kNoPage;
    uint32_t count = 0;
  };
  struct Row {
    uint32_t uses = 0;
    std::array<Slot, kSlots> slots;  // most frequent first
  };
  static void Halve(Row& row);
  void MakeRoom();

  const Options options_;
  absl::flat_hash_map<PageId, Row> rows_;
};

}  // namespace pagoda::prefetch
