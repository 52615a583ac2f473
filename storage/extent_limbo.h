// Extents that were freed and may not be used again yet: because a kill could still bring back the
// record that names them (until the deletion of that record is on the disk), or because a reader
// that looked the page up before may still be reading it. Epoch-based reclamation, and nothing
// else: no I/O, no clock.
//
// Threads  externally synchronised
// Cost     O(1) amortised a call, plus O(log readers); 32 bytes a waiting extent
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <vector>

#include "storage/extent.h"

namespace pagoda {

class ExtentLimbo {
 public:
  using Epoch = uint64_t;

  // A reader begins: no extent that is retired from now on comes back before it ends.
  Epoch BeginRead();
  void EndRead(Epoch epoch);

  // The record that named it has been changed or deleted, not yet on the disk.
  void Retire(const Extent& extent);

  // Everything retired before this call is covered by a flush that starts after it.
  Epoch MarkFlush() const { return next_epoch_; }
  // That flush has succeeded.
  void Flushed(Epoch mark);

  // Removes and returns the extents that may be used again.
  std::vector<Extent> TakeReusable();

  int64_t waiting_bytes() const { return waiting_bytes_; }
  int64_t waiting_count() const { return static_cast<int64_t>(waiting_.size()); }
  // Some wait for a flush, not only for readers.
  bool wants_flush() const { return !waiting_.empty() && waiting_.back().epoch >= flushed_; }

 private:
  struct Waiting {
    Extent extent;
    Epoch epoch;
  };
  Epoch next_epoch_ = 1;         // of the next extent that is retired
  Epoch flushed_ = 1;            // every epoch below is on the disk
  std::deque<Waiting> waiting_;  // epochs rise
  std::map<Epoch, int64_t> readers_;
  int64_t waiting_bytes_ = 0;
};

}  // namespace pagoda
