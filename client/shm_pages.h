// Pages of a lease in maps of the daemon's memory: where they lie, and whether they still do.
//
// Everything is bounded before it is read, and nothing counts before the generations beside the
// slabs say that it was the page's.
//
// Threads    const methods from any thread
// Cost       to add a page: some 20 ns a slab; Page(): its header is decoded, about a microsecond
#pragma once

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/client.h"
#include "client/shm_map.h"
#include "proto/shm_protocol.h"

namespace pagoda::client {

class ShmPages {
 public:
  // Of these pages, in order; the lease that holds them ends on the monotonic clock.
  ShmPages(std::vector<RecordKey> records, const Identity& identity, absl::Duration lease_until)
      : records_(std::move(records)), identity_(identity), lease_until_(lease_until) {}

  // The next slab of the page that AddPage() ends: the header's, then its segments'. False: none
  // can be there. The map must be held.
  bool AddSlab(const shm::Slab& slab, const ShmMap& map);
  void AddPage(const shm::Page& page);
  void DropSlabs() { slabs_.resize(pages_.empty() ? 0 : pages_.back().slab_end); }
  void Hold(ShmMapPtr map) { maps_.push_back(std::move(map)); }
  void set_status(absl::Status status) { status_ = std::move(status); }

  size_t size() const { return pages_.size(); }
  const absl::Status& status() const { return status_; }  // why they are fewer than asked
  absl::Duration lease_until() const { return lease_until_; }
  absl::StatusOr<MappedPage> Page(size_t index) const;
  // Nothing of those pages was given back so far.
  bool StillThere(size_t begin, size_t end) const {
    return begin >= end || Unchanged(SlabBegin(begin), pages_[end - 1].slab_end);
  }

 private:
  struct Slab {
    const ShmMap* map = nullptr;
    uint64_t offset = 0;
    uint64_t generation = 0;
  };
  struct PageAt {
    size_t slab_end = 0;
    uint32_t tier = 0;
  };
  size_t SlabBegin(size_t index) const { return index == 0 ? 0 : pages_[index - 1].slab_end; }
  bool Unchanged(size_t slab_begin, size_t slab_end) const;

  const std::vector<RecordKey> records_;
  const Identity identity_;
  const absl::Duration lease_until_;
  absl::Status status_;
  std::vector<Slab> slabs_;
  std::vector<PageAt> pages_;
  std::vector<ShmMapPtr> maps_;
};

// Some of them.
class ShmView : public MappedPages {
 public:
  ShmView(std::shared_ptr<const ShmPages> pages, size_t begin, size_t count)
      : pages_(std::move(pages)),
        begin_(begin),
        size_(std::min(count, pages_->size() - std::min(begin, pages_->size()))),
        status_(size_ < count ? pages_->status() : absl::OkStatus()) {}

  size_t size() const override { return size_; }
  const absl::Status& status() const override { return status_; }
  absl::StatusOr<MappedPage> Page(size_t index) const override;
  bool StillValid() const override;
  bool StillThere(size_t index) const {
    return pages_->StillThere(begin_ + index, begin_ + index + 1);
  }

 private:
  const std::shared_ptr<const ShmPages> pages_;
  const size_t begin_;
  const size_t size_;
  const absl::Status status_;
};

}  // namespace pagoda::client
