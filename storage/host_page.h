// A page in host memory: immutable once committed, shared by whoever reads it. An eviction, a new
// encoding or a move only lets go of the store's own reference, so a reader is never disturbed; the
// bytes return when the last reader is done.
//
// StagedPage is the mutable form before commit, for one owner. Destroying it gives the bytes back.
//
// Threads    HostPage: any. StagedPage: one owner at a time, and parts of it (different segments)
//            may be written by different threads.
// Ownership  both hold their tier, so they may outlive the store.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/page_header.h"
#include "storage/host_tier.h"
#include "storage/plane_mask.h"

namespace pagoda {

class HostPage {
 public:
  ~HostPage();
  HostPage(const HostPage&) = delete;
  HostPage& operator=(const HostPage&) = delete;

  const PageHeader& header() const { return header_; }
  Precision precision() const { return precision_; }
  PlaneMask planes() const { return planes_; }
  // Encoded header, header().header_bytes() long.
  ByteSpan header_bytes() const { return slabs_[0]->bytes(); }
  size_t segment_count() const { return slabs_.size() - 1; }
  // Payload without padding, and with it (zeros up to a multiple of 4096).
  ByteSpan segment(size_t index) const;
  ByteSpan padded_segment(size_t index) const { return slabs_[index + 1]->bytes(); }
  // For a client that maps the chunks: the header's, then one for each segment.
  void AppendLocations(std::vector<SlabLocation>& locations) const {
    tier_->LocateAll(slabs_, locations);
  }
  // For a device: the chunks that hold the header, then the segments; one may come more than once.
  void AppendChunks(std::vector<MutableByteSpan>& chunks) const { tier_->ChunksOf(slabs_, chunks); }
  // All slabs: equals header().stored_bytes().
  int64_t bytes() const { return bytes_; }

  // Says of all slabs what they are for: for the directory, which alone makes pages visible.
  void SetUse(SlabUse use, SlabOwner owner) const { tier_->SetUse(slabs_, use, owner); }
  // Bytes of this page that lie in a chunk.
  int64_t BytesIn(uint32_t chunk) const;
  // The same page with its slabs of that chunk copied into holes of other chunks; the other slabs
  // are shared with this page. RESOURCE_EXHAUSTED: no holes. DATA_LOSS: a segment is damaged.
  absl::StatusOr<std::shared_ptr<const HostPage>> MovedOutOf(uint32_t chunk) const;

 private:
  friend class StagedPage;
  using SharedSlabs = std::vector<std::shared_ptr<const Slab>>;
  HostPage(std::shared_ptr<HostTier> tier, PageHeader header, SharedSlabs slabs);

  const std::shared_ptr<HostTier> tier_;  // first: outlives the slabs
  const PageHeader header_;
  const Precision precision_;
  const PlaneMask planes_;
  const int64_t bytes_;
  const SharedSlabs slabs_;  // the header's, then one for each segment
};

using HostPagePtr = std::shared_ptr<const HostPage>;

class StagedPage {
 public:
  // Takes memory for the header and every segment; gives the segments their offsets and clears
  // the padding. INVALID_ARGUMENT when the tables break the rules of page_header.h or a segment
  // is larger than a chunk; RESOURCE_EXHAUSTED as HostTier.
  static absl::StatusOr<StagedPage> Create(std::shared_ptr<HostTier> tier, PageHeader header);

  StagedPage(StagedPage&&) = default;
  StagedPage& operator=(StagedPage&& other) noexcept;

  const PageHeader& header() const { return header_; }
  // Checksums, hashes and other plain fields may still be set before the commit; the tables'
  // sizes and lengths may not (Freeze refuses).
  PageHeader& mutable_header() { return header_; }
  size_t segment_count() const { return segments_.size(); }
  // Exactly the payload of a segment, length bytes.
  MutableByteSpan segment(size_t index) const;
  // The same and the padding to a multiple of 4096, which must stay zero.
  MutableByteSpan padded_segment(size_t index) const { return segments_[index].bytes(); }
  int64_t bytes() const;

  // Destroyed together with the staged bytes, or when they become a page: for whoever counts them.
  void AttachTicket(std::shared_ptr<const void> ticket) { ticket_ = std::move(ticket); }

  // Copies the next bytes of a segment and takes their checksum while they are in the cache, so
  // that nobody reads them again for it. Whoever appends to a segment writes it no other way.
  void Append(size_t index, ByteSpan bytes);
  // Of what was appended so far.
  uint32_t appended_crc32c(size_t index) const { return appended_[index].crc32c; }

  // Sets every segment's checksum from its bytes: for pages that this process produced itself.
  void ComputeChecksums();
  // DATA_LOSS names the first segment whose bytes do not match its checksum.
  absl::Status VerifyChecksums() const;

  // Encodes the header into its slab and makes the page immutable. Does not verify segments.
  // INVALID_ARGUMENT if the header's tables changed shape or break the rules; the bytes are freed.
  static absl::StatusOr<HostPagePtr> Freeze(StagedPage page);

 private:
  StagedPage(std::shared_ptr<HostTier> tier, PageHeader header, Slab header_slab,
             std::vector<Slab> segments);

  std::shared_ptr<HostTier> tier_;  // first: outlives the slabs
  PageHeader header_;
  Slab header_slab_;
  std::vector<Slab> segments_;
  struct Appended {
    uint64_t bytes = 0;
    uint32_t crc32c = 0;
  };
  std::vector<Appended> appended_;  // one for each segment
  std::shared_ptr<const void> ticket_;
};

}  // namespace pagoda
