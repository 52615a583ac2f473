#include <algorithm>

#include "absl/strings/str_format.h"
#include "client/client_impl.h"
#include "client/combined_fetch.h"
#include "client/fetch_call.h"
#include "client/messages.h"
#include "client/shm_fetch.h"
#include "proto/wire.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

constexpr uint32_t kLocatedAhead = 1024;  // pages of a lease that are asked for at once
constexpr size_t kLocatedMax = 256;       // leases

}  // namespace

std::vector<RecordKey> ClientImpl::RecordsOf(const LookupResult& hit,
                                             absl::Span<const PageKey> keys, uint32_t begin,
                                             uint32_t count) const {
  const size_t part_count = std::max<size_t>(1, hit.parts.size());
  std::vector<RecordKey> records;
  records.reserve(count);
  for (size_t i = begin; i < size_t{begin} + count; ++i) {
    const PagePart part = hit.parts.empty() ? PagePart() : hit.parts[i % part_count];
    uint16_t heads = part.head_count;
    if (heads == 0 && options_.model.has_value() && part.group < options_.model->groups.size()) {
      heads =
          static_cast<uint16_t>(options_.model->groups[part.group].kv_head_count - part.head_begin);
    }
    records.push_back({keys[i / part_count], part.group, part.head_begin, heads});
  }
  return records;
}

absl::StatusOr<ClientImpl::Pages> ClientImpl::WantedPages(const LookupResult& hit,
                                                          absl::Span<const PageKey> keys,
                                                          const FetchOptions& options) const {
  const uint32_t found = static_cast<uint32_t>(hit.pages.size());
  const uint32_t count =
      options.page_count != 0 ? options.page_count : found - std::min(found, options.page_begin);
  if (count == 0 || options.page_begin > found || count > found - options.page_begin ||
      keys.size() * std::max<size_t>(1, hit.parts.size()) < found) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "fetch: pages %d to %d of %d found, %d keys of %d parts", options.page_begin,
        options.page_begin + count, found, keys.size(), std::max<size_t>(1, hit.parts.size())));
  }
  Pages pages;
  PAGODA_ASSIGN_OR_RETURN(pages.connection, Current());
  const absl::Duration left = hit.lease_until - SystemClock().Monotonic();
  if (left <= absl::ZeroDuration()) return absl::AbortedError("fetch: the lease is over");
  pages.begin = options.page_begin;
  pages.count = count;
  pages.records = RecordsOf(hit, keys, options.page_begin, count);
  pages.end = SystemClock().Monotonic() + std::min(left, options_.transfer_timeout);
  return pages;
}

ShmChannel::Wanted ClientImpl::WantedOf(const LookupResult& hit, const Pages& pages) {
  return {hit.lease,     hit.lease_until,           pages.begin,
          pages.records, pages.connection.identity, pages.end - SystemClock().Monotonic()};
}

absl::StatusOr<std::unique_ptr<ShmView>> ClientImpl::LocatePages(const LookupResult& hit,
                                                                 absl::Span<const PageKey> keys,
                                                                 const Pages& pages,
                                                                 absl::Duration timeout) {
  {
    absl::MutexLock lock(&mutex_);
    const auto known = located_.find(hit.lease);
    if (known != located_.end() && known->second.begin <= pages.begin &&
        pages.begin - known->second.begin + pages.count <= known->second.pages->size()) {
      return std::make_unique<ShmView>(known->second.pages, pages.begin - known->second.begin,
                                       pages.count);
    }
  }
  // Others of the lease that are there as well: who fetches some of them fetches more.
  uint32_t count = pages.count;
  const auto found = static_cast<uint32_t>(hit.pages.size());
  while (count < kLocatedAhead && pages.begin + count < found &&
         !hit.pages[pages.begin + count].loading) {
    ++count;
  }
  const std::vector<RecordKey> records = RecordsOf(hit, keys, pages.begin, count);
  PAGODA_ASSIGN_OR_RETURN(std::shared_ptr<const ShmPages> located,
                          pages.connection.shm->Locate({.lease = hit.lease,
                                                        .lease_until = hit.lease_until,
                                                        .page_begin = pages.begin,
                                                        .records = records,
                                                        .identity = pages.connection.identity,
                                                        .timeout = timeout}));
  absl::MutexLock lock(&mutex_);
  if (located->size() == count && session_id_ == pages.connection.session_id) {
    if (located_.size() < kLocatedMax) located_[hit.lease] = {pages.begin, located};
  }
  return std::make_unique<ShmView>(std::move(located), 0, pages.count);
}

std::unique_ptr<PageFetch> ClientImpl::StartGrpcFetch(const LeaseId& lease, const Pages& pages,
                                                      const FetchOptions& options, uint32_t done) {
  v1::FetchRequest request;
  request.set_session_id(pages.connection.session_id);
  request.set_lease_id(Bytes(lease));
  request.set_page_begin(pages.begin + done);
  request.set_page_count(pages.count - done);
  request.set_precision_max(ToWire(options.precision_max));
  if (options.order == PlaneOrder::kHighFirst) request.set_order(v1::PLANE_ORDER_HIGH_FIRST);
  PageTarget target = options.target;
  if (target != nullptr && done > 0) {
    target = [target = options.target, done](uint32_t page_index, const PageHeader& header) {
      return target(page_index + done, header);
    };
  }
  const absl::Duration left =
      std::max(pages.end - SystemClock().Monotonic(), absl::Milliseconds(1));
  request.set_deadline_seconds(absl::ToDoubleSeconds(left));
  return FetchOverGrpc(fetch_streams_, request, left, pages.connection.identity,
                       absl::MakeConstSpan(pages.records).subspan(done), std::move(target));
}

std::unique_ptr<PageFetch> ClientImpl::StartShmFetch(const LookupResult& hit,
                                                     absl::Span<const PageKey> keys,
                                                     const Pages& pages,
                                                     const FetchOptions& options) {
  absl::StatusOr<std::unique_ptr<ShmView>> located =
      LocatePages(hit, keys, pages, (pages.end - SystemClock().Monotonic()) / 2);
  if (!located.ok() || (*located)->size() == 0) return nullptr;
  return FetchFromShm(*std::move(located), options);
}

std::unique_ptr<PageFetch> ClientImpl::StartShmLoad(const LookupResult& hit, const Pages& pages,
                                                    const FetchOptions& options) {
  if (pages.connection.shm_loads == nullptr) return nullptr;
  ShmChannel::Wanted wanted = WantedOf(hit, pages);
  wanted.timeout /= 2;
  absl::StatusOr<std::unique_ptr<ShmLoad>> load = pages.connection.shm_loads->Load(wanted);
  if (!load.ok() || (*load)->pages()->size() == 0) return nullptr;
  auto view = std::make_unique<ShmView>((*load)->pages(), 0, pages.count);
  return FetchFromShm(std::move(view), options, *std::move(load));
}

absl::StatusOr<std::unique_ptr<PageFetch>> ClientImpl::StartFetch(const LookupResult& hit,
                                                                  absl::Span<const PageKey> keys,
                                                                  const FetchOptions& options) {
  const absl::Duration start = SystemClock().Monotonic();
  PAGODA_ASSIGN_OR_RETURN(const Pages pages, WantedPages(hit, keys, options));
  std::unique_ptr<PageFetch> source;
  const ShmServes serves = ServesOf(hit, pages.begin, pages.count, options.precision_max);
  if (pages.connection.shm != nullptr && serves.as_stored) {
    source =
        serves.ready ? StartShmFetch(hit, keys, pages, options) : StartShmLoad(hit, pages, options);
    if (source == nullptr) CountShmFallback();
  }
  const bool over_grpc = source == nullptr;
  if (over_grpc) source = StartGrpcFetch(hit.lease, pages, options, 0);
  CombinedFetch::Rest rest;
  if (!over_grpc) {
    rest = [this, lease = hit.lease, pages, options](uint32_t done) {
      CountShmFallback();
      return StartGrpcFetch(lease, pages, options, done);
    };
  }
  return std::make_unique<CombinedFetch>(
      std::move(source), pages.count, std::move(rest),
      [this, over_grpc, start](const FetchResult& result, uint32_t by_source) {
        CountFetch(result, over_grpc ? 0 : by_source, SystemClock().Monotonic() - start);
      });
}

absl::StatusOr<FetchResult> ClientImpl::Fetch(const LookupResult& hit,
                                              absl::Span<const PageKey> keys,
                                              const FetchOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<PageFetch> fetch, StartFetch(hit, keys, options));
  return fetch->Wait();
}

void ClientImpl::FetchThen(const LookupResult& hit, absl::Span<const PageKey> keys,
                           const FetchOptions& options, FetchCallback callback) {
  auto shared = std::make_shared<FetchCallback>(std::move(callback));
  const bool taken = executor_.Run(
      [this, hit, options, shared, kept = std::vector<PageKey>(keys.begin(), keys.end())] {
        (*shared)(Fetch(hit, kept, options));
      });
  if (!taken) (*shared)(absl::ResourceExhaustedError("fetch: too many of them wait"));
}

absl::StatusOr<std::unique_ptr<MappedPages>> ClientImpl::Map(const LookupResult& hit,
                                                             absl::Span<const PageKey> keys,
                                                             const FetchOptions& options) {
  if (options.precision_max != Precision::kNone) {
    return absl::InvalidArgumentError("map: pages are as they are stored; precision_max is none");
  }
  PAGODA_ASSIGN_OR_RETURN(const Pages pages, WantedPages(hit, keys, options));
  if (pages.connection.shm == nullptr) {
    return absl::UnavailableError("map: no shared memory with the daemon; fetch instead");
  }
  if (!ServesOf(hit, pages.begin, pages.count, Precision::kNone).ready) {
    return absl::UnavailableError("map: pages are still on their way to memory; fetch instead");
  }
  PAGODA_ASSIGN_OR_RETURN(std::unique_ptr<ShmView> mapped,
                          LocatePages(hit, keys, pages, pages.end - SystemClock().Monotonic()));
  Count(&ClientStats::mapped_pages, static_cast<int64_t>(mapped->size()));
  return mapped;
}

absl::StatusOr<std::unique_ptr<DevicePages>> ClientImpl::MapDevice(const LookupResult& hit,
                                                                   absl::Span<const PageKey> keys,
                                                                   const FetchOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(const Pages pages, WantedPages(hit, keys, options));
  absl::StatusOr<std::unique_ptr<DevicePages>> mapped =
      device_.Map(pages.connection.shm_path, pages.connection.session_id, WantedOf(hit, pages));
  const auto count = static_cast<int64_t>(mapped.ok() ? (*mapped)->there_count() : 0);
  Count(&ClientStats::device_pages, count);
  Count(&ClientStats::device_fallbacks, pages.count - count);
  return mapped;
}

absl::StatusOr<std::vector<absl::StatusOr<PageOnDevice>>> ClientImpl::FetchDevice(
    const LookupResult& hit, absl::Span<const PageKey> keys, const FetchOptions& options,
    const DeviceTargets& targets) {
  const absl::Duration start = SystemClock().Monotonic();
  PAGODA_ASSIGN_OR_RETURN(const Pages pages, WantedPages(hit, keys, options));
  absl::StatusOr<PeerChannel::Pages> fetched =
      peer_.Fetch(pages.connection.session_id, WantedOf(hit, pages), targets);
  int64_t count = 0;
  int64_t bytes = 0;
  if (fetched.ok()) {
    for (const absl::StatusOr<PageOnDevice>& page : *fetched) {
      if (!page.ok()) continue;
      ++count;
      bytes += page->header.stored_bytes();
    }
  }
  if (count > 0) nccl_path_.AddFetch(count, bytes, SystemClock().Monotonic() - start);
  if (count < pages.count) nccl_path_.AddFallback();
  Count(&ClientStats::peer_pages, count);
  Count(&ClientStats::peer_fallbacks, pages.count - count);
  return fetched;
}

void ClientImpl::CountShmFallback() {
  Count(&ClientStats::shm_fallbacks);
  shm_path_.AddFallback();
}

void ClientImpl::CountFetch(const FetchResult& result, uint32_t by_shm, absl::Duration took) {
  const auto count = static_cast<int64_t>(result.pages.size());
  int64_t shm_bytes = 0;
  for (size_t i = 0; i < by_shm; ++i) shm_bytes += result.pages[i].header.stored_bytes();
  if (by_shm > 0) shm_path_.AddFetch(by_shm, shm_bytes, took);
  if (by_shm < count) grpc_path_.AddFetch(count - by_shm, result.bytes - shm_bytes, took);
  absl::MutexLock lock(&mutex_);
  stats_.shm_pages += by_shm;
  stats_.fetched_pages += count;
  stats_.fetched_bytes += result.bytes;
  if (!result.status.ok()) ++stats_.fetch_failures;
}

}  // namespace pagoda::client
