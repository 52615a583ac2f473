#include "cache-server/shm_device.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cache-server/shm_locate.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr absl::Duration kLookPeriod = absl::Milliseconds(10);
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);
constexpr size_t kWorkersMax = 1024;
constexpr int64_t kClosedPerTenantMax = 256;
constexpr size_t kAnswerPagesMax = 256;
constexpr size_t kAnswerBytesMax = size_t{2} << 20;  // half of what a connection may have queued
constexpr size_t kNewMemoryMax = 4;                  // of an answer, unless one page has more
constexpr size_t kSentenceMax = 1024;
constexpr size_t kPageBytesMax = shm::kPacketBytesMax - 1024;  // of what is said of one page

// What is behind a page that does not come to device memory.
DeviceFallback ReasonOf(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kAborted:
      return DeviceFallback::kRoom;
    case absl::StatusCode::kUnavailable:
      return DeviceFallback::kLost;
    default:
      return DeviceFallback::kExport;
  }
}

SendPacket SenderOf(ShmConnection& connection) {
  return [&connection](absl::string_view bytes, int fd) -> absl::Status {
    UniqueFd own;
    if (fd >= 0) {
      own = UniqueFd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
      if (!own.valid()) {
        return absl::ResourceExhaustedError(
            absl::StrCat("device memory: F_DUPFD_CLOEXEC: ", std::strerror(errno)));
      }
    }
    connection.Send(std::string(bytes), std::move(own));
    return connection.cut() ? absl::UnavailableError("device memory: the worker does not read")
                            : absl::OkStatus();
  };
}

// Packets of pages, as many as it takes.
class PlaceAnswer {
 public:
  PlaceAnswer(ShmConnection& connection, uint32_t tag) : connection_(connection) {
    reply_.op = shm::Op::kPlace;
    reply_.tag = tag;
  }
  void Add(ByteSpan header, const SharedDevicePage& shared) {
    std::string page;
    shm::AppendStruct(
        page, shm::DevicePage{0, static_cast<uint32_t>(header.size()),
                              static_cast<uint32_t>(shared.segments.size()), 0, shared.arrival});
    absl::StrAppend(&page, AsText(header));
    for (const DeviceGrant& grant : shared.segments) {
      shm::AppendStruct(page, shm::DeviceSlab{grant.memory_id, static_cast<uint64_t>(grant.offset),
                                              static_cast<uint64_t>(grant.bytes)});
    }
    Append(page);
  }
  void AddRefusal(const absl::Status& status) {
    const absl::string_view why = status.message().substr(0, kSentenceMax);
    std::string page;
    shm::AppendStruct(page, shm::DevicePage{static_cast<int32_t>(status.code()),
                                            static_cast<uint32_t>(why.size()), 0, 0, 0});
    absl::StrAppend(&page, why);
    Append(page);
  }
  void End(uint64_t ticket) {
    reply_.last = 1;
    shm::AppendStruct(body_, ticket);
    Flush();
  }
  size_t bytes() const { return bytes_; }

 private:
  // With room for the ticket.
  void Append(const std::string& page) {
    if (sizeof(reply_) + body_.size() + page.size() + sizeof(uint64_t) > shm::kPacketBytesMax) {
      Flush();
    }
    body_ += page;
    bytes_ += page.size();
    ++reply_.pages;
  }
  void Flush() {
    std::string packet;
    shm::AppendStruct(packet, reply_);
    connection_.Send(packet + body_);
    body_.clear();
    reply_.pages = 0;
  }

  ShmConnection& connection_;
  shm::Reply reply_;
  std::string body_;
  size_t bytes_ = 0;  // of all packets
};

}  // namespace

void ShmDevices::Take(const std::shared_ptr<ShmConnection>& connection, const CallerPtr& caller,
                      const shm::Request& request) {
  connection->locating().fetch_add(1, std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  jobs_.push_back({connection, caller, request});
  if (started_) return;
  started_ = true;
  thread_ = std::thread([this] { Run(); });
}

void ShmDevices::Forget(const std::shared_ptr<ShmConnection>& connection) {
  absl::MutexLock lock(&mutex_);
  if (started_ && !stopping_) jobs_.push_back({connection, nullptr, {}});
}

void ShmDevices::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (!started_) return;
  }
  if (thread_.joinable()) thread_.join();
}

void ShmDevices::Run() {
  absl::Duration next_look = absl::ZeroDuration();
  const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !jobs_.empty();
  };
  while (true) {
    std::vector<Job> jobs;
    {
      absl::MutexLock lock(&mutex_);
      const bool idle = workers_.empty() && closed_.empty();
      mutex_.AwaitWithTimeout(absl::Condition(&wanted),
                              idle ? absl::InfiniteDuration() : kLookPeriod);
      if (stopping_) break;
      jobs.swap(jobs_);
    }
    for (const Job& job : jobs) {
      if (job.caller == nullptr) {
        Close(job.connection.get());
        continue;
      }
      if (job.request.op == shm::Op::kDevice) {
        Open(job);
      } else {
        Place(job);
      }
      job.connection->locating().fetch_sub(1, std::memory_order_relaxed);
    }
    const absl::Duration now = SystemClock().Monotonic();
    if (now < next_look) continue;
    Look();
    next_look = now + kLookPeriod;
  }
  // One deadline for all of them, on a device that stalls.
  const absl::Duration end = SystemClock().Monotonic() + kDrainTimeout;
  const auto drain = [end](Worker& worker) {
    worker.exported->Drain(std::max(end - SystemClock().Monotonic(), absl::ZeroDuration()));
  };
  for (auto& [connection, worker] : workers_) drain(worker);
  for (Worker& worker : closed_) drain(worker);
  workers_.clear();
  closed_.clear();
}

void ShmDevices::Close(const ShmConnection* connection) {
  const auto found = workers_.find(connection);
  if (found == workers_.end()) return;
  Worker worker = std::move(found->second);
  workers_.erase(found);
  worker.held.clear();
  // Without memory there is nothing to wait for. Where only the socket tells of its end (no pidfd),
  // it has told.
  if (worker.exported->memory_count() == 0 || !worker.exported->Poll()) return;
  worker.connection.reset();
  closed_.push_back(std::move(worker));
}

void ShmDevices::Open(const Job& job) {
  DeviceFallback reason = DeviceFallback::kExport;
  const absl::Status opened = TryOpen(job, reason);
  if (!opened.ok()) context_.metrics.OnDeviceFallback(reason);
  job.connection->SendStatus(shm::Op::kDevice, job.request.tag, opened);
}

absl::Status ShmDevices::TryOpen(const Job& job, DeviceFallback& reason) {
  if (context_.hbm == nullptr) {
    reason = DeviceFallback::kAbsent;
    return absl::UnimplementedError("this daemon has no device memory; see hbm.device");
  }
  const DeviceUuid uuid{job.request.lease_id};
  if (const DeviceUuid& own = context_.hbm->info().uuid; uuid != own) {
    reason = DeviceFallback::kOtherDevice;
    return absl::FailedPreconditionError(absl::StrCat(
        "the worker has ", uuid.ToString(), ", the daemon's pages are in ", own.ToString()));
  }
  if (const absl::Status health = context_.hbm->health(); !health.ok()) {
    reason = DeviceFallback::kLost;
    return health;
  }
  if (workers_.contains(job.connection.get())) {
    return absl::FailedPreconditionError("this connection has device memory already");
  }
  const auto left_behind =
      std::count_if(closed_.begin(), closed_.end(),
                    [&job](const Worker& worker) { return worker.tenant == job.caller->tenant(); });
  if (workers_.size() + closed_.size() >= kWorkersMax || left_behind >= kClosedPerTenantMax) {
    reason = DeviceFallback::kLimit;
    return absl::ResourceExhaustedError(
        absl::StrFormat("device memory: %d workers have it, %d have left it and not ended, %d of "
                        "this tenant; end such processes",
                        workers_.size(), closed_.size(), left_behind));
  }
  PAGODA_ASSIGN_OR_RETURN(auto exported, HbmExport::Open(context_.hbm->tier(), job.connection->fd(),
                                                         SenderOf(*job.connection)));
  workers_[job.connection.get()] = {job.connection, job.caller->tenant(), std::move(exported), {}};
  return absl::OkStatus();
}

// The page of the lease, and its copy, which the lease holds from then on.
absl::StatusOr<ShmDevices::Copied> ShmDevices::CopyPage(const Job& job, LeaseId lease,
                                                        const RecordKey& key, Held& held,
                                                        DeviceFallback& reason) {
  reason = DeviceFallback::kLoading;
  PAGODA_ASSIGN_OR_RETURN(HostPagePtr page,
                          context_.store.GetLeased(job.connection->session()->view(), lease, key));
  if (page == nullptr) return absl::UnavailableError("the page is not in host memory yet");
  reason = DeviceFallback::kScope;
  PAGODA_ASSIGN_OR_RETURN(const CallerScope* scope, job.caller->ScopeById(page->header().scope));
  if (!scope->may_push) {
    return absl::PermissionDeniedError(
        "who maps device memory can write it, and the caller may not push into this scope");
  }
  if (scope->scope.kind != ScopeKind::kPrivate && !context_.options.hbm.shared_scopes) {
    return absl::PermissionDeniedError(
        "who maps device memory can write it, and others read this scope; see hbm.shared_scopes");
  }
  reason = DeviceFallback::kLimit;
  if (page->header_bytes().size() + page->segment_count() * sizeof(shm::DeviceSlab) >
      kPageBytesMax) {
    return absl::ResourceExhaustedError("what says where the page lies is longer than a packet");
  }
  if (absl::Status health = context_.hbm->health(); !health.ok()) {
    reason = DeviceFallback::kLost;
    return health;
  }
  DevicePagePtr& copy = held.pages[key];
  // The lease may name a form that the tier keeps no more: its own copy does.
  if (copy != nullptr && copy->header() == page->header() &&
      copy->arrived().value_or(absl::OkStatus()).ok()) {
    return Copied{std::move(page), copy};
  }
  absl::StatusOr<DevicePagePtr> promoted = context_.hbm->Promote(page);
  if (!promoted.ok()) {
    held.pages.erase(key);
    reason = ReasonOf(promoted.status());
    return promoted.status();
  }
  copy = *std::move(promoted);
  return Copied{std::move(page), copy};
}

absl::StatusOr<SharedDevicePage> ShmDevices::SharePage(const DevicePage& copy, Worker& worker,
                                                       DeviceFallback& reason) {
  if (worker.exported->NewMemoryCount(copy) > ShmConnection::kQueuedFdsMax) {
    reason = DeviceFallback::kLimit;
    return absl::ResourceExhaustedError("the page lies in too many pieces of memory");
  }
  absl::StatusOr<SharedDevicePage> shared = worker.exported->Share(copy);
  if (!shared.ok()) {
    reason = context_.hbm->health().ok() ? DeviceFallback::kExport : DeviceFallback::kLost;
  }
  return shared;
}

void ShmDevices::Place(const Job& job) {
  const shm::Request& request = job.request;
  const auto found = workers_.find(job.connection.get());
  absl::StatusOr<LocateTarget> target =
      found == workers_.end() ? absl::FailedPreconditionError("no device memory: kDevice first")
                              : ParseLocate(context_, *job.connection, request);
  if (!target.ok()) {
    return job.connection->SendStatus(shm::Op::kPlace, request.tag, target.status());
  }
  Worker& worker = found->second;
  Held& held = worker.held[target->lease];
  if (held.pages.empty()) {
    held.grant = context_.store.LeaseGrant(job.connection->session()->view(), target->lease);
  }
  const size_t memory_max = worker.exported->memory_count() + kNewMemoryMax;
  PlaceAnswer answer(*job.connection, request.tag);
  int64_t page_bytes = 0;
  for (size_t i = 0; i < target->keys.size() && i < kAnswerPagesMax; ++i) {
    if (answer.bytes() > kAnswerBytesMax) break;
    DeviceFallback reason = DeviceFallback::kExport;
    const RecordKey& key = target->keys[i];
    const absl::StatusOr<Copied> copied = CopyPage(job, target->lease, key, held, reason);
    if (!copied.ok()) {
      context_.metrics.OnDeviceFallback(reason);
      answer.AddRefusal(copied.status());
      continue;
    }
    // The client asks again for the rest.
    const size_t memory_count =
        worker.exported->memory_count() + worker.exported->NewMemoryCount(*copied->copy);
    if (i > 0 && memory_count > memory_max) break;
    const absl::StatusOr<SharedDevicePage> shared = SharePage(*copied->copy, worker, reason);
    if (!shared.ok()) {
      held.pages.erase(key);
      context_.metrics.OnDeviceFallback(reason);
      answer.AddRefusal(shared.status());
      continue;
    }
    answer.Add(copied->page->header_bytes(), *shared);
    page_bytes += copied->page->bytes();
  }
  answer.End(worker.exported->last_ticket());
  context_.metrics.OnDeviceLocated(page_bytes);
}

// What is held is held for a lease, as long as that names it.
void ShmDevices::DropUnnamed(Worker& worker) {
  const absl::string_view session = worker.connection->session()->view();
  for (auto& [id, held] : worker.held) {
    const LeaseId lease = id;
    const uint64_t grant = context_.store.LeaseGrant(session, lease);
    if (std::exchange(held.grant, grant) == grant) continue;
    std::erase_if(held.pages, [&](const auto& page) {
      return !context_.store.GetLeased(session, lease, page.first).ok();
    });
  }
  std::erase_if(worker.held, [](const auto& entry) { return entry.second.grant == 0; });
}

void ShmDevices::Look() {
  if (context_.hbm != nullptr) (void)context_.hbm->health();
  for (auto& [connection, worker] : workers_) {
    (void)worker.exported->Poll();
    DropUnnamed(worker);
  }
  // Whoever has ended holds nothing. One that has only closed its connection may still map what it
  // was given, and its memory may go to no other scope.
  std::erase_if(closed_, [](const Worker& worker) { return !worker.exported->Poll(); });
}

}  // namespace pagoda
