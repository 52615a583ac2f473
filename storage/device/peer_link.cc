#include "storage/device/peer_link.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {

using Action = LinkMachine::Action;
using Phase = LinkMachine::Phase;

absl::Status PeerLinkOptions::Validate() const {
  if (staging_bytes <= 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("peer link: staging_bytes %d must be positive", staging_bytes));
  }
  return times.Validate();
}

absl::StatusOr<std::unique_ptr<PeerLink>> PeerLink::Create(DeviceRuntime& runtime,
                                                           PeerTransport& transport,
                                                           const Clock& clock,
                                                           const PeerLinkOptions& options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<PeerLink> link(new PeerLink(runtime, transport, clock, options));
  PAGODA_ASSIGN_OR_RETURN(link->staging_,
                          runtime.Allocate(options.staging_bytes, DeviceSharing::kPrivate));
  PAGODA_ASSIGN_OR_RETURN(link->stream_, runtime.NewStream());
  PAGODA_ASSIGN_OR_RETURN(link->event_, runtime.NewEvent());
  return link;
}

PeerLink::PeerLink(DeviceRuntime& runtime, PeerTransport& transport, const Clock& clock,
                   const PeerLinkOptions& options)
    : runtime_(runtime),
      transport_(transport),
      clock_(clock),
      options_(options),
      machine_(options.times) {}

PeerLink::~PeerLink() {
  if (stream_ == nullptr || event_ == nullptr) return;  // Create has failed
  if (phase() == Phase::kStarting || phase() == Phase::kRunning) {
    Abort(absl::CancelledError("the link was closed"));
  } else {
    transport_.Abort();
  }
  const absl::Time end = absl::Now() + options_.drain_timeout;
  while (phase() == Phase::kDraining && absl::Now() < end) {
    Poll();
    if (phase() == Phase::kDraining) absl::SleepFor(absl::Microseconds(50));
  }
  if (phase() != Phase::kDraining) return;
  // The device may still write there: better lost than given to somebody else.
  LogError("peer_link_abandoned", {{"bytes", std::to_string(request_bytes_)}});
  new std::vector<std::shared_ptr<const void>>(std::move(request_.keep));
  (void)staging_.release();
  (void)stream_.release();
}

absl::Status PeerLink::Join(const PeerLinkId& id, int rank) {
  if (rank != 0 && rank != 1) {
    return absl::InvalidArgumentError(absl::StrFormat("peer link: rank %d of two", rank));
  }
  PAGODA_RETURN_IF_ERROR(machine_.Join(clock_.Monotonic()));
  const absl::Status status = transport_.Join(id, rank);
  if (!status.ok()) Do(machine_.Step(clock_.Monotonic(), status));
  return status;
}

absl::Status PeerLink::Start(PeerRequest request) {
  int64_t bytes = 0;
  for (const DevicePiece& piece : request.pieces) {
    if (piece.bytes <= 0 || (piece.data == nullptr && request.half == PeerRequest::Half::kSend)) {
      return absl::InvalidArgumentError("peer link: a piece of no bytes, or without memory");
    }
    bytes += piece.bytes;
  }
  if (bytes <= 0) return absl::InvalidArgumentError("peer link: a request of no bytes");
  if (bytes > options_.staging_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("peer link: asked %d bytes, at most %d", bytes, options_.staging_bytes));
  }
  PAGODA_RETURN_IF_ERROR(machine_.Start(clock_.Monotonic(), request.timeout));
  request_ = std::move(request);
  request_bytes_ = bytes;
  recorded_ = false;
  const absl::Status status = Begin();
  if (status.ok()) return status;
  request_.done = nullptr;
  Do(machine_.Step(clock_.Monotonic(), status));
  return status;
}

// The pieces beside their places in the staging buffer; those without memory are left out.
std::vector<CopyPiece> PeerLink::StagedPieces() const {
  std::vector<CopyPiece> pieces;
  int64_t at = 0;
  const bool send = request_.half == PeerRequest::Half::kSend;
  for (const DevicePiece& piece : request_.pieces) {
    std::byte* staged = staging_->data() + at;
    at += piece.bytes;
    if (piece.data == nullptr) continue;
    pieces.push_back(send ? CopyPiece{staged, piece.data, piece.bytes}
                          : CopyPiece{piece.data, staged, piece.bytes});
  }
  return pieces;
}

absl::Status PeerLink::Begin() {
  if (request_.half == PeerRequest::Half::kReceive) {
    return transport_.Receive(staging_->data(), request_bytes_, *stream_);
  }
  PAGODA_RETURN_IF_ERROR(stream_->CopyBatch(CopyDirection::kWithinDevice, StagedPieces()));
  return transport_.Send(staging_->data(), request_bytes_, *stream_);
}

absl::Status PeerLink::Follow() {
  if (request_.half == PeerRequest::Half::kReceive) {
    const std::vector<CopyPiece> pieces = StagedPieces();
    if (!pieces.empty()) {
      PAGODA_RETURN_IF_ERROR(stream_->CopyBatch(CopyDirection::kWithinDevice, pieces));
    }
  }
  PAGODA_RETURN_IF_ERROR(stream_->Record(*event_));
  recorded_ = true;
  return absl::OkStatus();
}

absl::StatusOr<bool> PeerLink::Progress() {
  switch (phase()) {
    case Phase::kIdle:
    case Phase::kBroken:
      return false;
    case Phase::kJoining:
    case Phase::kReady:
    case Phase::kStarting:
      return transport_.Poll();
    case Phase::kRunning:
      // A peer that dies now is seen by the transport, not by the event.
      PAGODA_RETURN_IF_ERROR(transport_.Poll().status());
      return event_->Done();
    case Phase::kDraining:
      break;
  }
  if (!recorded_) {
    recorded_ = stream_->Record(*event_).ok();
    if (!recorded_) {
      PAGODA_RETURN_IF_ERROR(runtime_.health());
      return false;
    }
  }
  return event_->Done();
}

void PeerLink::Poll() { Do(machine_.Step(clock_.Monotonic(), Progress())); }

void PeerLink::Abort(const absl::Status& why) {
  // What drains is aborted already, and an error would say that the device is lost.
  if (phase() != Phase::kDraining) Do(machine_.Step(clock_.Monotonic(), why));
}

void PeerLink::Do(Action action) {
  switch (action) {
    case Action::kWait:
      return;
    case Action::kFollow:
      if (const absl::Status status = Follow(); !status.ok()) {
        Do(machine_.Step(clock_.Monotonic(), status));
      }
      return;
    case Action::kComplete:
      stats_.bytes += request_bytes_;
      ++stats_.done_count;
      End(absl::OkStatus());
      request_.keep.clear();
      return;
    case Action::kAbort:
      transport_.Abort();
      ++stats_.abort_count;
      LogWarning("peer_link_broken", {{"reason", std::string(machine_.fault().message())}});
      if (phase() != Phase::kDraining) return;
      ++stats_.failed_count;
      // What the scatter may have begun is ordered by an event behind it, also behind a first one.
      recorded_ = false;
      End(machine_.fault());
      return;
    case Action::kRelease:
      request_.keep.clear();
      return;
  }
}

void PeerLink::End(const absl::Status& status) {
  if (const auto done = std::exchange(request_.done, nullptr)) done(status);
}

}  // namespace pagoda
