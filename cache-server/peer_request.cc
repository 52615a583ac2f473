#include "cache-server/peer_request.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_format.h"
#include "cache-server/lease_token.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr size_t kAnswerPagesMax = 256;
constexpr int64_t kHeaderBytesMax = int64_t{2} << 20;  // of an answer; a client takes 4 MiB
constexpr absl::Duration kRequestMax = absl::Seconds(10);

absl::Duration TimeOf(const v1::PeerFetch& wanted) {
  const double seconds = wanted.deadline_seconds();
  return seconds > 0 ? std::min(absl::Seconds(seconds), kRequestMax) : kRequestMax;
}

int64_t SegmentBytes(const PageHeader& header) {
  int64_t bytes = 0;
  for (const SegmentEntry& segment : header.segments) bytes += segment.stored_bytes();
  return bytes;
}

DeviceFallback ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
      return DeviceFallback::kRoom;
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kNotFound:
    case absl::StatusCode::kDeadlineExceeded:
      return DeviceFallback::kLoading;
    case absl::StatusCode::kOutOfRange:
      return DeviceFallback::kLimit;
    default:
      return DeviceFallback::kExport;
  }
}

}  // namespace

PeerPageRequest::PeerPageRequest(ServiceContext& context, v1::PeerFetch wanted, absl::Duration now)
    : context_(context), wanted_(std::move(wanted)), start_(now), end_(now + TimeOf(wanted_)) {}

absl::Status PeerPageRequest::Gather(const Caller& caller, const SessionId& session,
                                     int64_t bytes_max) {
  const std::optional<LeaseToken> token = LeaseToken::Decode(wanted_.lease_id());
  if (!token.has_value() || token->instance != context_.instance_tag ||
      token->scope_index >= caller.scopes().size()) {
    return absl::NotFoundError("the lease is unknown; look up again");
  }
  PAGODA_ASSIGN_OR_RETURN(const std::vector<RecordKey> keys,
                          context_.store.LeasedKeys(session.view(), token->lease,
                                                    wanted_.page_begin(), wanted_.page_count()));
  int64_t bytes = 0;
  int64_t header_bytes = 0;
  for (const RecordKey& key : keys) {
    if (asked_.size() == kAnswerPagesMax) break;
    absl::StatusOr<HostPagePtr> page = context_.store.GetLeased(session.view(), token->lease, key);
    if (page.ok() && *page == nullptr) {
      page = absl::UnavailableError("the page is not in host memory yet");
    }
    if (!page.ok()) {
      asked_.push_back({page.status(), nullptr});
      continue;
    }
    const PageHeader& header = (*page)->header();
    const int64_t page_bytes = SegmentBytes(header);
    if (page_bytes > bytes_max || header.header_bytes() > kHeaderBytesMax) {
      asked_.push_back({absl::OutOfRangeError(absl::StrFormat(
                            "a page of %d bytes, a request of this link has %d; raise "
                            "the client's staging_bytes",
                            page_bytes, bytes_max)),
                        nullptr});
      continue;
    }
    bytes += page_bytes;
    header_bytes += header.header_bytes();
    if (bytes > bytes_max || header_bytes > kHeaderBytesMax) break;
    absl::StatusOr<DevicePagePtr> promoted = context_.hbm->Promote(*page);
    asked_.push_back({promoted.status(), promoted.ok() ? *std::move(promoted) : nullptr});
  }
  return absl::OkStatus();
}

bool PeerPageRequest::Settled(absl::Duration now) const {
  return now >= start_ + (end_ - start_) / 2 ||
         std::all_of(asked_.begin(), asked_.end(), [](const Asked& asked) {
           return asked.page == nullptr || asked.page->arrived().has_value();
         });
}

void PeerPageRequest::Refuse(v1::PeerPage& answer, const absl::Status& why, DeviceFallback reason) {
  answer.set_code(static_cast<int32_t>(why.code()));
  answer.set_message(std::string(why.message().substr(0, 1024)));
  context_.metrics.OnDeviceFallback(reason);
}

v1::PeerPages PeerPageRequest::Answer(const absl::Status& status, absl::Duration now) {
  v1::PeerPages answer;
  answer.set_tag(wanted_.tag());
  answer.set_code(static_cast<int32_t>(status.code()));
  answer.set_message(std::string(status.message()));
  answer.set_deadline_seconds(absl::ToDoubleSeconds(std::max(end_ - now, absl::ZeroDuration())));
  uint32_t index = wanted_.page_begin();
  for (const Asked& asked : asked_) {
    v1::PeerPage& page = *answer.add_pages();
    page.set_page_index(index++);
    absl::Status why = asked.status;
    if (why.ok()) {
      why = asked.page->arrived().value_or(
          absl::DeadlineExceededError("the page did not come to device memory in time"));
    }
    if (!why.ok()) {
      const bool lost = !context_.hbm->health().ok();
      Refuse(page, why, lost ? DeviceFallback::kLost : ReasonOf(why));
      continue;
    }
    const PageHeader& header = asked.page->header();
    page.set_header(EncodePageHeader(header));
    page.set_tier(v1::TIER_HBM);
    for (const SegmentEntry& segment : header.segments) {
      page.add_segment_bytes(static_cast<uint64_t>(segment.stored_bytes()));
    }
    sent_.push_back(asked.page);
    bytes_ += SegmentBytes(header);
  }
  asked_.clear();
  return answer;
}

PeerRequest PeerPageRequest::Half(absl::Duration now) const {
  PeerRequest half;
  half.half = PeerRequest::Half::kSend;
  half.timeout = std::max(end_ - now, absl::ZeroDuration());
  for (const DevicePagePtr& page : sent_) {
    for (size_t i = 0; i < page->segment_count(); ++i) {
      const int64_t bytes = page->header().segments[i].stored_bytes();
      if (bytes > 0) half.pieces.push_back({page->segment(i).data(), bytes});
    }
    half.keep.push_back(page);
  }
  return half;
}

}  // namespace pagoda
