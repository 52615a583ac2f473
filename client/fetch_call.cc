#include "client/fetch_call.h"

#include <cstring>
#include <deque>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/channel.h"
#include "proto/piece_codec.h"
#include "proto/wire.h"
#include "storage/base/crc32c.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

constexpr char kFetchMethod[] = "/pagoda.v1.Cache/Fetch";
// No daemon sends a page above this; a header that asks for more memory is damaged or hostile.
constexpr int64_t kPageBytesMax = int64_t{1} << 30;

// Puts messages together into pages. Not thread-safe: FetchStream hands it one message at a time.
class PageAssembler {
 public:
  PageAssembler(const Identity& identity, absl::Span<const PageKey> keys, uint32_t page_begin)
      : identity_(identity), keys_(keys), page_begin_(page_begin), pages_(keys.size()) {}

  absl::Status Accept(const grpc::ByteBuffer& message) {
    PAGODA_ASSIGN_OR_RETURN(const PieceMessageReader reader,
                            PieceMessageReader::Parse(message, kFetchPiecesField));
    v1::FetchResponse fields;
    if (!fields.ParseFromString(reader.fields())) {
      return absl::DataLossError("fetch: malformed message");
    }
    for (const v1::PageStart& start : fields.starts()) PAGODA_RETURN_IF_ERROR(Begin(start));
    for (const PieceView& piece : reader.pieces()) PAGODA_RETURN_IF_ERROR(Copy(piece));
    for (const v1::PageEnd& end : fields.ends()) PAGODA_RETURN_IF_ERROR(End(end));
    return absl::OkStatus();
  }

  // The complete leading pages, verified; `status` says why there are not more.
  FetchResult Finish(absl::Status status) {
    FetchResult result;
    for (size_t i = 0; i < pages_.size(); ++i) {
      Page& page = pages_[i];
      if (absl::Status verified = Verify(page); !verified.ok()) {
        result.status = !page.end.ok() ? page.end : status.ok() ? verified : status;
        return result;
      }
      result.bytes += page.fetched.header.stored_bytes();
      result.pages.push_back(std::move(page.fetched));
    }
    return result;
  }

 private:
  struct Page {
    bool started = false;
    FetchedPage fetched;
    std::vector<uint64_t> filled;  // per segment: bytes so far, in order
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
    if (header.record.key != keys_[page - pages_.data()] || header.identity != identity_) {
      return absl::DataLossError("fetch: page of another key or model");
    }
    if (header.stored_bytes() > kPageBytesMax) {
      return absl::DataLossError(absl::StrFormat("fetch: page of %d bytes", header.stored_bytes()));
    }
    page->started = true;
    page->fetched.tier = static_cast<PageTier>(start.tier());
    for (const SegmentEntry& segment : header.segments) {
      kernels::AlignedBuffer& buffer = page->fetched.segments.emplace_back(
          kernels::AlignedBuffer::Uninitialized(segment.stored_bytes()));
      std::memset(buffer.data() + segment.length, 0,
                  static_cast<size_t>(segment.stored_bytes() - segment.length));
    }
    page->filled.assign(header.segments.size(), 0);
    page->fetched.header = std::move(header);
    return absl::OkStatus();
  }

  absl::Status Copy(const PieceView& piece) {
    PAGODA_ASSIGN_OR_RETURN(Page* const page, At(piece.address.page_index));
    const uint32_t segment = piece.address.segment_index;
    if (!page->started || segment >= page->filled.size()) {
      return absl::DataLossError("fetch: piece of an unknown segment");
    }
    kernels::AlignedBuffer& target = page->fetched.segments[segment];
    if (piece.address.offset != page->filled[segment] ||
        piece.size > page->fetched.header.segments[segment].length - piece.address.offset) {
      return absl::DataLossError("fetch: piece out of order or too long");
    }
    piece.CopyTo(target.mutable_span().subspan(piece.address.offset, piece.size));
    page->filled[segment] += piece.size;
    const SegmentEntry& entry = page->fetched.header.segments[segment];
    if (page->filled[segment] < entry.length) return absl::OkStatus();
    // Now, while the bytes are in the processor's cache.
    if (Crc32c(target.span().subspan(0, entry.length)) != entry.crc32c) {
      page->end = absl::DataLossError("fetch: checksum of a segment differs");
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
  const absl::Span<const PageKey> keys_;
  const uint32_t page_begin_;
  std::vector<Page> pages_;
};

// The stream. Lives on the caller's stack: Wait() returns only after OnDone().
class FetchStream : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  FetchStream(grpc::GenericStub& stub, const v1::FetchRequest& request, const std::string& token,
              absl::Duration timeout, PageAssembler& assembler)
      : assembler_(assembler) {
    PrepareContext(context_, token, timeout);
    const std::string bytes = request.SerializeAsString();
    const grpc::Slice slice(bytes);
    request_ = grpc::ByteBuffer(&slice, 1);
    stub.PrepareBidiStreamingCall(&context_, kFetchMethod, {}, this);
    StartWriteLast(&request_, {});
    StartRead(&message_);
    StartCall();
  }

  absl::Status Wait() {
    absl::MutexLock lock(&mutex_);
    mutex_.Await(absl::Condition(&done_));  // Bounded: the call has a deadline.
    return error_.ok() ? FromGrpc(status_) : error_;
  }

  void OnReadDone(bool ok) override {
    if (!ok) return;
    bool mine;
    {
      absl::MutexLock lock(&mutex_);
      arrived_.push_back(std::move(message_));
      mine = !assembling_;
      assembling_ = true;
    }
    // The next message travels while this one is copied. Its OnReadDone() may come on another
    // thread before we are done; it then leaves its message to us.
    message_ = grpc::ByteBuffer();
    StartRead(&message_);
    if (mine) AssembleArrived();
  }

  void OnDone(const grpc::Status& status) override {
    absl::MutexLock lock(&mutex_);
    status_ = status;
    done_ = true;
  }

 private:
  void AssembleArrived() {
    while (true) {
      grpc::ByteBuffer message;
      {
        absl::MutexLock lock(&mutex_);
        if (arrived_.empty() || !error_.ok()) {
          assembling_ = false;
          return;
        }
        message = std::move(arrived_.front());
        arrived_.pop_front();
      }
      absl::Status status = assembler_.Accept(message);
      if (status.ok()) continue;
      {
        absl::MutexLock lock(&mutex_);
        error_ = std::move(status);
      }
      context_.TryCancel();
    }
  }

  PageAssembler& assembler_;  // of the thread that set assembling_
  grpc::ClientContext context_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer message_;

  absl::Mutex mutex_;
  std::deque<grpc::ByteBuffer> arrived_ ABSL_GUARDED_BY(mutex_);
  bool assembling_ ABSL_GUARDED_BY(mutex_) = false;
  absl::Status error_ ABSL_GUARDED_BY(mutex_);
  grpc::Status status_ ABSL_GUARDED_BY(mutex_);
  bool done_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace

FetchResult RunFetch(grpc::GenericStub& stub, const v1::FetchRequest& request,
                     const std::string& token, absl::Duration timeout, const Identity& identity,
                     absl::Span<const PageKey> expected_keys) {
  PageAssembler assembler(identity, expected_keys, request.page_begin());
  absl::Status status;
  {
    FetchStream stream(stub, request, token, timeout, assembler);
    status = stream.Wait();
  }
  return assembler.Finish(std::move(status));
}

}  // namespace pagoda::client
