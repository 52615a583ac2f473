#include "client/peer_channel.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/messages.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

using Phase = LinkMachine::Phase;

constexpr absl::Duration kTurnWait = absl::Milliseconds(20);
constexpr absl::Duration kPollPause = absl::Microseconds(50);
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);
constexpr absl::Duration kPauseMax = absl::Seconds(60);
// What a request has at least: a link that is given up costs all callers.
constexpr absl::Duration kRequestMin = absl::Seconds(1);

// Another try would end the same way.
bool IsForGood(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsFailedPrecondition(status);
}

// Whether the header is of that page, and its segments are as long as it was said.
absl::Status CheckHeader(const PageHeader& header, const v1::PeerPage& said,
                         const RecordKey& record, const Identity& identity) {
  if (header.record != record || header.identity != identity) {
    return absl::DataLossError("peer: page of another key or model");
  }
  if (header.segments.size() != static_cast<size_t>(said.segment_bytes_size())) {
    return absl::DataLossError("peer: not a length for each segment");
  }
  for (size_t i = 0; i < header.segments.size(); ++i) {
    if (said.segment_bytes(static_cast<int>(i)) !=
        static_cast<uint64_t>(header.segments[i].stored_bytes())) {
      return absl::DataLossError("peer: a segment of another length than its header says");
    }
  }
  return absl::OkStatus();
}

}  // namespace

PeerChannel::~PeerChannel() {
  absl::MutexLock lock(&mutex_);
  if (link_ != nullptr) link_->stream->Cancel();
}

absl::StatusOr<PeerChannel::Pages> PeerChannel::Fetch(const std::string& session_id,
                                                      const ShmChannel::Wanted& wanted,
                                                      const DeviceTargets& targets) {
  if (options_.device == nullptr || options_.peer.open_transport == nullptr) {
    return absl::FailedPreconditionError(
        "peer: ClientOptions.device and peer.open_transport are not both set");
  }
  absl::Duration waited = absl::ZeroDuration();
  while (!mutex_.TryLock()) {
    if (waited >= kTurnWait) return absl::UnavailableError("peer: another request is under way");
    absl::SleepFor(absl::Milliseconds(1));
    waited += absl::Milliseconds(1);
  }
  absl::StatusOr<Pages> pages = FetchAll(session_id, wanted, targets);
  mutex_.Unlock();
  return pages;
}

void PeerChannel::Watch() {
  if (!mutex_.TryLock()) return;  // who has it looks at the link
  if (link_ != nullptr) (void)Step();
  PollOld();
  mutex_.Unlock();
}

void PeerChannel::PollOld() {
  std::erase_if(old_, [](const std::unique_ptr<Link>& old) {
    old->link->Poll();
    return old->link->phase() != Phase::kDraining;
  });
}

absl::StatusOr<PeerChannel::Pages> PeerChannel::FetchAll(const std::string& session_id,
                                                         const ShmChannel::Wanted& wanted,
                                                         const DeviceTargets& targets) {
  const absl::Duration end = SystemClock().Monotonic() + std::max(wanted.timeout, kRequestMin);
  PAGODA_RETURN_IF_ERROR(AwaitLink(session_id, end));
  Pages pages;
  absl::Status status;
  while (status.ok() && pages.size() < wanted.records.size()) {
    status = FetchSome(wanted, targets, end, pages);
  }
  if (pages.empty()) return status;
  while (pages.size() < wanted.records.size()) pages.push_back(status);
  return pages;
}

absl::Status PeerChannel::AwaitLink(const std::string& session_id, absl::Duration end) {
  if (link_ != nullptr && link_->session_id != session_id) {
    (void)Drop(absl::UnavailableError("peer: the session has ended"));
  }
  if (link_ != nullptr) (void)Step();
  if (link_ == nullptr) PAGODA_RETURN_IF_ERROR(Begin(session_id));
  const absl::Duration until = std::min(end, SystemClock().Monotonic() + options_.join_wait);
  while (link_->link->phase() != Phase::kReady) {
    if (SystemClock().Monotonic() >= until) {
      return absl::UnavailableError("peer: the link is being made");
    }
    absl::SleepFor(kPollPause);
    PAGODA_RETURN_IF_ERROR(Step());
  }
  return absl::OkStatus();
}

absl::Status PeerChannel::Begin(const std::string& session_id) {
  if (!last_error_.ok() && failed_session_id_ == session_id) {
    if (IsForGood(last_error_)) return last_error_;
    if (const absl::Duration pause = next_try_ - SystemClock().Monotonic();
        pause > absl::ZeroDuration()) {
      return absl::UnavailableError(absl::StrFormat("peer: the link broke (%s), made anew in %s",
                                                    last_error_.message(),
                                                    absl::FormatDuration(pause)));
    }
  }
  PollOld();
  if (!old_.empty()) {
    return absl::UnavailableError("peer: the device is not done with a former link");
  }
  auto link = std::make_unique<Link>();
  link->session_id = session_id;
  v1::PeerRequest request;
  v1::PeerOpen& open = *request.mutable_open();
  open.set_session_id(session_id);
  const DeviceUuid& uuid = options_.device->info().uuid;
  open.set_device_uuid(uuid.bytes.data(), uuid.bytes.size());
  open.set_staging_bytes(static_cast<uint64_t>(options_.peer.staging_bytes));
  failed_session_id_ = session_id;
  if (absl::Status made = Make(*link); !made.ok()) return Drop(std::move(made));
  link->stream = PeerStream::Start(stub_, options_.token, std::move(request));
  link->opens_until = SystemClock().Monotonic() + LinkTimes().join_timeout;
  link_ = std::move(link);
  return absl::OkStatus();
}

absl::Status PeerChannel::Make(Link& link) {
  DeviceRuntime& device = *options_.device;
  PeerLinkOptions options;
  options.staging_bytes = options_.peer.staging_bytes;
  options.drain_timeout = kDrainTimeout;
  if (verifier_ == nullptr) {
    PAGODA_ASSIGN_OR_RETURN(verifier_, PeerVerifier::Create(device, options.staging_bytes));
  }
  PAGODA_ASSIGN_OR_RETURN(link.transport, options_.peer.open_transport(device));
  PAGODA_ASSIGN_OR_RETURN(link.link,
                          PeerLink::Create(device, *link.transport, SystemClock(), options));
  return absl::OkStatus();
}

absl::Status PeerChannel::Step() {
  absl::Status status = TryStep();
  return status.ok() ? status : Drop(std::move(status));
}

absl::Status PeerChannel::TryStep() {
  Link& link = *link_;
  if (!link.opened) {
    PAGODA_ASSIGN_OR_RETURN(const std::optional<v1::PeerResponse> response,
                            link.stream->Await(absl::ZeroDuration()));
    if (!response.has_value()) {
      return SystemClock().Monotonic() < link.opens_until
                 ? absl::OkStatus()
                 : absl::DeadlineExceededError("peer: the daemon did not open a link in time");
    }
    const v1::PeerOpened& opened = response->opened();
    PeerLinkId id;
    if (opened.link_id().size() != id.bytes.size() || opened.request_bytes_max() == 0) {
      return absl::DataLossError("peer: an answer that is no link's");
    }
    std::copy(opened.link_id().begin(), opened.link_id().end(), id.bytes.begin());
    link.opened = true;
    link.request_bytes_max = static_cast<int64_t>(
        std::min(opened.request_bytes_max(), static_cast<uint64_t>(options_.peer.staging_bytes)));
    return link.link->Join(id, /*rank=*/1);
  }
  PAGODA_RETURN_IF_ERROR(link.stream->health());
  link.link->Poll();
  const Phase phase = link.link->phase();
  return phase == Phase::kDraining || phase == Phase::kBroken ? link.link->fault()
                                                              : absl::OkStatus();
}

absl::Status PeerChannel::Drop(absl::Status why) {
  if (link_ != nullptr) {
    link_->link->Abort(why);
    link_->stream->Cancel();
    old_.push_back(std::move(link_));
  }
  next_try_ = SystemClock().Monotonic() + pause_;
  pause_ = std::min(2 * pause_, kPauseMax);
  LogWarning("peer_link_off", {{"cause", std::string(why.message())},
                               {"effect", "pages are fetched into host memory"}});
  last_error_ = why;
  return why;
}

absl::StatusOr<v1::PeerPages> PeerChannel::Ask(const ShmChannel::Wanted& wanted, uint32_t done,
                                               absl::Duration end) {
  v1::PeerRequest request;
  v1::PeerFetch& fetch = *request.mutable_fetch();
  fetch.set_tag(++tag_);
  fetch.set_lease_id(Bytes(wanted.lease));
  fetch.set_page_begin(wanted.page_begin + done);
  fetch.set_page_count(static_cast<uint32_t>(wanted.records.size()) - done);
  const absl::Duration left = end - SystemClock().Monotonic();
  fetch.set_deadline_seconds(absl::ToDoubleSeconds(std::max(left, absl::Milliseconds(1))));
  link_->stream->Send(std::move(request));
  absl::StatusOr<std::optional<v1::PeerResponse>> response = link_->stream->Await(left);
  if (!response.ok()) return response.status();
  // Late is broken: what the daemon sends then would meet the next request.
  if (!response->has_value()) return absl::DeadlineExceededError("peer: no answer in time");
  v1::PeerPages pages = std::move(*(*response)->mutable_pages());
  if (pages.tag() != tag_) return absl::DataLossError("peer: an answer to something else");
  return pages;
}

absl::Status PeerChannel::TakePage(const v1::PeerPage& said, const ShmChannel::Wanted& wanted,
                                   const DeviceTargets& targets, Pages& pages, Incoming& incoming) {
  const size_t place = pages.size();
  if (said.page_index() != wanted.page_begin + place) {
    return absl::DataLossError("peer: a page that was not asked for");
  }
  if (said.code() != 0) {
    pages.push_back(absl::Status(static_cast<absl::StatusCode>(said.code()), said.message()));
    return absl::OkStatus();
  }
  for (const uint64_t bytes : said.segment_bytes()) {
    if (bytes > static_cast<uint64_t>(link_->request_bytes_max - incoming.bytes)) {
      return absl::DataLossError("peer: more bytes than the link moves at once");
    }
    incoming.bytes += static_cast<int64_t>(bytes);
  }
  // From here on the bytes come, wanted or not.
  DeviceTarget target;
  const auto take = [&]() -> absl::StatusOr<PageOnDevice> {
    PageOnDevice page;
    PAGODA_ASSIGN_OR_RETURN(page.header, DecodePageHeader(AsBytes(said.header())));
    PAGODA_RETURN_IF_ERROR(CheckHeader(page.header, said, wanted.records[place], wanted.identity));
    target = targets(static_cast<uint32_t>(place), page.header);
    if (target.segments.size() != page.header.segments.size() ||
        std::count(target.segments.begin(), target.segments.end(), nullptr) != 0) {
      return absl::CancelledError("peer: the caller has no memory for this page");
    }
    page.segments.assign(target.segments.begin(), target.segments.end());
    return page;
  };
  pages.push_back(take());
  const bool wants = pages.back().ok();
  for (int i = 0; i < said.segment_bytes_size(); ++i) {
    const auto bytes = static_cast<int64_t>(said.segment_bytes(i));
    std::byte* const data = wants ? target.segments[static_cast<size_t>(i)] : nullptr;
    if (bytes > 0) incoming.half.pieces.push_back({data, bytes});
  }
  if (!wants) return absl::OkStatus();
  incoming.half.keep.push_back(target.owner);
  incoming.places.push_back(place);
  incoming.landed.push_back({nullptr, std::move(target.segments), std::move(target.owner)});
  return absl::OkStatus();
}

absl::Status PeerChannel::FetchSome(const ShmChannel::Wanted& wanted, const DeviceTargets& targets,
                                    absl::Duration end, Pages& pages) {
  const size_t before = pages.size();
  const absl::StatusOr<v1::PeerPages> answer = Ask(wanted, static_cast<uint32_t>(before), end);
  if (!answer.ok()) return Drop(answer.status());
  if (answer->code() != 0) {  // of this request alone
    return absl::Status(static_cast<absl::StatusCode>(answer->code()), answer->message());
  }
  const auto count = static_cast<size_t>(answer->pages_size());
  absl::Status status;
  if (count == 0 || count > wanted.records.size() - before) {
    status = absl::DataLossError(absl::StrFormat("peer: an answer of %d pages", count));
  }
  Incoming incoming;
  for (size_t i = 0; i < count && status.ok(); ++i) {
    status = TakePage(answer->pages(static_cast<int>(i)), wanted, targets, pages, incoming);
  }
  if (status.ok() && incoming.bytes > 0) status = Receive(std::move(incoming.half), end);
  if (status.ok()) status = Verify(incoming, end, pages);
  if (status.ok()) {
    pause_ = options_.pause;
    return status;
  }
  pages.resize(before, absl::UnavailableError(""));
  return Drop(std::move(status));
}

absl::Status PeerChannel::Receive(PeerRequest half, absl::Duration end) {
  std::optional<absl::Status> moved;
  half.half = PeerRequest::Half::kReceive;
  half.timeout = end - SystemClock().Monotonic();
  half.done = [&moved](const absl::Status& status) { moved = status; };
  PeerLink& link = *link_->link;
  PAGODA_RETURN_IF_ERROR(link.Start(std::move(half)));
  while (true) {
    link.Poll();
    if (moved.has_value()) return *moved;
    // The daemon knows more of a fault than a deadline does; what has come by then has come.
    if (absl::Status gone = link_->stream->health(); !gone.ok()) link.Abort(gone);
    if (!moved.has_value()) absl::SleepFor(kPollPause);
  }
}

absl::Status PeerChannel::Verify(const Incoming& incoming, absl::Duration end, Pages& pages) {
  std::vector<PeerVerifier::Landed> landed = incoming.landed;
  for (size_t i = 0; i < landed.size(); ++i) landed[i].header = &pages[incoming.places[i]]->header;
  PAGODA_ASSIGN_OR_RETURN(const std::vector<absl::Status> checked,
                          verifier_->Verify(landed, std::max(end - SystemClock().Monotonic(),
                                                             absl::Milliseconds(100))));
  for (size_t i = 0; i < checked.size(); ++i) {
    if (!checked[i].ok()) pages[incoming.places[i]] = checked[i];
  }
  return absl::OkStatus();
}

}  // namespace pagoda::client
