// What became of pages that were brought up: the numbers that say whether prefetching helps. Pure.
//
//   accuracy    (used + late) / loaded  timeliness  used / (used + late)
//   coverage    used / (used + late + demanded), of all sources together
//   pollution   unused, and the victims that made way
//
// Threads    externally synchronised
// Cost       memory for the pages that are loading or loaded and not used yet
#pragma once

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "storage/prefetch/prefetch_page.h"

namespace pagoda::prefetch {

// Monotonic counts of pages. What is asked is dropped, or loaded, or queued or loading still; what
// is loaded is used, late or unused, or resident still.
struct SourceCounters {
  int64_t asked = 0;
  int64_t loaded = 0;   // brought up
  int64_t used = 0;     // loaded, and then asked for by a request
  int64_t late = 0;     // asked for by a request while they were still loading
  int64_t unused = 0;   // left memory without being used
  int64_t victims = 0;  // others that made way
  int64_t dropped[kDropReasonCount] = {};
  bool operator==(const SourceCounters&) const = default;
};

struct Counters {
  SourceCounters by_source[kSourceCount];
  int64_t demanded = 0;  // a request found them on SSD, and nobody had brought them up
  int64_t queued = 0;    // waiting now: a state, not a count
  int64_t loading = 0;   // likewise
  int64_t resident = 0;  // brought up and not used yet; likewise
  bool operator==(const Counters&) const = default;
};

class Outcomes {
 public:
  void OnAsked(Source source) { ++Of(source).asked; }
  void OnDropped(Source source, DropReason reason) {
    ++Of(source).dropped[static_cast<int>(reason)];
  }
  void OnStarted(PageId page, Source source, int64_t victims);
  // The read that OnStarted announced has ended. False if it was not announced.
  bool OnLoaded(PageId page, bool ok);
  // A request found the page: in memory, or on SSD with nobody reading it yet.
  void OnUse(PageId page, bool needs_load);
  void OnLeft(PageId page);

  bool loading(PageId page) const;
  int64_t loading_count() const { return loading_; }
  Counters counters() const;

 private:
  struct Page {
    Source source;
    bool loaded;
    bool late;
  };
  SourceCounters& Of(Source source) { return counters_.by_source[static_cast<int>(source)]; }

  absl::flat_hash_map<PageId, Page> pages_;
  Counters counters_;
  int64_t loading_ = 0;
};

}  // namespace pagoda::prefetch
