#include "client/fetch_call.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/fetch_memory.h"
#include "client/high_planes.h"
#include "client/layer_progress.h"
#include "proto/piece_codec.h"
#include "storage/base/clock.h"
#include "storage/base/crc32c.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

// No daemon sends a page above this; a header that asks for more memory is damaged or hostile.
constexpr int64_t kPageBytesMax = int64_t{1} << 30;

// Puts messages together into pages. Not thread-safe: a FetchStream hands it one at a time.
class PageAssembler {
 public:
  PageAssembler(const Identity& identity, std::vector<RecordKey> records, uint32_t page_begin,
                PageTarget target, bool high_first, LayerProgress& progress,
                LayerProgress& high_progress)
      : identity_(identity),
        records_(std::move(records)),
        page_begin_(page_begin),
        target_(std::move(target)),
        high_first_(high_first),
        progress_(progress),
        high_progress_(high_progress),
        pages_(records_.size()) {}

  // True: the answer's last message.
  absl::StatusOr<bool> Accept(const grpc::ByteBuffer& message) {
    PAGODA_ASSIGN_OR_RETURN(const PieceMessageReader reader,
                            PieceMessageReader::Parse(message, kFetchPiecesField));
    v1::FetchResponse fields;
    if (!fields.ParseFromString(reader.fields())) {
      return absl::DataLossError("fetch: malformed message");
    }
    for (const v1::PageStart& start : fields.starts()) PAGODA_RETURN_IF_ERROR(Begin(start));
    // Whoever computes along needs to know the pages before the first piece comes; a daemon tells
    // them in time.
    if (!reader.pieces().empty() || fields.ends_size() > 0) EndPages();
    for (const PieceView& piece : reader.pieces()) PAGODA_RETURN_IF_ERROR(Copy(piece));
    for (const v1::PageEnd& end : fields.ends()) PAGODA_RETURN_IF_ERROR(End(end));
    if (fields.has_end()) {
      end_ =
          absl::Status(static_cast<absl::StatusCode>(fields.end().code()), fields.end().message());
    }
    return fields.has_end();
  }
  // What the daemon said of the whole. REQUIRES: the last message was accepted.
  const absl::Status& end() const { return end_; }

  // Of the leading pages that began. REQUIRES: WaitPages() of the progress is over.
  std::vector<PageHeader> Headers() const {
    absl::MutexLock lock(&headers_mutex_);
    return headers_;
  }

  // The complete leading pages, verified; `status` says why there are not more.
  FetchResult Finish(absl::Status status) {
    FetchResult result;
    for (size_t i = 0; i < pages_.size(); ++i) {
      Page& page = pages_[i];
      if (absl::Status verified = Verify(page); !verified.ok()) {
        absl::Status why = !page.end.ok() ? page.end : status.ok() ? verified : status;
        if (result.status.ok()) result.status = std::move(why);
        if (!high_first_ || !HasHigh(page)) return result;
        ReduceToHigh(page.fetched.header, page.memory.own);
        ++result.reduced_pages;
      }
      result.bytes += page.fetched.header.stored_bytes();
      page.fetched.segments = std::move(page.memory.own);
      result.pages.push_back(std::move(page.fetched));
    }
    return result;
  }

 private:
  struct Page {
    bool started = false;
    FetchedPage fetched;
    FetchMemory memory;
    std::vector<uint64_t> filled;  // per segment: bytes so far, in order
    std::vector<bool> high;        // by segment; with high_first_ alone
    size_t high_missing = 0;       // of them, those that are not there, verified
    absl::Status end;
  };

  absl::StatusOr<Page*> At(uint32_t page_index) {
    if (page_index < page_begin_ || page_index - page_begin_ >= pages_.size()) {
      return absl::DataLossError(absl::StrFormat("fetch: page %d was not asked for", page_index));
    }
    return &pages_[page_index - page_begin_];
  }

  absl::Status Begin(const v1::PageStart& start) {
    PAGODA_ASSIGN_OR_RETURN(Page* const page, At(start.page_index()));
    if (page->started) return absl::DataLossError("fetch: page started twice");
    PAGODA_ASSIGN_OR_RETURN(PageHeader header, DecodePageHeader(AsBytes(start.header())));
    if (header.record != records_[page - pages_.data()] || header.identity != identity_) {
      return absl::DataLossError("fetch: page of another key or model");
    }
    if (header.stored_bytes() > kPageBytesMax) {
      return absl::DataLossError(absl::StrFormat("fetch: page of %d bytes", header.stored_bytes()));
    }
    PAGODA_ASSIGN_OR_RETURN(
        page->memory, MemoryFor(static_cast<uint32_t>(page - pages_.data()), header, target_));
    page->started = true;
    page->fetched.tier = static_cast<PageTier>(start.tier());
    page->filled.assign(header.segments.size(), 0);
    if (high_first_) {
      page->high = HighSegments(header);
      page->high_missing =
          static_cast<size_t>(std::count(page->high.begin(), page->high.end(), true));
    }
    page->fetched.header = std::move(header);
    return absl::OkStatus();
  }

  absl::Status Copy(const PieceView& piece) {
    PAGODA_ASSIGN_OR_RETURN(Page* const page, At(piece.address.page_index));
    const uint32_t segment = piece.address.segment_index;
    if (!page->started || segment >= page->filled.size()) {
      return absl::DataLossError("fetch: piece of an unknown segment");
    }
    if (piece.size == 0 || piece.address.offset != page->filled[segment] ||
        piece.size > page->fetched.header.segments[segment].length - piece.address.offset) {
      return absl::DataLossError("fetch: piece out of order or too long");
    }
    const MutableByteSpan target = page->memory.segments[segment];
    piece.CopyTo(target.subspan(piece.address.offset, piece.size));
    page->filled[segment] += piece.size;
    const SegmentEntry& entry = page->fetched.header.segments[segment];
    if (page->filled[segment] < entry.length) return absl::OkStatus();
    // Now, while the bytes are in the processor's cache.
    if (Crc32c(target.subspan(0, entry.length)) != entry.crc32c) {
      page->end = absl::DataLossError("fetch: checksum of a segment differs");
      return absl::OkStatus();  // its layer never completes
    }
    const bool promised = static_cast<size_t>(page - pages_.data()) < promised_;
    if (promised) progress_.AddSegment(entry);
    if (high_first_ && page->high[segment]) {
      --page->high_missing;
      if (promised) high_progress_.AddSegment(entry);
    }
    return absl::OkStatus();
  }

  absl::Status End(const v1::PageEnd& end) {
    PAGODA_ASSIGN_OR_RETURN(Page* const page, At(end.page_index()));
    if (page->end.ok()) {
      page->end = absl::Status(static_cast<absl::StatusCode>(end.code()), end.message());
    }
    return absl::OkStatus();
  }

  void EndPages() {
    if (pages_over_) return;
    pages_over_ = true;
    {
      absl::MutexLock lock(&headers_mutex_);
      for (const Page& page : pages_) {
        if (!page.started) break;
        ++promised_;
        headers_.push_back(page.fetched.header);
        progress_.AddPage(page.fetched.header);
        if (high_first_) high_progress_.AddPage(HighPartOf(page.fetched.header).header);
      }
    }
    progress_.EndPages();
    high_progress_.EndPages();
  }

  static bool HasHigh(const Page& page) { return page.started && page.high_missing == 0; }
  static absl::Status Verify(const Page& page) {
    if (!page.end.ok()) return page.end;
    if (!page.started) return absl::DataLossError("fetch: a page did not arrive");
    for (size_t i = 0; i < page.filled.size(); ++i) {
      const SegmentEntry& segment = page.fetched.header.segments[i];
      if (page.filled[i] != segment.length) {
        return absl::DataLossError("fetch: a page arrived in part");
      }
    }
    return absl::OkStatus();
  }

  const Identity identity_;
  const std::vector<RecordKey> records_;
  const uint32_t page_begin_;
  const PageTarget target_;
  const bool high_first_;
  LayerProgress& progress_;
  LayerProgress& high_progress_;
  std::vector<Page> pages_;
  absl::Status end_;
  bool pages_over_ = false;
  size_t promised_ = 0;  // pages that WaitHeaders() tells of

  mutable absl::Mutex headers_mutex_;
  std::vector<PageHeader> headers_ ABSL_GUARDED_BY(headers_mutex_);
};

class GrpcPageFetch : public PageFetch, public FetchSink {
 public:
  GrpcPageFetch(std::shared_ptr<FetchStreams> streams, const v1::FetchRequest& request,
                absl::Duration timeout, const Identity& identity,
                absl::Span<const RecordKey> expected, PageTarget target)
      : streams_(std::move(streams)),
        session_id_(request.session_id()),
        request_(request.SerializeAsString()),
        until_(SystemClock().Monotonic() + timeout),
        high_first_(request.order() == v1::PLANE_ORDER_HIGH_FIRST),
        assembler_(identity, {expected.begin(), expected.end()}, request.page_begin(),
                   std::move(target), high_first_, progress_, high_progress_) {
    Ask(/*fresh=*/false);
  }
  ~GrpcPageFetch() override {
    Cancel();
    (void)WaitDone();
  }

  absl::StatusOr<std::vector<PageHeader>> WaitHeaders(absl::Duration timeout) override {
    PAGODA_RETURN_IF_ERROR(progress_.WaitPages(Bounded(timeout)));
    return assembler_.Headers();
  }
  absl::Status WaitLayer(uint32_t layer, absl::Duration timeout) override {
    return progress_.WaitLayer(layer, Bounded(timeout));
  }
  absl::Status WaitHighLayer(uint32_t layer, absl::Duration timeout) override {
    return (high_first_ ? high_progress_ : progress_).WaitLayer(layer, Bounded(timeout));
  }
  FetchResult Wait() override {
    absl::Status status = WaitDone();
    return assembler_.Finish(std::move(status));
  }
  void Cancel() override {
    std::shared_ptr<FetchStream> stream;
    {
      absl::MutexLock lock(&mutex_);
      cancelled_ = true;
      stream = stream_;
    }
    if (stream != nullptr) stream->Cancel(*this);
  }

  absl::StatusOr<bool> OnMessage(const grpc::ByteBuffer& message) override {
    heard_ = true;
    return assembler_.Accept(message);
  }
  void OnEnd(const absl::Status& status) override {
    bool again;
    {
      absl::MutexLock lock(&mutex_);
      again = !status.ok() && attempts_ == 1 && !heard_ && !cancelled_;
    }
    // A stream that had broken while it was idle says nothing of the daemon: once more, on a new
    // one.
    if (again) return Ask(/*fresh=*/true);
    const absl::Status end = status.ok() ? assembler_.end() : status;
    progress_.End(end);
    high_progress_.End(end);
    absl::MutexLock lock(&mutex_);
    status_ = timed_out_ ? absl::DeadlineExceededError("fetch: no answer in time") : end;
    done_ = true;
  }

 private:
  // No wait is longer than the fetch may take.
  absl::Duration Bounded(absl::Duration timeout) const {
    return std::max(absl::ZeroDuration(), std::min(timeout, until_ - SystemClock().Monotonic()));
  }
  void Ask(bool fresh) {
    int attempt;
    {
      absl::MutexLock lock(&mutex_);
      attempt = ++attempts_;
    }
    // The answer may come before this returns, and another attempt begin.
    std::shared_ptr<FetchStream> stream = streams_->Start(session_id_, request_, *this, fresh);
    {
      absl::MutexLock lock(&mutex_);
      if (attempt == attempts_) stream_ = stream;
      if (!cancelled_) return;
    }
    stream->Cancel(*this);
  }

  absl::Status WaitDone() {
    {
      absl::MutexLock lock(&mutex_);
      const absl::Duration left = until_ - SystemClock().Monotonic();
      if (mutex_.AwaitWithTimeout(absl::Condition(&done_), left)) return status_;
      timed_out_ = true;
    }
    Cancel();
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));  // soon: the stream is cancelled
    return status_;
  }

  const std::shared_ptr<FetchStreams> streams_;
  const std::string session_id_;
  const std::string request_;
  const absl::Duration until_;  // on the monotonic clock
  const bool high_first_;
  LayerProgress progress_;
  LayerProgress high_progress_;  // of what q4 is read from; with high_first_ alone
  PageAssembler assembler_;      // of the thread that OnMessage() is called by
  bool heard_ = false;           // likewise

  absl::Mutex mutex_;
  std::shared_ptr<FetchStream> stream_ ABSL_GUARDED_BY(mutex_);
  int attempts_ ABSL_GUARDED_BY(mutex_) = 0;
  bool cancelled_ ABSL_GUARDED_BY(mutex_) = false;
  bool timed_out_ ABSL_GUARDED_BY(mutex_) = false;
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::unique_ptr<PageFetch> FetchOverGrpc(std::shared_ptr<FetchStreams> streams,
                                         const v1::FetchRequest& request, absl::Duration timeout,
                                         const Identity& identity,
                                         absl::Span<const RecordKey> expected, PageTarget target) {
  return std::make_unique<GrpcPageFetch>(std::move(streams), request, timeout, identity, expected,
                                         std::move(target));
}

}  // namespace pagoda::client
