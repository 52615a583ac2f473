#include "cache-server/shm_locate.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cache-server/lease_token.h"
#include "pagoda/v1/cache.pb.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr size_t kSentenceMax = 4096;
constexpr size_t kAnswerBytesMax = size_t{2} << 20;  // half of what a connection may have queued

// One kLocate: gathers the pages, some of which may have to load, and answers once.
class Locating : public std::enable_shared_from_this<Locating> {
 public:
  Locating(ServiceContext& context, std::shared_ptr<ShmConnection> connection, uint32_t tag)
      : context_(context),
        connection_(std::move(connection)),
        tag_(tag),
        start_(context.clock.Monotonic()) {
    connection_->locating().fetch_add(1, std::memory_order_relaxed);
  }
  ~Locating() { connection_->locating().fetch_sub(1, std::memory_order_relaxed); }
  Locating(const Locating&) = delete;
  Locating& operator=(const Locating&) = delete;

  void Run(const shm::Request& request) {
    const absl::Status status = Gather(request);
    if (!status.ok()) Answer({}, status);
  }

 private:
  absl::Status Gather(const shm::Request& request) {
    PAGODA_ASSIGN_OR_RETURN(const LocateTarget target,
                            ParseLocate(context_, *connection_, request));
    const absl::string_view session = connection_->session()->view();
    {
      absl::MutexLock lock(&mutex_);
      pages_.assign(request.page_count, HostPagePtr());
      pending_ = request.page_count + 1;  // one more for this loop
    }
    for (size_t i = 0; i < request.page_count; ++i) {
      const RecordKey& key = target.keys[i];
      absl::StatusOr<HostPagePtr> page = context_.store.GetLeased(session, target.lease, key);
      if (!page.ok() || *page != nullptr) {
        Have(i, std::move(page));
        continue;
      }
      context_.store.LoadLeased(
          session, target.lease, key,
          [self = shared_from_this(), id = target.lease, key,
           i](absl::StatusOr<HostPagePtr> loaded) { self->Loaded(i, id, key, std::move(loaded)); });
    }
    Have(request.page_count, HostPagePtr());
    return absl::OkStatus();
  }

  // The lease holds what GetLeased gives, and nothing else.
  void Loaded(size_t index, LeaseId lease, const RecordKey& key,
              absl::StatusOr<HostPagePtr> loaded) {
    if (!loaded.ok()) return Have(index, std::move(loaded));
    context_.encoder.Consider({key, (*loaded)->header().scope});
    absl::StatusOr<HostPagePtr> held =
        context_.store.GetLeased(connection_->session()->view(), lease, key);
    if (held.ok() && *held == nullptr) held = absl::UnavailableError("the page went again");
    Have(index, std::move(held));
  }

  // page_count itself is the asking loop.
  void Have(size_t index, absl::StatusOr<HostPagePtr> page) ABSL_LOCKS_EXCLUDED(mutex_) {
    std::vector<absl::StatusOr<HostPagePtr>> pages;
    {
      absl::MutexLock lock(&mutex_);
      if (index < pages_.size()) pages_[index] = std::move(page);
      if (--pending_ > 0) return;
      pages = std::move(pages_);
    }
    std::vector<HostPagePtr> good;
    for (absl::StatusOr<HostPagePtr>& each : pages) {
      if (!each.ok()) return Answer(good, each.status());
      good.push_back(*std::move(each));
    }
    Answer(good, absl::OkStatus());
  }

  // The pages as far as they are there, and why not further. They stay where they are: the lease
  // holds them.
  void Answer(const std::vector<HostPagePtr>& pages, const absl::Status& status) {
    SendPlaces(context_, *connection_, shm::Op::kLocate, tag_, pages, &status);
    context_.metrics.OnTransferTook(TransferDirection::kOut, context_.clock.Monotonic() - start_,
                                    TransferPath::kShm);
  }

  ServiceContext& context_;
  const std::shared_ptr<ShmConnection> connection_;
  const uint32_t tag_;
  const absl::Duration start_;

  absl::Mutex mutex_;
  std::vector<absl::StatusOr<HostPagePtr>> pages_ ABSL_GUARDED_BY(mutex_);
  size_t pending_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace

absl::StatusOr<LocateTarget> ParseLocate(ServiceContext& context, const ShmConnection& connection,
                                         const shm::Request& request) {
  const absl::string_view lease_bytes(reinterpret_cast<const char*>(request.lease_id.data()),
                                      request.lease_id.size());
  const std::optional<LeaseToken> token = LeaseToken::Decode(lease_bytes);
  if (!token.has_value() || token->instance != context.instance_tag) {
    return absl::NotFoundError("the lease is unknown; look up again");
  }
  if (request.page_count > shm::kPagesMax) {
    return absl::InvalidArgumentError(
        absl::StrFormat("pages: %d asked at once, at most %d", request.page_count, shm::kPagesMax));
  }
  PAGODA_ASSIGN_OR_RETURN(std::vector<RecordKey> keys,
                          context.store.LeasedKeys(connection.session()->view(), token->lease,
                                                   request.page_begin, request.page_count));
  return LocateTarget{token->lease, std::move(keys)};
}

size_t SendPlaces(ServiceContext& context, ShmConnection& connection, shm::Op op, uint32_t tag,
                  const std::vector<HostPagePtr>& pages, const absl::Status* end) {
  std::string body;
  uint32_t count = 0;
  int64_t page_bytes = 0;
  std::vector<SlabLocation> locations;
  const auto flush = [&](const absl::Status* last) {
    if (count == 0 && last == nullptr) return;
    shm::Reply reply;
    reply.op = op;
    reply.tag = tag;
    reply.pages = count;
    if (last != nullptr) {
      reply.last = 1;
      reply.code = static_cast<int32_t>(last->code());
    }
    std::string packet;
    shm::AppendStruct(packet, reply);
    packet += body;
    if (last != nullptr) absl::StrAppend(&packet, last->message().substr(0, kSentenceMax));
    connection.Send(std::move(packet));
    body.clear();
    count = 0;
  };
  size_t sent = 0;
  size_t answer_bytes = 0;
  for (const HostPagePtr& page : pages) {
    locations.clear();
    page->AppendLocations(locations);
    const size_t bytes = sizeof(shm::Page) + locations.size() * sizeof(shm::Slab);
    answer_bytes += bytes;
    if (answer_bytes > kAnswerBytesMax) break;
    ++sent;
    connection.Allow(locations);
    page_bytes += page->bytes();
    if (sizeof(shm::Reply) + body.size() + bytes > shm::kPacketBytesMax) flush(nullptr);
    shm::AppendStruct(body, shm::Page{static_cast<uint32_t>(locations.size()),
                                      static_cast<uint32_t>(v1::TIER_HOST)});
    for (const SlabLocation& at : locations) {
      shm::AppendStruct(body,
                        shm::Slab{at.memfd_id, static_cast<uint64_t>(at.offset), at.generation});
    }
    ++count;
  }
  if (sizeof(shm::Reply) + body.size() + kSentenceMax > shm::kPacketBytesMax) flush(nullptr);
  const absl::Status cut = absl::ResourceExhaustedError("more pages than fit an answer");
  flush(end != nullptr && sent < pages.size() ? &cut : end);
  context.metrics.OnShmLocated(page_bytes);
  return sent;
}

void LocatePages(ServiceContext& context, std::shared_ptr<ShmConnection> connection,
                 const shm::Request& request) {
  std::make_shared<Locating>(context, std::move(connection), request.tag)->Run(request);
}

}  // namespace pagoda
