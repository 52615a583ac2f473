#include "client/push_stream.h"

#include "absl/strings/str_cat.h"
#include "client/channel.h"
#include "proto/piece_codec.h"
#include "proto/wire.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"

namespace pagoda::client {
namespace {

constexpr char kPushMethod[] = "/pagoda.v1.Cache/Push";
constexpr size_t kMessageBytesTarget = 1 << 20;

using Owner = std::shared_ptr<const void>;

// A slice of the page's own memory; the page lives until gRPC drops the slice.
grpc::Slice SliceOf(ByteSpan bytes, const Owner& owner) {
  auto* held = new Owner(owner);
  return grpc::Slice(
      const_cast<std::byte*>(bytes.data()), bytes.size(),
      [](void* owner) { delete static_cast<Owner*>(owner); }, held);
}

}  // namespace

std::shared_ptr<PushStream> PushStream::Start(grpc::GenericStub& stub, PushConfig config,
                                              PushCallback callback) {
  std::shared_ptr<PushStream> stream(new PushStream(std::move(config), std::move(callback)));
  {
    absl::MutexLock lock(&stream->mutex_);
    stream->self_ = stream;
  }
  // No deadline for the stream: each page has one (CheckProgress).
  PrepareContext(stream->context_, stream->config_.token, absl::InfiniteDuration());
  stub.PrepareBidiStreamingCall(&stream->context_, kPushMethod, {}, stream.get());
  stream->StartRead(&stream->answer_);
  stream->AddHold();  // Writes start outside of reactions; removed by Cancel() or the stream's end.
  stream->StartCall();
  return stream;
}

absl::Status PushStream::Push(PushItem item) {
  if (item.segments.empty() || item.segments.size() != item.segment_crc32c.size()) {
    return absl::InvalidArgumentError("push: one checksum for each segment, at least one segment");
  }
  Pending page;
  for (const ByteSpan segment : item.segments) page.bytes += static_cast<int64_t>(segment.size());
  page.item = std::move(item);
  page.since = page.pushed = SystemClock().Monotonic();
  absl::MutexLock lock(&mutex_);
  if (ended_) {
    return absl::UnavailableError(absl::StrCat("push stream ended: ", status_.message()));
  }
  if (queued_bytes_ + page.bytes > config_.queue_bytes_max) {
    return absl::ResourceExhaustedError(absl::StrCat("push queue: ", queued_bytes_, " of ",
                                                     config_.queue_bytes_max, " bytes in use"));
  }
  queued_bytes_ += page.bytes;
  pages_.push_back(std::move(page));
  if (!writing_) WriteNext();
  return absl::OkStatus();
}

absl::Status PushStream::Flush(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto settled = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return pages_.empty() && calling_back_ == 0;
  };
  if (!mutex_.AwaitWithTimeout(absl::Condition(&settled), timeout)) {
    return absl::DeadlineExceededError(absl::StrCat(pages_.size(), " pushed pages unanswered"));
  }
  return lost_pages_ ? status_ : absl::OkStatus();
}

void PushStream::Cancel() { context_.TryCancel(); }

bool PushStream::WaitDone(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  return mutex_.AwaitWithTimeout(absl::Condition(&done_), timeout);
}

void PushStream::CheckProgress(absl::Duration now) {
  bool stuck = false;
  {
    absl::MutexLock lock(&mutex_);
    stuck = !pages_.empty() && now - pages_.front().since > config_.answer_timeout;
  }
  if (stuck) Cancel();
}

grpc::ByteBuffer PushStream::NextMessage(Pending& page) {
  PieceMessageWriter writer(kPushPiecesField);
  if (first_message_) {
    first_message_ = false;
    v1::PushRequest head;
    head.set_session_id(config_.session_id);
    if (!config_.sequence.is_zero()) {
      head.set_sequence_id(config_.sequence.bytes.data(), config_.sequence.bytes.size());
    }
    writer.AppendFields(head.SerializeAsString());
  }
  if (page.next_segment == 0)
    writer.AppendFields(PushPageMessage(config_, page.item).SerializeAsString());
  const std::vector<ByteSpan>& segments = page.item.segments;
  while (page.next_segment < segments.size() && writer.payload_bytes() < kMessageBytesTarget) {
    writer.AppendPiece({0, static_cast<uint32_t>(page.next_segment), 0},
                       SliceOf(segments[page.next_segment], page.item.owner));
    ++page.next_segment;
  }
  if (page.next_segment == segments.size()) {
    v1::PushRequest tail;
    tail.set_commit(true);
    writer.AppendFields(tail.SerializeAsString());
  }
  return writer.Take();
}

void PushStream::WriteNext() {
  PAGODA_CHECK(!writing_);
  if (ended_ || written_ == pages_.size()) return;
  Pending& page = pages_[written_];
  message_ = NextMessage(page);
  if (page.next_segment == page.item.segments.size()) ++written_;
  writing_ = true;
  StartWrite(&message_);
}

void PushStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mutex_);
  writing_ = false;
  message_.Clear();
  if (ok) WriteNext();
}

void PushStream::OnReadDone(bool ok) {
  if (!ok) {
    {
      absl::MutexLock lock(&mutex_);
      ended_ = true;  // No write may start once the hold is gone.
    }
    RemoveHold();
    return;
  }
  v1::PushResponse response;
  grpc::Slice whole;
  const bool readable = answer_.DumpToSingleSlice(&whole).ok() &&
                        response.ParseFromArray(whole.begin(), static_cast<int>(whole.size()));
  answer_.Clear();
  Pending page;
  {
    absl::MutexLock lock(&mutex_);
    if (!readable || pages_.empty() || written_ == 0) {
      status_ = absl::DataLossError("push: an answer that fits no page");
    } else {
      page = std::move(pages_.front());
      pages_.pop_front();
      --written_;
      queued_bytes_ -= page.bytes;
      ++calling_back_;
      if (!pages_.empty()) pages_.front().since = SystemClock().Monotonic();
    }
  }
  if (page.bytes == 0) {
    Cancel();
  } else if (callback_ != nullptr) {
    if (response.code() == 0 && config_.on_grpc_page != nullptr) {
      config_.on_grpc_page(page.bytes, SystemClock().Monotonic() - page.pushed);
    }
    if (response.code() != 0) {
      callback_(page.item.key,
                absl::Status(static_cast<absl::StatusCode>(response.code()), response.message()));
    } else {
      callback_(page.item.key, static_cast<PushOutcome>(response.outcome() - 1));
    }
  }
  if (page.bytes != 0) {
    absl::MutexLock lock(&mutex_);
    --calling_back_;
  }
  StartRead(&answer_);
}

void PushStream::OnDone(const grpc::Status& status) {
  std::shared_ptr<PushStream> self;  // Keeps this alive to the end of the function.
  std::deque<Pending> lost;
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    ended_ = true;
    if (status_.ok()) status_ = FromGrpc(status);
    if (status_.ok() && !pages_.empty()) status_ = absl::UnavailableError("push stream ended");
    why = status_;
    lost.swap(pages_);
    lost_pages_ = !lost.empty();
    calling_back_ += static_cast<int>(lost.size());
    written_ = 0;
    queued_bytes_ = 0;
    self = std::move(self_);
  }
  if (callback_ != nullptr) {
    for (const Pending& page : lost) callback_(page.item.key, why);
  }
  absl::MutexLock lock(&mutex_);
  calling_back_ -= static_cast<int>(lost.size());
  done_ = true;
}

}  // namespace pagoda::client
