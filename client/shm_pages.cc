#include "client/shm_pages.h"

#include <atomic>
#include <cstring>
#include <string>

#include "absl/strings/str_format.h"
#include "storage/base/clock.h"

namespace pagoda::client {
namespace {

constexpr int64_t kPageBytesMax = int64_t{1} << 30;  // of a sane daemon
constexpr uint32_t kHeaderBytesMax = 512 << 10;
constexpr size_t kHeaderBytesAt = 12;  // kernels/README.md
constexpr size_t kSlabBytesMin = 4096;

absl::Status Gone() { return absl::AbortedError("shm: a page was given back while it was read"); }

}  // namespace

bool ShmPages::AddSlab(const shm::Slab& slab, const ShmMap& map) {
  if (map.From(slab.offset).size() < kSlabBytesMin) return false;
  slabs_.push_back({&map, slab.offset, slab.generation});
  return true;
}

void ShmPages::AddPage(const shm::Page& page) { pages_.push_back({slabs_.size(), page.tier}); }

bool ShmPages::Unchanged(size_t slab_begin, size_t slab_end) const {
  std::atomic_thread_fence(std::memory_order_acquire);
  for (size_t i = slab_begin; i < slab_end; ++i) {
    const Slab& slab = slabs_[i];
    if (slab.map->Generation(slab.offset) != slab.generation) return false;
  }
  return true;
}

bool ShmView::StillValid() const {
  return SystemClock().Monotonic() < pages_->lease_until() &&
         pages_->StillThere(begin_, begin_ + size_);
}

absl::StatusOr<MappedPage> ShmView::Page(size_t index) const {
  if (index >= size_) {
    return absl::InvalidArgumentError(absl::StrFormat("map: page %d of %d", index, size_));
  }
  return pages_->Page(begin_ + index);
}

absl::StatusOr<MappedPage> ShmPages::Page(size_t index) const {
  const size_t begin = SlabBegin(index);
  const size_t segment_count = pages_[index].slab_end - begin - 1;
  const ByteSpan at = slabs_[begin].map->From(slabs_[begin].offset);
  uint32_t header_bytes = 0;
  std::memcpy(&header_bytes, at.data() + kHeaderBytesAt, sizeof(header_bytes));
  if (header_bytes > kHeaderBytesMax || header_bytes > at.size()) {
    if (!StillThere(index, index + 1)) return Gone();
    return absl::DataLossError("shm: a header longer than its memory");
  }
  const std::string copy(reinterpret_cast<const char*>(at.data()), header_bytes);
  absl::StatusOr<PageHeader> header = DecodePageHeader(AsBytes(copy));
  if (!StillThere(index, index + 1)) return Gone();
  if (!header.ok()) return header.status();
  if (header->record != records_[index] || header->identity != identity_) {
    return absl::DataLossError("shm: page of another key or model");
  }
  if (header->segments.size() != segment_count) {
    return absl::DataLossError(absl::StrFormat("shm: %d slabs for %d segments", segment_count + 1,
                                               header->segments.size()));
  }
  if (header->stored_bytes() > kPageBytesMax) {
    return absl::DataLossError(absl::StrFormat("shm: page of %d bytes", header->stored_bytes()));
  }
  MappedPage page;
  page.tier = static_cast<PageTier>(pages_[index].tier);
  page.segments.reserve(segment_count);
  for (size_t i = 0; i < segment_count; ++i) {
    const Slab& slab = slabs_[begin + 1 + i];
    const ByteSpan source = slab.map->From(slab.offset);
    // Padding lies in the slab too, and is zero there.
    if (source.size() < static_cast<size_t>(header->segments[i].stored_bytes())) {
      return absl::DataLossError("shm: a segment beyond its memory");
    }
    page.segments.push_back(source.subspan(0, header->segments[i].length));
  }
  page.header = *std::move(header);
  return page;
}

}  // namespace pagoda::client
