#include "cache-server/fetch_answer.h"

#include <grpcpp/alarm.h>
#include <grpcpp/support/slice.h>

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
  PAGODA_ASSIGN_OR_RETURN(target.keys,
                          context.store.LeasedKeys(target.session.view(), target.lease,
                                                   request.page_begin(), request.page_count()));
  target.page_begin = request.page_begin();
  return target;
}

class FetchAnswerImpl : public FetchAnswer,
                        public TieredStore::LayerListener,
                        public std::enable_shared_from_this<FetchAnswerImpl> {
 public:
  FetchAnswerImpl(ServiceContext& context, FetchSink& sink)
      : context_(context), sink_(sink), timer_(context.metrics, RpcMethod::kFetch) {}

  void Start(const Caller& caller, const v1::FetchRequest& request) override;
  void Refuse(const absl::Status& status) override { FinishOnce(status); }
  void OnWritten(bool ok) override;
  void GiveUp(const absl::Status& status) override ABSL_LOCKS_EXCLUDED(mutex_);

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

  void SetTimer(const v1::FetchRequest& request);
  void Gather(const v1::FetchRequest& request);
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
  void FinishOnce(const absl::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);
  void DoFinish(const absl::Status& status);  // by who set finished_
  void Count(const absl::Status& status);

  ServiceContext& context_;
  FetchSink& sink_;
  RpcTimer timer_;
  FetchTarget target_;
  grpc::Alarm give_up_;
  // Written before finished_ is set, read after it.
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

  // Used by whoever drives the answer: the last gathering callback, then OnWritten().
  std::vector<ServedPage> served_;
  absl::Status cut_;  // why the pages after served_ are not sent
  std::vector<SegmentOrder> order_;
  size_t next_start_ = 0;
  size_t next_segment_ = 0;
  size_t segment_offset_ = 0;
  bool end_written_ = false;  // the last message is with the sink
  grpc::ByteBuffer message_;
};

void FetchAnswerImpl::Start(const Caller& caller, const v1::FetchRequest& request) {
  absl::StatusOr<FetchTarget> target = ParseFetch(context_, caller, request);
  if (!target.ok()) return FinishOnce(target.status());
  target_ = *std::move(target);
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;  // given up already
    start_ = context_.clock.Monotonic();
    transfer_started_ = true;
  }
  context_.metrics.OnTransferStart(TransferDirection::kOut);
  Gather(request);
}

// Without a deadline of its own the answer waits for one lease at most.
void FetchAnswerImpl::SetTimer(const v1::FetchRequest& request) {
  absl::Duration longest = context_.options.lease;
  if (request.deadline_seconds() > 0) {
    longest = std::min(longest, absl::Seconds(request.deadline_seconds()));
  }
  give_up_.Set(
      std::chrono::system_clock::now() + absl::ToChronoMilliseconds(longest),
      [weak = weak_from_this()](bool fired) {
        const std::shared_ptr<FetchAnswerImpl> answer = weak.lock();
        if (answer == nullptr || !fired) return;
        answer->GiveUp(absl::DeadlineExceededError("pages did not load before the deadline"));
      });
}

void FetchAnswerImpl::Gather(const v1::FetchRequest& request) {
  const size_t count = target_.keys.size();
  {
    absl::MutexLock lock(&mutex_);
    gathered_.resize(count);
    pending_ = count + 1;  // One more for this loop: nobody plans before all are asked.
  }
  std::vector<absl::StatusOr<HostPagePtr>> pages;
  pages.reserve(count);
  bool waits = false;
  for (const RecordKey& key : target_.keys) {
    pages.push_back(context_.store.GetLeased(target_.session.view(), target_.lease, key));
    const absl::StatusOr<HostPagePtr>& page = pages.back();
    waits = waits || (page.ok() && (*page == nullptr || WantsCopy(**page)));
  }
  if (waits) SetTimer(request);
  std::vector<TieredStore::LayerPage> missing;
  for (size_t i = 0; i < count; ++i) {
    if (!pages[i].ok() || *pages[i] != nullptr) {
      OnLoaded(i, std::move(pages[i]));
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

void FetchAnswerImpl::OnBegun(size_t index, const HostPagePtr& page) {
  if (WantsCopy(*page)) return;  // made once all of it is there
  {
    absl::MutexLock lock(&mutex_);
    filling_[index].there.resize(page->segment_count());
  }
  OnGathered(index, {absl::OkStatus(), page, nullptr, true});
}

void FetchAnswerImpl::OnSegment(size_t index, uint32_t segment) {
  {
    absl::MutexLock lock(&mutex_);
    const auto page = filling_.find(index);
    if (page == filling_.end()) return;
    page->second.there[segment] = true;
  }
  Wake();
}

void FetchAnswerImpl::OnDone(size_t index, absl::StatusOr<HostPagePtr> page) {
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
void FetchAnswerImpl::Wake() {
  {
    absl::MutexLock lock(&mutex_);
    if (!waiting_ || finished_) return;
    const bool all_sent = next_segment_ == order_.size();
    if (all_sent ? !AllOver() : StateOf(order_[next_segment_]) == Segment::kComing) return;
    waiting_ = false;
  }
  WriteNext();
}

bool FetchAnswerImpl::AllOver() const {
  return std::all_of(filling_.begin(), filling_.end(), [this](const auto& entry) {
    return entry.first >= served_.size() || entry.second.over;
  });
}

FetchAnswerImpl::Segment FetchAnswerImpl::StateOf(const SegmentOrder& at) const {
  const auto filling = filling_.find(at.page);
  if (filling == filling_.end()) return Segment::kThere;
  if (filling->second.there[served_[at.page].sources[at.segment]]) return Segment::kThere;
  if (!filling->second.over) return Segment::kComing;
  return filling->second.status.ok() ? Segment::kThere : Segment::kLost;
}

void FetchAnswerImpl::OnLoaded(size_t index, absl::StatusOr<HostPagePtr> page) {
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
bool FetchAnswerImpl::WantsCopy(const HostPage& page) const {
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

void FetchAnswerImpl::Encode(size_t index, const HostPagePtr& page) {
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
void FetchAnswerImpl::OnGathered(size_t index, Gathered gathered) {
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

absl::Status FetchAnswerImpl::Plan() {
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

bool FetchAnswerImpl::AppendStarts(v1::FetchResponse& fields) {
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

bool FetchAnswerImpl::AppendPieces(PieceMessageWriter& writer) {
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

void FetchAnswerImpl::AppendEnds(v1::FetchResponse& fields) {
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
}

void FetchAnswerImpl::WriteNext() {
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
  if (complete) {
    {
      absl::MutexLock lock(&mutex_);
      finished_ = true;
    }
    AppendEnds(fields);
    fields.mutable_end();
    end_written_ = true;
    Count(absl::OkStatus());
  }
  writer.AppendFields(fields.SerializeAsString());
  message_ = writer.Take();
  sink_.Write(message_);
}

void FetchAnswerImpl::OnWritten(bool ok) {
  if (end_written_) return sink_.OnAnswered(ok);
  if (ok) return WriteNext();
  {
    absl::MutexLock lock(&mutex_);
    finished_ = true;
  }
  Count(absl::CancelledError("the client is gone"));
  sink_.OnAnswered(false);
}

// Once bytes flow, only the driver finishes: a write under way fails and tells it.
void FetchAnswerImpl::GiveUp(const absl::Status& status) {
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

void FetchAnswerImpl::FinishOnce(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    if (finished_) return;
    finished_ = true;
  }
  DoFinish(status);
}

void FetchAnswerImpl::DoFinish(const absl::Status& status) {
  Count(status);
  v1::FetchResponse fields;
  fields.mutable_end()->set_code(static_cast<int32_t>(status.code()));
  fields.mutable_end()->set_message(std::string(status.message()));
  const grpc::Slice slice(fields.SerializeAsString());
  message_ = grpc::ByteBuffer(&slice, 1);
  end_written_ = true;
  sink_.Write(message_);
}

void FetchAnswerImpl::Count(const absl::Status& status) {
  timer_.Finish(status.code());
  if (!transfer_started_) return;
  context_.metrics.OnTransferEnd(TransferDirection::kOut, status.ok() && cut_.ok());
  context_.metrics.OnTransferTook(TransferDirection::kOut, context_.clock.Monotonic() - start_);
}

}  // namespace

std::shared_ptr<FetchAnswer> MakeFetchAnswer(ServiceContext& context, FetchSink& sink) {
  return std::make_shared<FetchAnswerImpl>(context, sink);
}

}  // namespace pagoda
