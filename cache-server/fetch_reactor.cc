#include "cache-server/fetch_reactor.h"

#include <grpcpp/alarm.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "cache-server/fetch_plan.h"
#include "cache-server/lease_token.h"
#include "cache-server/request_fields.h"
#include "proto/piece_codec.h"
#include "proto/wire.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr size_t kMessagePayloadBytes = 1 << 20;
constexpr int kMessagePiecesMax = 1000;  // piece_codec.h allows 1024
constexpr size_t kHeaderBytesPerMessage = 1 << 20;

// A slice of a page's memory that holds the page until gRPC is done with it.
grpc::Slice SliceOf(ByteSpan bytes, const std::shared_ptr<const void>& owner) {
  auto* held = new std::shared_ptr<const void>(owner);
  return grpc::Slice(
      const_cast<std::byte*>(bytes.data()), bytes.size(),
      [](void* user) { delete static_cast<std::shared_ptr<const void>*>(user); }, held);
}

struct FetchTarget {
  SessionId session;
  LeaseId lease = 0;
  ScopeId scope;
  uint32_t page_begin = 0;
  std::vector<RecordKey> keys;
  FetchSelection selection;
};

absl::StatusOr<FetchTarget> ParseFetch(ServiceContext& context, const Caller& caller,
                                       const v1::FetchRequest& request) {
  FetchTarget target;
  PAGODA_ASSIGN_OR_RETURN(target.session, ParseId<SessionId>("session_id", request.session_id()));
  PAGODA_RETURN_IF_ERROR(context.sessions.Check(target.session, caller.tenant()));
  PAGODA_ASSIGN_OR_RETURN(target.selection, ParseFetchSelection(request));
  const std::optional<LeaseToken> token = LeaseToken::Decode(request.lease_id());
  if (!token.has_value() || token->instance != context.instance_tag ||
      token->scope_index >= caller.scopes().size()) {
    return absl::NotFoundError("the lease is unknown; look up again");
  }
  target.lease = token->lease;
  target.scope = caller.scopes()[token->scope_index].id;
  PAGODA_ASSIGN_OR_RETURN(std::vector<RecordKey> keys,
                          context.store.LeasedKeys(target.session.view(), target.lease));
  if (request.page_count() == 0 || request.page_begin() >= keys.size() ||
      request.page_count() > keys.size() - request.page_begin()) {
    return absl::InvalidArgumentError(absl::StrFormat("pages: %d+%d asked, the lease has %d",
                                                      request.page_begin(), request.page_count(),
                                                      keys.size()));
  }
  target.page_begin = request.page_begin();
  target.keys.assign(keys.begin() + request.page_begin(),
                     keys.begin() + request.page_begin() + request.page_count());
  return target;
}

class FetchReactor : public grpc::ServerWriteReactor<grpc::ByteBuffer>,
                     public TieredStore::LayerListener,
                     public std::enable_shared_from_this<FetchReactor> {
 public:
  explicit FetchReactor(ServiceContext& context)
      : context_(context), timer_(context.metrics, RpcMethod::kFetch) {}

  void Start(std::shared_ptr<FetchReactor> self, grpc::CallbackServerContext* call,
             const grpc::ByteBuffer& request);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  void OnBegun(size_t index, const HostPagePtr& page) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnSegment(size_t index, uint32_t segment) override ABSL_LOCKS_EXCLUDED(mutex_);
  void OnDone(size_t index, absl::StatusOr<HostPagePtr> page) override ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Gathered {
    absl::Status status;  // not OK: this page and all after it are a miss
    HostPagePtr page;
    std::shared_ptr<const EncodedCopy> encoded;
    bool done = false;
  };
  // A page whose bytes are still coming.
  struct Filling {
    std::vector<bool> there;  // by segment of the stored page
    absl::Status status;      // not OK: the rest does not come
    bool over = false;
  };

  absl::Status Prepare(grpc::CallbackServerContext* call, const grpc::ByteBuffer& request);
  void Gather();
  void OnLoaded(size_t index, absl::StatusOr<HostPagePtr> page);
  bool WantsCopy(const HostPage& page) const;
  void Encode(size_t index, const HostPagePtr& page);
  void OnGathered(size_t index, Gathered gathered);
  absl::Status Plan();
  void WriteNext();
  bool AppendStarts(v1::FetchResponse& fields);
  // Whether that segment can be sent, must be passed over, or is waited for.
  enum class Segment { kThere, kLost, kComing };
  Segment StateOf(const SegmentOrder& at) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Every page that is sent stands in memory, or does not come: only then the answer ends.
  bool AllOver() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool AppendPieces(PieceMessageWriter& writer) ABSL_LOCKS_EXCLUDED(mutex_);
  void Wake() ABSL_LOCKS_EXCLUDED(mutex_);
  void AppendEnds(v1::FetchResponse& fields);
  void GiveUp(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void FinishOnce(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void DoFinish(const absl::Status& status);  // by who set finished_

  ServiceContext& context_;
  RpcTimer timer_;
  std::shared_ptr<FetchReactor> self_;  // until OnDone()
  FetchTarget target_;
  grpc::Alarm give_up_;
  absl::Duration start_;
  bool transfer_started_ = false;

  absl::Mutex mutex_;
  std::vector<Gathered> gathered_ ABSL_GUARDED_BY(mutex_);
  size_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<size_t, Filling> filling_ ABSL_GUARDED_BY(mutex_);  // by index of the page
  bool streaming_ ABSL_GUARDED_BY(mutex_) = false;
  bool waiting_ ABSL_GUARDED_BY(mutex_) = false;  // for a segment: who brings it drives the stream
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status given_up_ ABSL_GUARDED_BY(mutex_);

  // Used by whoever drives the stream: the last gathering callback, then OnWriteDone().
  std::vector<ServedPage> served_;
  absl::Status cut_;  // why the pages after served_ are not sent
  std::vector<SegmentOrder> order_;
  size_t next_start_ = 0;
  size_t next_segment_ = 0;
  size_t segment_offset_ = 0;
  bool ends_sent_ = false;
  grpc::ByteBuffer message_;
};

void FetchReactor::Start(std::shared_ptr<FetchReactor> self, grpc::CallbackServerContext* call,
                         const grpc::ByteBuffer& request) {
  self_ = std::move(self);
  start_ = context_.clock.Monotonic();
  if (absl::Status status = Prepare(call, request); !status.ok()) return FinishOnce(status);
  transfer_started_ = true;
  context_.metrics.OnTransferStart(TransferDirection::kOut);
  // Without a deadline of its own the call waits for one lease at most.
  const auto latest =
      std::chrono::system_clock::now() + absl::ToChronoMilliseconds(context_.options.lease);
  give_up_.Set(std::min(call->deadline(), latest), [weak = weak_from_this()](bool fired) {
    const std::shared_ptr<FetchReactor> reactor = weak.lock();
    if (reactor == nullptr || !fired) return;
    reactor->GiveUp(absl::DeadlineExceededError("pages did not load before the deadline"));
  });
  Gather();
}

absl::Status FetchReactor::Prepare(grpc::CallbackServerContext* call,
                                   const grpc::ByteBuffer& request) {
  PAGODA_ASSIGN_OR_RETURN(const CallerPtr caller,
                          context_.callers.Identify(call->client_metadata()));
  if (request.Length() > static_cast<size_t>(context_.options.limits.control_message_bytes_max)) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("message of %d bytes, control_message_bytes_max is %d", request.Length(),
                        context_.options.limits.control_message_bytes_max));
  }
  grpc::ByteBuffer copy(request);
  v1::FetchRequest parsed;
  if (!grpc::SerializationTraits<v1::FetchRequest>::Deserialize(&copy, &parsed).ok()) {
    return absl::InvalidArgumentError("message: malformed bytes");
  }
  PAGODA_ASSIGN_OR_RETURN(target_, ParseFetch(context_, *caller, parsed));
  return absl::OkStatus();
}

void FetchReactor::Gather() {
  const size_t count = target_.keys.size();
  {
    absl::MutexLock lock(&mutex_);
    gathered_.resize(count);
    pending_ = count + 1;  // One more for this loop: nobody plans before all are asked.
  }
  std::vector<TieredStore::LayerPage> missing;
  for (size_t i = 0; i < count; ++i) {
    absl::StatusOr<HostPagePtr> page =
        context_.store.GetLeased(target_.session.view(), target_.lease, target_.keys[i]);
    if (!page.ok() || *page != nullptr) {
      OnLoaded(i, std::move(page));
    } else {
      missing.push_back({i, target_.keys[i]});
    }
  }
  if (!missing.empty()) {
    context_.store.LoadLeasedByLayer(target_.session.view(), target_.lease, missing,
                                     shared_from_this());
  }
  OnGathered(count, {});
}

void FetchReactor::OnBegun(size_t index, const HostPagePtr& page) {
  if (WantsCopy(*page)) return;  // made once all of it is there
  {
    absl::MutexLock lock(&mutex_);
    filling_[index].there.resize(page->segment_count());
  }
  OnGathered(index, {absl::OkStatus(), page, nullptr, true});
}

void FetchReactor::OnSegment(size_t index, uint32_t segment) {
  {
    absl::MutexLock lock(&mutex_);
    const auto page = filling_.find(index);
    if (page == filling_.end()) return;
    page->second.there[segment] = true;
  }
  Wake();
}

void FetchReactor::OnDone(size_t index, absl::StatusOr<HostPagePtr> page) {
  if (page.ok()) context_.encoder.Consider({target_.keys[index], target_.scope});
  bool begun = false;
  {
    absl::MutexLock lock(&mutex_);
    const auto filling = filling_.find(index);
    begun = filling != filling_.end();
    if (begun) {
      filling->second.over = true;
      filling->second.status = page.status();
    }
  }
  begun ? Wake() : OnLoaded(index, std::move(page));
}

// Goes on where a segment was waited for.
void FetchReactor::Wake() {
  {
    absl::MutexLock lock(&mutex_);
    if (!waiting_ || finished_) return;
    const bool all_sent = next_segment_ == order_.size();
    if (all_sent ? !AllOver() : StateOf(order_[next_segment_]) == Segment::kComing) return;
    waiting_ = false;
  }
  WriteNext();
}

bool FetchReactor::AllOver() const {
  return std::all_of(filling_.begin(), filling_.end(), [this](const auto& entry) {
    return entry.first >= served_.size() || entry.second.over;
  });
}

FetchReactor::Segment FetchReactor::StateOf(const SegmentOrder& at) const {
  const auto filling = filling_.find(at.page);
  if (filling == filling_.end()) return Segment::kThere;
  if (filling->second.there[served_[at.page].sources[at.segment]]) return Segment::kThere;
  if (!filling->second.over) return Segment::kComing;
  return filling->second.status.ok() ? Segment::kThere : Segment::kLost;
}

void FetchReactor::OnLoaded(size_t index, absl::StatusOr<HostPagePtr> page) {
  if (!page.ok()) return OnGathered(index, {page.status(), nullptr, nullptr, true});
  if (!WantsCopy(**page)) return OnGathered(index, {absl::OkStatus(), *page, nullptr, true});
  const bool queued = context_.fetch_encodes.TryPush(
      [self = shared_from_this(), index, page = *page] { self->Encode(index, page); });
  if (!queued) {
    OnGathered(index, {absl::UnavailableError("too many pages wait to be encoded"), nullptr,
                       nullptr, true});
  }
}

// Whether the answer is another form of the page than the stored one with planes left out.
bool FetchReactor::WantsCopy(const HostPage& page) const {
  const FetchSelection& selection = target_.selection;
  if (page.precision() > Precision::kRaw16 || page.precision() <= selection.precision_max) {
    return false;
  }
  if (page.precision() == Precision::kRaw16 || selection.precision_max < Precision::kQ4) {
    return true;
  }
  // A profile's layers are cut out of q8's segments.
  return selection.planes.empty() && !context_.models.KLoLayersOf(page.header().identity).empty();
}

void FetchReactor::Encode(size_t index, const HostPagePtr& page) {
  const absl::Duration start = context_.clock.Monotonic();
  const Precision target = std::min(target_.selection.precision_max, Precision::kQ8);
  absl::StatusOr<std::shared_ptr<const EncodedCopy>> copy =
      EncodeCopy(*page, target, context_.models.KLoLayersOf(page->header().identity));
  if (copy.ok()) {
    if (page->precision() != Precision::kRaw16) {  // cut, not encoded
      return OnGathered(index, {absl::OkStatus(), page, *copy, true});
    }
    context_.metrics.OnEncoded(EncodePlace::kFetch, target, 0, context_.clock.Monotonic() - start);
    return OnGathered(index, {absl::OkStatus(), page, *copy, true});
  }
  // What cannot be encoded, NaN or infinity, is served as it is.
  context_.metrics.OnEncodeFailed(copy.status().code() == absl::StatusCode::kInvalidArgument
                                      ? EncodeFailure::kValues
                                      : EncodeFailure::kOther);
  OnGathered(index, {absl::OkStatus(), page, nullptr, true});
}

// index == keys.size() is the asking loop itself.
void FetchReactor::OnGathered(size_t index, Gathered gathered) {
  {
    absl::MutexLock lock(&mutex_);
    if (index < gathered_.size()) gathered_[index] = std::move(gathered);
    --pending_;
    if (pending_ > 0 || finished_) return;
    streaming_ = true;
  }
  if (absl::Status status = Plan(); !status.ok()) return FinishOnce(status);
  WriteNext();
}

absl::Status FetchReactor::Plan() {
  std::vector<Gathered> gathered;
  {
    absl::MutexLock lock(&mutex_);
    gathered = std::move(gathered_);
    gathered_.clear();
  }
  for (Gathered& page : gathered) {
    if (!page.status.ok()) {
      cut_ = page.status;
      break;
    }
    PAGODA_ASSIGN_OR_RETURN(ServedPage served,
                            ServePage(page.page, page.encoded, target_.selection));
    served_.push_back(std::move(served));
  }
  order_ = OrderOf(served_, target_.selection);
  return absl::OkStatus();
}

bool FetchReactor::AppendStarts(v1::FetchResponse& fields) {
  size_t bytes = 0;
  for (; next_start_ < served_.size() && bytes < kHeaderBytesPerMessage; ++next_start_) {
    v1::PageStart& start = *fields.add_starts();
    start.set_page_index(target_.page_begin + static_cast<uint32_t>(next_start_));
    start.set_header(EncodePageHeader(served_[next_start_].header));
    start.set_tier(v1::TIER_HOST);
    bytes += start.header().size();
  }
  return next_start_ == served_.size();
}

bool FetchReactor::AppendPieces(PieceMessageWriter& writer) {
  for (int pieces = 0; next_segment_ < order_.size() && pieces < kMessagePiecesMax &&
                       writer.payload_bytes() < kMessagePayloadBytes;) {
    const SegmentOrder& at = order_[next_segment_];
    Segment state;
    {
      absl::MutexLock lock(&mutex_);
      state = StateOf(at);
    }
    if (state == Segment::kComing) break;
    if (state == Segment::kLost) {
      ++next_segment_;
      segment_offset_ = 0;
      continue;
    }
    const ServedPage& page = served_[at.page];
    const ByteSpan segment = page.segments[at.segment];
    const size_t size =
        std::min(segment.size() - segment_offset_, kMessagePayloadBytes - writer.payload_bytes());
    writer.AppendPiece(
        {target_.page_begin + at.page, at.segment, static_cast<uint64_t>(segment_offset_)},
        SliceOf(segment.subspan(segment_offset_, size), page.bytes_owner));
    ++pieces;
    segment_offset_ += size;
    if (segment_offset_ == segment.size()) {
      ++next_segment_;
      segment_offset_ = 0;
    }
  }
  context_.metrics.OnTransferBytes(TransferDirection::kOut,
                                   static_cast<int64_t>(writer.payload_bytes()));
  return next_segment_ == order_.size();
}

void FetchReactor::AppendEnds(v1::FetchResponse& fields) {
  const auto add = [&](size_t index, const absl::Status& status) {
    v1::PageEnd& end = *fields.add_ends();
    end.set_page_index(target_.page_begin + static_cast<uint32_t>(index));
    end.set_code(static_cast<int32_t>(status.code()));
    end.set_message(std::string(status.message()));
  };
  for (size_t i = 0; i < served_.size(); ++i) {
    absl::Status status;
    {
      absl::MutexLock lock(&mutex_);
      const auto filling = filling_.find(i);
      if (filling != filling_.end()) status = filling->second.status;
    }
    add(i, status);
  }
  if (!cut_.ok()) add(served_.size(), cut_);
  ends_sent_ = true;
}

void FetchReactor::WriteNext() {
  if (ends_sent_) return FinishOnce(absl::OkStatus());
  PieceMessageWriter writer(kFetchPiecesField);
  v1::FetchResponse fields;
  const bool starts_left = next_start_ < served_.size();
  const bool pieces_may_follow = AppendStarts(fields);
  bool complete = false;
  if (pieces_may_follow && AppendPieces(writer)) {
    absl::MutexLock lock(&mutex_);
    complete = AllOver();
  }
  if (pieces_may_follow && !complete && !starts_left && writer.payload_bytes() == 0) {
    // Nothing to send before a segment comes, which may have happened by now.
    absl::Status given_up;
    {
      absl::MutexLock lock(&mutex_);
      given_up = given_up_;
      waiting_ = given_up.ok();
    }
    return given_up.ok() ? Wake() : FinishOnce(given_up);
  }
  if (complete) AppendEnds(fields);
  writer.AppendFields(fields.SerializeAsString());
  message_ = writer.Take();
  StartWrite(&message_);
}

void FetchReactor::OnWriteDone(bool ok) {
  if (!ok) return FinishOnce(absl::CancelledError("the client is gone"));
  WriteNext();
}

void FetchReactor::OnCancel() { GiveUp(absl::CancelledError("the call was cancelled")); }

// Once bytes flow, only the driver finishes: a write under way fails and tells it.
void FetchReactor::GiveUp(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    if (streaming_ && !waiting_) {
      given_up_ = status;  // for the driver, if it comes to wait
      return;
    }
    finished_ = true;
  }
  DoFinish(status);
}

void FetchReactor::FinishOnce(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
  }
  DoFinish(status);
}

void FetchReactor::DoFinish(const absl::Status& status) {
  timer_.Finish(status.code());
  if (transfer_started_) {
    context_.metrics.OnTransferEnd(TransferDirection::kOut, status.ok() && cut_.ok());
    context_.metrics.OnTransferTook(TransferDirection::kOut, context_.clock.Monotonic() - start_);
  }
  Finish(ToGrpc(status));
}

void FetchReactor::OnDone() {
  give_up_.Cancel();
  self_.reset();
}

}  // namespace

grpc::ServerWriteReactor<grpc::ByteBuffer>* StartFetch(ServiceContext& context,
                                                       grpc::CallbackServerContext* call,
                                                       const grpc::ByteBuffer& request) {
  auto reactor = std::make_shared<FetchReactor>(context);
  FetchReactor* raw = reactor.get();
  raw->Start(std::move(reactor), call, request);
  return raw;
}

}  // namespace pagoda
