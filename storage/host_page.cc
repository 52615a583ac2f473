#include "storage/host_page.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/crc32c.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

// The limits of page_header.h, which EncodePageHeader takes for granted.
constexpr size_t kPlanesMax = 64;
constexpr size_t kSegmentsMax = 4096;
constexpr size_t kTokenIdsMax = 65536;
constexpr int64_t kHeaderBytesMax = 512 << 10;

absl::Status CheckLimits(const PageHeader& header) {
  if (header.planes.size() <= kPlanesMax && header.segments.size() <= kSegmentsMax &&
      header.token_ids.size() <= kTokenIdsMax && header.header_bytes() <= kHeaderBytesMax) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "page: %d planes, %d segments, %d token ids; at most %d, %d, %d", header.planes.size(),
      header.segments.size(), header.token_ids.size(), kPlanesMax, kSegmentsMax, kTokenIdsMax));
}

// Encodes, and decodes again, so that no page becomes visible that a reader would refuse.
absl::StatusOr<std::string> EncodeChecked(const PageHeader& header) {
  PAGODA_RETURN_IF_ERROR(CheckLimits(header));
  std::string bytes = EncodePageHeader(header);
  const auto decoded = DecodePageHeader(AsBytes(bytes));
  if (!decoded.ok()) return absl::InvalidArgumentError(decoded.status().message());
  return bytes;
}

int64_t SumBytes(const Slab& header_slab, const std::vector<Slab>& segments) {
  int64_t bytes = header_slab.size();
  for (const Slab& slab : segments) bytes += slab.size();
  return bytes;
}

}  // namespace

HostPage::HostPage(std::shared_ptr<HostTier> tier, PageHeader header, SharedSlabs slabs)
    : tier_(std::move(tier)),
      header_(std::move(header)),
      precision_(PrecisionOf(header_.planes)),
      planes_(PlaneMaskOf(header_.planes)),
      bytes_(header_.stored_bytes()),
      slabs_(std::move(slabs)) {
  PAGODA_CHECK(slabs_.size() == header_.segments.size() + 1);
  int64_t bytes = 0;
  for (const auto& slab : slabs_) bytes += slab->size();
  PAGODA_CHECK(bytes_ == bytes);
}

HostPage::~HostPage() = default;

ByteSpan HostPage::segment(size_t index) const {
  return padded_segment(index).subspan(0, header_.segments[index].length);
}

int64_t HostPage::BytesIn(uint32_t chunk) const {
  int64_t bytes = 0;
  for (const auto& slab : slabs_) bytes += slab->chunk() == chunk ? slab->size() : 0;
  return bytes;
}

absl::StatusOr<HostPagePtr> HostPage::MovedOutOf(uint32_t chunk) const {
  std::vector<size_t> moved;
  std::vector<int64_t> sizes;
  for (size_t i = 0; i < slabs_.size(); ++i) {
    if (slabs_[i]->chunk() != chunk) continue;
    moved.push_back(i);
    sizes.push_back(slabs_[i]->size());
  }
  PAGODA_ASSIGN_OR_RETURN(std::vector<Slab> fresh,
                          tier_->AllocateAll(header_.scope, sizes, SlabRoom::kHolesOnly));
  SharedSlabs slabs = slabs_;
  for (size_t k = 0; k < moved.size(); ++k) {
    const size_t i = moved[k];
    std::memcpy(fresh[k].bytes().data(), slabs_[i]->bytes().data(), fresh[k].bytes().size());
    if (i > 0) {
      const SegmentEntry& segment = header_.segments[i - 1];
      const uint32_t crc = Crc32c(ByteSpan(fresh[k].bytes()).subspan(0, segment.length));
      if (crc != segment.crc32c) {
        return absl::DataLossError(
            absl::StrFormat("page: segment %d has checksum %08x in memory, header says %08x", i - 1,
                            crc, segment.crc32c));
      }
    }
    slabs[i] = std::make_shared<const Slab>(std::move(fresh[k]));
  }
  return HostPagePtr(new HostPage(tier_, header_, std::move(slabs)));
}

absl::StatusOr<StagedPage> StagedPage::Create(std::shared_ptr<HostTier> tier, PageHeader header) {
  PAGODA_RETURN_IF_ERROR(CheckLimits(header));
  for (size_t i = 0; i < header.segments.size(); ++i) {
    const uint32_t length = header.segments[i].length;
    if (length == 0 || length > tier->chunk_bytes()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("page: segment %d has %d bytes; from 1 to %d (one chunk) fit", i, length,
                          tier->chunk_bytes()));
    }
  }
  AssignOffsets(header);
  PAGODA_RETURN_IF_ERROR(EncodeChecked(header).status());
  std::vector<int64_t> sizes = {header.header_bytes()};
  for (const SegmentEntry& segment : header.segments) sizes.push_back(segment.stored_bytes());
  PAGODA_ASSIGN_OR_RETURN(std::vector<Slab> slabs, tier->AllocateAll(header.scope, sizes));
  Slab header_slab = std::move(slabs.front());
  slabs.erase(slabs.begin());
  for (size_t i = 0; i < slabs.size(); ++i) {
    const MutableByteSpan padding = slabs[i].bytes().subspan(header.segments[i].length);
    if (!padding.empty()) std::memset(padding.data(), 0, padding.size());
  }
  return StagedPage(std::move(tier), std::move(header), std::move(header_slab), std::move(slabs));
}

StagedPage::StagedPage(std::shared_ptr<HostTier> tier, PageHeader header, Slab header_slab,
                       std::vector<Slab> segments)
    : tier_(std::move(tier)),
      header_(std::move(header)),
      header_slab_(std::move(header_slab)),
      segments_(std::move(segments)),
      appended_(segments_.size()) {}

StagedPage& StagedPage::operator=(StagedPage&& other) noexcept {
  if (this == &other) return *this;
  segments_ = std::move(other.segments_);  // the old slabs go while their tier is still held
  header_slab_ = std::move(other.header_slab_);
  header_ = std::move(other.header_);
  tier_ = std::move(other.tier_);
  appended_ = std::move(other.appended_);
  ticket_ = std::move(other.ticket_);
  return *this;
}

MutableByteSpan StagedPage::segment(size_t index) const {
  return segments_[index].bytes().subspan(0, header_.segments[index].length);
}

int64_t StagedPage::bytes() const { return SumBytes(header_slab_, segments_); }

void StagedPage::Append(size_t index, ByteSpan bytes) {
  constexpr size_t kBlockBytes = 64 << 10;
  Appended& appended = appended_[index];
  const MutableByteSpan room = segment(index).subspan(appended.bytes, bytes.size());
  for (size_t at = 0; at < bytes.size(); at += kBlockBytes) {
    const size_t size = std::min(kBlockBytes, bytes.size() - at);
    std::memcpy(room.data() + at, bytes.data() + at, size);
    // Of the copy: what the source holds may change while we read it.
    appended.crc32c = Crc32c(room.subspan(at, size), appended.crc32c);
  }
  appended.bytes += bytes.size();
}

void StagedPage::ComputeChecksums() {
  for (size_t i = 0; i < segments_.size(); ++i) header_.segments[i].crc32c = Crc32c(segment(i));
}

absl::Status StagedPage::VerifyChecksums() const {
  for (size_t i = 0; i < segments_.size(); ++i) {
    const MutableByteSpan bytes = segment(i);
    const uint32_t crc = appended_[i].bytes == bytes.size() ? appended_[i].crc32c : Crc32c(bytes);
    if (crc != header_.segments[i].crc32c) {
      return absl::DataLossError(
          absl::StrFormat("page: segment %d has checksum %08x, header says %08x", i, crc,
                          header_.segments[i].crc32c));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<HostPagePtr> StagedPage::Freeze(StagedPage page) {
  bool same_shape = page.header_.segments.size() == page.segments_.size() &&
                    page.header_.header_bytes() == page.header_slab_.size();
  for (size_t i = 0; same_shape && i < page.segments_.size(); ++i) {
    same_shape = page.header_.segments[i].stored_bytes() == page.segments_[i].size();
  }
  if (!same_shape) {
    return absl::InvalidArgumentError("page: its tables changed shape after it was staged");
  }
  PAGODA_ASSIGN_OR_RETURN(const std::string encoded, EncodeChecked(page.header_));
  std::memcpy(page.header_slab_.bytes().data(), encoded.data(), encoded.size());
  HostPage::SharedSlabs slabs;
  slabs.reserve(page.segments_.size() + 1);
  slabs.push_back(std::make_shared<const Slab>(std::move(page.header_slab_)));
  for (Slab& slab : page.segments_) {
    slabs.push_back(std::make_shared<const Slab>(std::move(slab)));
  }
  return HostPagePtr(
      new HostPage(std::move(page.tier_), std::move(page.header_), std::move(slabs)));
}

}  // namespace pagoda
