#include "cache-server/peer_links.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "storage/base/clock.h"
#include "storage/base/status_macros.h"
#include "storage/device/nccl_transport.h"

namespace pagoda {
namespace {

using Phase = LinkMachine::Phase;

constexpr absl::Duration kBusyPeriod = absl::Microseconds(100);
constexpr absl::Duration kIdlePeriod = absl::Milliseconds(20);  // a worker that died is seen
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);
constexpr int64_t kStagingBytesMax = int64_t{32} << 20;

bool IsOver(Phase phase) { return phase == Phase::kDraining || phase == Phase::kBroken; }

}  // namespace

absl::StatusOr<std::unique_ptr<PeerLinks>> PeerLinks::Create(ServiceContext& context) {
  std::unique_ptr<PeerLinks> links(new PeerLinks(context));
  PAGODA_RETURN_IF_ERROR(links->OpenTransport().status());  // whether there is such a thing
  return links;
}

absl::StatusOr<std::unique_ptr<PeerTransport>> PeerLinks::OpenTransport() const {
  const HbmSettings& settings = context_.options.hbm;
  DeviceRuntime& runtime = context_.hbm->runtime();
  if (settings.open_transport != nullptr) return settings.open_transport(runtime);
  return OpenNccl(runtime, {});
}

void PeerLinks::Open(std::shared_ptr<PeerSink> sink, PeerOpening opening) {
  const PeerSink* const key = sink.get();
  Post({key, std::move(sink), std::move(opening), std::nullopt});
}

void PeerLinks::Fetch(const PeerSink* sink, v1::PeerFetch wanted) {
  Post({sink, nullptr, {}, std::move(wanted)});
}

void PeerLinks::Close(const PeerSink* sink) { Post({sink, nullptr, {}, std::nullopt}); }

void PeerLinks::Post(Job job) {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return;
  if (!started_) {
    if (job.opens == nullptr) return;  // there is no link
    started_ = true;
    thread_ = std::thread([this] { Run(); });
  }
  jobs_.push_back(std::move(job));
}

void PeerLinks::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (!started_) return;
  }
  if (thread_.joinable()) thread_.join();
}

void PeerLinks::Run() {
  const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !jobs_.empty();
  };
  while (true) {
    std::vector<Job> jobs;
    {
      const absl::Duration pause = IsBusy()         ? kBusyPeriod
                                   : links_.empty() ? absl::InfiniteDuration()
                                                    : kIdlePeriod;
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&wanted), pause);
      if (stopping_) break;
      jobs.swap(jobs_);
    }
    for (Job& job : jobs) Do(std::move(job));
    PollAll();
  }
  for (auto& [sink, link] : links_) End(*link, absl::UnavailableError("the server is stopping"));
  Drain();
}

bool PeerLinks::IsBusy() const {
  return !ended_.empty() || std::any_of(links_.begin(), links_.end(), [](const auto& entry) {
    return entry.second->request.has_value() || entry.second->link->phase() == Phase::kJoining;
  });
}

void PeerLinks::Do(Job job) {
  if (job.opens != nullptr) {
    auto link = std::make_unique<Link>();
    link->sink = std::move(job.opens);
    link->opening = std::move(job.opening);
    const absl::Status opened = TryOpen(*link);
    if (!opened.ok()) return link->sink->OnBroken(opened);
    links_[job.sink] = std::move(link);
    return;
  }
  const auto found = links_.find(job.sink);
  if (found == links_.end()) return;  // it broke meanwhile
  Link& link = *found->second;
  absl::Status over;
  if (!job.fetch.has_value()) {
    over = absl::CancelledError("the worker has closed it");
  } else if (link.request.has_value()) {
    over = absl::FailedPreconditionError("a request is under way");
  }
  if (over.ok()) {
    link.request.emplace(context_, *std::move(job.fetch), SystemClock().Monotonic());
    link.stage = Link::Stage::kWaits;
    return;
  }
  End(link, over);
  // At once: the next sink may have this one's address.
  ended_.push_back(std::move(found->second));
  links_.erase(found);
}

absl::Status PeerLinks::TryOpen(Link& link) {
  Hbm& hbm = *context_.hbm;
  if (link.opening.device == hbm.info().uuid) {
    return absl::FailedPreconditionError(
        absl::StrCat("the worker has the daemon's GPU, ", hbm.info().uuid.ToString(),
                     ": it can map the pages where they are (MapDevice)"));
  }
  PAGODA_RETURN_IF_ERROR(hbm.health());
  const size_t count = links_.size() + ended_.size();
  if (count >= static_cast<size_t>(context_.options.hbm.peer_links_max)) {
    context_.metrics.OnDeviceFallback(DeviceFallback::kLimit);
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d links to GPUs are open, hbm.peer_links_max; use another path", count));
  }
  PeerLinkOptions options;
  options.staging_bytes = std::min(link.opening.staging_bytes, kStagingBytesMax);
  options.drain_timeout = absl::Milliseconds(100);  // Drain() has waited
  PAGODA_ASSIGN_OR_RETURN(link.transport, OpenTransport());
  PAGODA_ASSIGN_OR_RETURN(link.link,
                          PeerLink::Create(hbm.runtime(), *link.transport, SystemClock(), options));
  PAGODA_ASSIGN_OR_RETURN(const PeerLinkId id, link.link->NewId());
  PAGODA_RETURN_IF_ERROR(link.link->Join(id, /*rank=*/0));
  link.opening.staging_bytes = options.staging_bytes;
  link.sink->OnOpened(id, options.staging_bytes);
  return absl::OkStatus();
}

void PeerLinks::PollAll() {
  for (auto& [sink, link] : links_) {
    if (link->sink != nullptr) Step(*link);
  }
  for (auto entry = links_.begin(); entry != links_.end();) {
    if (entry->second->sink == nullptr) {
      ended_.push_back(std::move(entry->second));
      entry = links_.erase(entry);
    } else {
      ++entry;
    }
  }
  std::erase_if(ended_, [](const std::unique_ptr<Link>& link) {
    link->link->Poll();
    return link->link->phase() != Phase::kDraining;
  });
  link_count_.store(static_cast<int64_t>(links_.size() + ended_.size()), std::memory_order_relaxed);
}

void PeerLinks::Step(Link& link) {
  link.link->Poll();
  const Phase phase = link.link->phase();
  if (IsOver(phase)) return End(link, link.link->fault());
  if (!link.request.has_value()) return;
  const absl::Duration now = SystemClock().Monotonic();
  absl::Status gathered;
  if (link.stage == Link::Stage::kWaits && phase == Phase::kReady) {
    gathered = link.request->Gather(*link.opening.caller, link.opening.session,
                                    link.opening.staging_bytes);
    link.stage = Link::Stage::kArrives;
  }
  if (link.stage == Link::Stage::kArrives && link.request->Settled(now)) Send(link, gathered);
}

void PeerLinks::Send(Link& link, const absl::Status& gathered) {
  const absl::Duration now = SystemClock().Monotonic();
  v1::PeerPages answer = link.request->Answer(gathered, now);
  if (link.request->bytes() == 0) {
    link.request.reset();
    link.sink->OnPages(std::move(answer));
    return link.sink->OnIdle();
  }
  PeerRequest half = link.request->Half(now);
  half.done = [this, &link](const absl::Status& moved) {
    if (!moved.ok()) return;  // the link is over; Step() says so
    context_.metrics.OnPeerSent(link.request->bytes(),
                                SystemClock().Monotonic() - link.request->start());
    link.request.reset();
    link.sink->OnIdle();
  };
  link.stage = Link::Stage::kMoves;
  const absl::Status started = link.link->Start(std::move(half));
  if (!started.ok()) return End(link, started);
  link.sink->OnPages(std::move(answer));
}

// Whatever ended it: the device may still read the pages of its request, which the link keeps.
void PeerLinks::End(Link& link, const absl::Status& why) {
  if (link.sink == nullptr) return;
  if (link.request.has_value()) context_.metrics.OnPeerFailed();
  std::exchange(link.sink, nullptr)->OnBroken(why);
  link.link->Abort(why);
  link.request.reset();
}

// One deadline for all of them, on a device that stalls.
void PeerLinks::Drain() {
  const absl::Duration end = SystemClock().Monotonic() + kDrainTimeout;
  PollAll();
  while (!ended_.empty() && SystemClock().Monotonic() < end) {
    absl::SleepFor(kBusyPeriod);
    PollAll();
  }
  ended_.clear();
}

}  // namespace pagoda
