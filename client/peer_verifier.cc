#include "client/peer_verifier.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/bytes.h"
#include "storage/base/check.h"
#include "storage/base/crc32c.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

constexpr size_t kHostPageBytes = 4096;
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);

absl::Status CheckPage(const PageHeader& header, const std::byte*& at) {
  absl::Status status;
  for (size_t i = 0; i < header.segments.size(); ++i) {
    const SegmentEntry& segment = header.segments[i];
    if (status.ok() && Crc32c(ByteSpan(at, segment.length)) != segment.crc32c) {
      status = absl::DataLossError(absl::StrFormat("segment %d has another checksum", i));
    }
    at += segment.stored_bytes();
  }
  return status;
}

}  // namespace

void PeerVerifier::Free::operator()(std::byte* data) const { std::free(data); }

absl::StatusOr<std::unique_ptr<PeerVerifier>> PeerVerifier::Create(DeviceRuntime& device,
                                                                   int64_t bytes) {
  std::unique_ptr<PeerVerifier> verifier(new PeerVerifier(device, AlignUp(bytes, kHostPageBytes)));
  const auto size = static_cast<size_t>(verifier->bytes_);
  verifier->memory_.reset(static_cast<std::byte*>(std::aligned_alloc(kHostPageBytes, size)));
  if (verifier->memory_ == nullptr) {
    return absl::ResourceExhaustedError(absl::StrFormat("no %d bytes of host memory", size));
  }
  PAGODA_ASSIGN_OR_RETURN(verifier->registration_,
                          device.RegisterHost(verifier->memory_.get(), verifier->bytes_));
  PAGODA_ASSIGN_OR_RETURN(verifier->stream_, device.NewStream());
  PAGODA_ASSIGN_OR_RETURN(verifier->event_, device.NewEvent());
  return verifier;
}

PeerVerifier::~PeerVerifier() {
  if (copied_.empty()) return;
  if (!absl::IsDeadlineExceeded(device_.Await(*event_, kDrainTimeout))) return;
  // The device may still write there: better lost than given to somebody else.
  LogError("peer_verifier_abandoned", {{"bytes", std::to_string(bytes_)}});
  new std::vector<std::shared_ptr<const void>>(std::move(copied_));
  (void)memory_.release();
  (void)registration_.release();
  (void)stream_.release();
  (void)event_.release();
}

absl::StatusOr<std::vector<absl::Status>> PeerVerifier::Verify(absl::Span<const Landed> pages,
                                                               absl::Duration timeout) {
  if (!copied_.empty()) {
    PAGODA_ASSIGN_OR_RETURN(const bool done, event_->Done());
    if (!done) return absl::DeadlineExceededError("peer: the device is late with a former copy");
    copied_.clear();
  }
  std::vector<CopyPiece> pieces;
  int64_t bytes = 0;
  for (const Landed& page : pages) {
    PAGODA_CHECK(page.segments.size() == page.header->segments.size());
    for (size_t i = 0; i < page.segments.size(); ++i) {
      const int64_t stored = page.header->segments[i].stored_bytes();
      PAGODA_CHECK(bytes + stored <= bytes_);
      if (stored > 0) pieces.push_back({memory_.get() + bytes, page.segments[i], stored});
      bytes += stored;
    }
  }
  if (!pieces.empty()) {
    for (const Landed& page : pages) copied_.push_back(page.owner);
    const absl::Status copied = stream_->CopyBatch(CopyDirection::kDeviceToHost, pieces);
    // A batch that was refused half-way may have begun: the event stands behind that, too.
    PAGODA_RETURN_IF_ERROR(stream_->Record(*event_));
    PAGODA_RETURN_IF_ERROR(device_.Await(*event_, timeout));
    copied_.clear();
    PAGODA_RETURN_IF_ERROR(copied);
  }
  std::vector<absl::Status> statuses;
  const std::byte* at = memory_.get();
  for (const Landed& page : pages) statuses.push_back(CheckPage(*page.header, at));
  return statuses;
}

}  // namespace pagoda::client
