#include "client/device_channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <set>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "client/device_tickets.h"
#include "client/packet_reader.h"
#include "client/shm_connect.h"
#include "proto/shm_protocol.h"
#include "storage/base/clock.h"
#include "storage/base/log.h"
#include "storage/base/packet_socket.h"
#include "storage/base/status_macros.h"
#include "storage/device/memory_import.h"

namespace pagoda::client {
namespace {

constexpr absl::Duration kTurnWait = absl::Milliseconds(20);
constexpr absl::Duration kFlagPause = absl::Microseconds(50);
constexpr absl::Duration kDrainTimeout = absl::Seconds(2);
constexpr absl::Duration kArrivalTimeout = absl::Seconds(10);
// What the daemon has at least for an answer. A caller whose lease ends gets it late or not at all,
// but a channel that is given up costs all callers.
constexpr absl::Duration kAnswerTimeoutMin = absl::Seconds(2);
constexpr absl::Duration kPauseMax = absl::Seconds(60);

// Another try would end the same way.
bool IsForGood(const absl::Status& status) {
  return absl::IsUnimplemented(status) || absl::IsFailedPrecondition(status);
}

class DeviceChannelImpl : public DeviceChannel,
                          public std::enable_shared_from_this<DeviceChannelImpl> {
 public:
  DeviceChannelImpl(UniqueFd socket, DeviceRuntime& device)
      : socket_(std::move(socket)), device_(device) {}

  // All pages are gone, and with them all reads: the memory is the daemon's again.
  ~DeviceChannelImpl() override {
    absl::MutexLock lock(&finish_mutex_);
    if (finished_ == nullptr) return;  // never opened
    if (!unfinished_) {
      absl::Status status = import_->Finish(*finish_stream_, UINT64_MAX);
      if (status.ok()) status = finish_stream_->Record(*finished_);
      if (status.ok()) status = device_.Await(*finished_, kDrainTimeout);
      if (!absl::IsDeadlineExceeded(status)) return;
    }
    LogError("device_memory_leaked", {{"cause", "streams still read it"}});
    (void)import_.release();
    (void)finish_stream_.release();
    (void)finished_.release();
  }

  absl::Status Open(absl::Duration timeout) {
    const absl::Duration end = SystemClock().Monotonic() + std::max(timeout, kAnswerTimeoutMin);
    absl::MutexLock lock(&mutex_);
    shm::Request request;
    request.op = shm::Op::kDevice;
    request.lease_id = device_.info().uuid.bytes;
    PAGODA_RETURN_IF_ERROR(Ask(request));
    PAGODA_ASSIGN_OR_RETURN(Packet packet, Receive(end));
    if (IsExportPacket(packet.bytes)) {
      PAGODA_ASSIGN_OR_RETURN(import_, DeviceImport::Open(device_, std::move(packet)));
      PAGODA_ASSIGN_OR_RETURN(packet, Receive(end));
    }
    shm::Reply reply;
    PacketReader reader(packet.bytes);
    PAGODA_RETURN_IF_ERROR(Take(reader, request, reply));
    if (reply.code != 0) {
      return absl::Status(static_cast<absl::StatusCode>(reply.code), reader.rest());
    }
    if (import_ == nullptr) return absl::DataLossError("device memory: no flag words came");
    absl::MutexLock finish_lock(&finish_mutex_);
    PAGODA_ASSIGN_OR_RETURN(finish_stream_, device_.NewStream());
    PAGODA_ASSIGN_OR_RETURN(finished_, device_.NewEvent());
    return absl::OkStatus();
  }

  absl::StatusOr<std::unique_ptr<DevicePages>> Map(const ShmChannel::Wanted& wanted) override;

  void Watch() override {
    if (!broken() && HungUp()) {
      Break(absl::UnavailableError("device memory: the daemon hung up"));
    }
    bool late = false;
    {
      absl::MutexLock lock(&arrival_mutex_);
      const absl::Duration now = SystemClock().Monotonic();
      while (!arrivals_.empty() && arrived() >= arrivals_.front().number) arrivals_.pop_front();
      late = !arrivals_.empty() && now > arrivals_.front().deadline;
    }
    if (late) Break(absl::UnavailableError("device memory: pages did not come in time"));
    // Again each time: a write of the daemon's device may have been on its way.
    if (broken()) StoreFlag(import_->word(ExportWord::kArrived), UINT64_MAX);
  }

  absl::Status health() const override ABSL_LOCKS_EXCLUDED(cause_mutex_) {
    absl::MutexLock lock(&cause_mutex_);
    return cause_;
  }
  bool broken() const { return broken_.load(std::memory_order_acquire); }

  uint64_t arrived() const { return LoadFlag(import_->word(ExportWord::kArrived)); }
  bool lost() const { return LoadFlag(import_->word(ExportWord::kLost)) != 0; }

  absl::Status WaitArrival(DeviceStream& stream, uint64_t number) {
    if (number == 0 || arrived() >= number) return absl::OkStatus();
    return stream.WaitFlag(import_->word(ExportWord::kArrived), number);
  }

  // Behind all work of `stream`, or now where it is null.
  absl::Status Finish(uint64_t ticket, DeviceStream* stream) ABSL_LOCKS_EXCLUDED(finish_mutex_) {
    absl::MutexLock lock(&finish_mutex_);
    if (stream != nullptr) {
      const absl::Status followed = Follow(*stream);
      // Nothing tells when it has read them: the ticket stays open, and so do those behind it.
      unfinished_ |= !followed.ok();
      PAGODA_RETURN_IF_ERROR(followed);
    }
    const std::optional<uint64_t> told = tickets_.Finish(ticket);
    return told.has_value() ? import_->Finish(*finish_stream_, *told) : absl::OkStatus();
  }

 private:
  struct Arrival {
    uint64_t number = 0;
    absl::Duration deadline;
  };

  bool HungUp() const {
    pollfd polled{socket_.get(), POLLRDHUP, 0};
    return ::poll(&polled, 1, /*timeout=*/0) == 1;
  }

  // What is there stays mapped; nothing else comes.
  void Break(const absl::Status& why) ABSL_LOCKS_EXCLUDED(cause_mutex_) {
    {
      absl::MutexLock lock(&cause_mutex_);
      if (!cause_.ok()) return;
      cause_ = why;
    }
    broken_.store(true, std::memory_order_release);
    LogWarning("device_memory_off", {{"cause", std::string(why.message())},
                                     {"effect", "pages are read from host memory"}});
    ::shutdown(socket_.get(), SHUT_RDWR);
  }
  absl::Status Broken(absl::Status status) {
    Break(status);
    return status;
  }

  // The stream that tells what was read comes behind all work of this one.
  absl::Status Follow(DeviceStream& stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(finish_mutex_) {
    PAGODA_ASSIGN_OR_RETURN(const std::unique_ptr<DeviceEvent> read, device_.NewEvent());
    PAGODA_RETURN_IF_ERROR(stream.Record(*read));
    return finish_stream_->WaitFor(*read);
  }

  absl::Status Ask(shm::Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (broken()) return absl::UnavailableError("device memory: the connection is broken");
    request.tag = ++tag_;
    std::string bytes;
    shm::AppendStruct(bytes, request);
    const absl::Status sent = TrySendPacket(socket_.get(), bytes);
    return sent.ok() ? sent : Broken(sent);
  }

  // Late is broken: what the daemon grants then would never be finished.
  absl::StatusOr<Packet> Receive(absl::Duration end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    const absl::Duration left = end - SystemClock().Monotonic();
    absl::StatusOr<Packet> packet = absl::DeadlineExceededError("device memory: no answer in time");
    if (left > absl::ZeroDuration()) {
      packet = ReceivePacket(socket_.get(), shm::kPacketBytesMax, left);
    }
    if (!packet.ok()) return Broken(packet.status());
    if (packet->bytes.empty()) {
      return Broken(absl::UnavailableError("device memory: the daemon hung up"));
    }
    return packet;
  }

  absl::Status Take(PacketReader& reader, const shm::Request& request, shm::Reply& reply) {
    if (reader.Take(reply) && reply.op == request.op && reply.tag == request.tag) {
      return absl::OkStatus();
    }
    return Broken(absl::DataLossError("device memory: an answer to something else"));
  }

  struct Answer {
    std::vector<absl::StatusOr<PageOnDevice>> pages;
    std::vector<uint64_t> arrivals;  // of each page
    uint64_t ticket = 0;
  };
  // One request; fewer pages than asked where more memory would have to come at once.
  absl::Status AskForSome(const ShmChannel::Wanted& wanted, absl::Duration end, Answer& answer)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status TakePages(uint32_t count, const ShmChannel::Wanted& wanted, PacketReader& reader,
                         Answer& answer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<PageOnDevice> PageOf(absl::string_view header, absl::string_view slabs,
                                      const RecordKey& record, const Identity& identity)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const UniqueFd socket_;
  DeviceRuntime& device_;
  // Acquire and release: who sees it sees the flag word that was set for it.
  std::atomic<bool> broken_{false};
  // Constant after Open(). Its memory: of who holds mutex_; its flag words: of anybody.
  std::unique_ptr<DeviceImport> import_;

  absl::Mutex mutex_;  // of the connection
  uint32_t tag_ ABSL_GUARDED_BY(mutex_) = 0;

  mutable absl::Mutex cause_mutex_;
  absl::Status cause_ ABSL_GUARDED_BY(cause_mutex_);

  absl::Mutex arrival_mutex_;
  std::deque<Arrival> arrivals_ ABSL_GUARDED_BY(arrival_mutex_);  // rising

  // One thread at a time puts work on the stream that tells what was read.
  absl::Mutex finish_mutex_;
  std::unique_ptr<DeviceStream> finish_stream_ ABSL_GUARDED_BY(finish_mutex_);
  std::unique_ptr<DeviceEvent> finished_ ABSL_GUARDED_BY(finish_mutex_);
  DeviceTickets tickets_ ABSL_GUARDED_BY(finish_mutex_);
  // Something was read of which nobody knows when: the memory is not the daemon's again before this
  // process ends.
  bool unfinished_ ABSL_GUARDED_BY(finish_mutex_) = false;
};

class DevicePagesImpl : public DevicePages {
 public:
  DevicePagesImpl(std::shared_ptr<DeviceChannelImpl> channel,
                  std::vector<absl::StatusOr<PageOnDevice>> pages, std::vector<uint64_t> arrivals,
                  uint64_t ticket)
      : channel_(std::move(channel)), pages_(std::move(pages)), ticket_(ticket) {
    for (size_t i = 0; i < pages_.size(); ++i) {
      if (!pages_[i].ok()) continue;
      ++there_count_;
      if (arrivals[i] == 0) continue;
      std::set<int> groups;
      for (const SegmentEntry& segment : pages_[i]->header.segments) {
        groups.insert(segment.layer_begin);
      }
      coming_.push_back({arrivals[i], {groups.begin(), groups.end()}});
    }
  }
  ~DevicePagesImpl() override {
    if (ticket_ != 0) (void)channel_->Finish(ticket_, nullptr);
  }

  size_t size() const override { return pages_.size(); }
  size_t there_count() const override { return there_count_; }
  const absl::StatusOr<PageOnDevice>& Page(size_t index) const override { return pages_[index]; }

  absl::Status WaitLayer(DeviceStream& stream, uint32_t layer) override {
    PAGODA_RETURN_IF_ERROR(Health());
    return channel_->WaitArrival(stream, NumberOf(layer));
  }

  absl::Status AwaitLayer(uint32_t layer, absl::Duration timeout) override {
    const absl::Duration end = SystemClock().Monotonic() + timeout;
    const uint64_t number = NumberOf(layer);
    while (true) {
      PAGODA_RETURN_IF_ERROR(Health());
      if (channel_->arrived() >= number) return Health();
      if (SystemClock().Monotonic() >= end) {
        return absl::DeadlineExceededError("device memory: a layer is not there yet");
      }
      absl::SleepFor(kFlagPause);
    }
  }

  // What the flag word must reach for all of the pages; 0: they are there.
  uint64_t last_number() const { return NumberOf(UINT32_MAX); }

  bool StillValid() const override { return channel_->arrived() >= last_number() && Health().ok(); }

  absl::Status ReleaseAfter(DeviceStream& stream) override {
    if (ticket_ == 0) return absl::OkStatus();
    return channel_->Finish(std::exchange(ticket_, 0), &stream);
  }

 private:
  struct Coming {
    uint64_t arrival;
    std::vector<int> groups;  // their first layers, rising
  };

  // What the flag word must reach for this layer of all pages.
  uint64_t NumberOf(uint32_t layer) const {
    uint64_t number = 0;
    for (const Coming& page : coming_) {
      const auto after = std::upper_bound(
          page.groups.begin(), page.groups.end(), layer,
          [](uint32_t wanted, int first) { return wanted < static_cast<uint32_t>(first); });
      const auto group = after == page.groups.begin() ? 0 : after - page.groups.begin() - 1;
      number = std::max(number, page.arrival + static_cast<uint64_t>(group));
    }
    return number;
  }

  // Pages that were there from the beginning need the daemon no more.
  absl::Status Health() const {
    if (channel_->lost()) {
      return absl::UnavailableError(
          "device memory: the daemon's device is lost, or what it granted is taken back");
    }
    if (!coming_.empty() && channel_->broken()) {
      return absl::UnavailableError("device memory: the daemon went while pages came");
    }
    return absl::OkStatus();
  }

  const std::shared_ptr<DeviceChannelImpl> channel_;
  const std::vector<absl::StatusOr<PageOnDevice>> pages_;
  uint64_t ticket_;  // 0: given back, or nothing was granted
  size_t there_count_ = 0;
  std::vector<Coming> coming_;
};

absl::StatusOr<PageOnDevice> DeviceChannelImpl::PageOf(absl::string_view header,
                                                       absl::string_view slabs,
                                                       const RecordKey& record,
                                                       const Identity& identity) {
  PageOnDevice page;
  PAGODA_ASSIGN_OR_RETURN(page.header, DecodePageHeader(AsBytes(header)));
  if (page.header.record != record || page.header.identity != identity) {
    return absl::DataLossError("device memory: page of another key or model");
  }
  if (page.header.segments.size() != slabs.size() / sizeof(shm::DeviceSlab)) {
    return absl::DataLossError("device memory: not a place for each segment");
  }
  PacketReader reader(slabs);
  for (const SegmentEntry& segment : page.header.segments) {
    shm::DeviceSlab slab;
    if (!reader.Take(slab) || slab.bytes < static_cast<uint64_t>(segment.stored_bytes())) {
      return absl::DataLossError("device memory: a segment beyond its slab");
    }
    PAGODA_ASSIGN_OR_RETURN(const std::byte* data,
                            import_->Find({slab.memory_id, static_cast<int64_t>(slab.offset),
                                           static_cast<int64_t>(slab.bytes), /*ticket=*/0}));
    page.segments.push_back(data);
  }
  return page;
}

absl::Status DeviceChannelImpl::TakePages(uint32_t count, const ShmChannel::Wanted& wanted,
                                          PacketReader& reader, Answer& answer) {
  for (uint32_t i = 0; i < count; ++i) {
    shm::DevicePage page;
    absl::string_view header;
    absl::string_view slabs;
    if (answer.pages.size() >= wanted.records.size() || !reader.Take(page) ||
        page.slabs > shm::kSegmentsMax || !reader.TakeBytes(page.header_bytes, header) ||
        !reader.TakeBytes(page.slabs * sizeof(shm::DeviceSlab), slabs)) {
      return Broken(absl::DataLossError("device memory: an answer that does not fit"));
    }
    if (page.code != 0) {
      answer.pages.push_back(absl::Status(static_cast<absl::StatusCode>(page.code), header));
    } else {
      answer.pages.push_back(
          PageOf(header, slabs, wanted.records[answer.pages.size()], wanted.identity));
    }
    answer.arrivals.push_back(page.arrival);
  }
  return absl::OkStatus();
}

absl::Status DeviceChannelImpl::AskForSome(const ShmChannel::Wanted& wanted, absl::Duration end,
                                           Answer& answer) {
  const size_t before = answer.pages.size();
  shm::Request request;
  request.op = shm::Op::kPlace;
  request.lease_id = wanted.lease.bytes;
  request.page_begin = wanted.page_begin + static_cast<uint32_t>(before);
  request.page_count = static_cast<uint32_t>(wanted.records.size() - before);
  PAGODA_RETURN_IF_ERROR(Ask(request));
  while (true) {
    PAGODA_ASSIGN_OR_RETURN(Packet packet, Receive(end));
    if (IsExportPacket(packet.bytes)) {
      // Where one does not map, none will.
      if (absl::Status mapped = import_->Receive(std::move(packet)); !mapped.ok()) {
        return Broken(std::move(mapped));
      }
      continue;
    }
    shm::Reply reply;
    PacketReader reader(packet.bytes);
    PAGODA_RETURN_IF_ERROR(Take(reader, request, reply));
    if (reply.code != 0) {
      return absl::Status(static_cast<absl::StatusCode>(reply.code), reader.rest());
    }
    PAGODA_RETURN_IF_ERROR(TakePages(reply.pages, wanted, reader, answer));
    if (reply.last == 0) continue;
    if (!reader.Take(answer.ticket)) {
      return Broken(absl::DataLossError("device memory: an answer that is too short"));
    }
    return answer.pages.size() > before
               ? absl::OkStatus()
               : absl::UnavailableError("device memory: the daemon says nothing of these pages");
  }
}

absl::StatusOr<std::unique_ptr<DevicePages>> DeviceChannelImpl::Map(
    const ShmChannel::Wanted& wanted) {
  const absl::Duration end =
      SystemClock().Monotonic() + std::max(wanted.timeout, kAnswerTimeoutMin);
  absl::Duration waited = absl::ZeroDuration();
  while (!mutex_.TryLock()) {
    if (waited >= kTurnWait) {
      return absl::UnavailableError("device memory: another request is under way");
    }
    absl::SleepFor(absl::Milliseconds(1));
    waited += absl::Milliseconds(1);
  }
  Answer answer;
  absl::Status status;
  while (status.ok() && answer.pages.size() < wanted.records.size()) {
    status = AskForSome(wanted, end, answer);
  }
  uint64_t ticket = 0;
  for (const absl::StatusOr<PageOnDevice>& page : answer.pages) {
    if (page.ok()) ticket = answer.ticket;
  }
  if (ticket != 0) {
    absl::MutexLock lock(&finish_mutex_);
    tickets_.Open(ticket);
  }
  mutex_.Unlock();
  if (ticket == 0 && !status.ok()) return status;
  while (answer.pages.size() < wanted.records.size()) {
    answer.pages.push_back(status);
    answer.arrivals.push_back(0);
  }
  auto pages = std::make_unique<DevicePagesImpl>(shared_from_this(), std::move(answer.pages),
                                                 std::move(answer.arrivals), ticket);
  if (const uint64_t number = pages->last_number(); number != 0) {
    absl::MutexLock lock(&arrival_mutex_);
    arrivals_.push_back({number, SystemClock().Monotonic() + kArrivalTimeout});
  }
  return pages;
}

}  // namespace

absl::StatusOr<std::shared_ptr<DeviceChannel>> DeviceChannel::Connect(const std::string& path,
                                                                      const std::string& session_id,
                                                                      DeviceRuntime& device,
                                                                      absl::Duration timeout) {
  PAGODA_ASSIGN_OR_RETURN(UniqueFd socket, ConnectShm(path, session_id));
  auto channel = std::make_shared<DeviceChannelImpl>(std::move(socket), device);
  PAGODA_RETURN_IF_ERROR(channel->Open(timeout));
  return channel;
}

absl::StatusOr<std::shared_ptr<DeviceChannel>> DeviceLink::ChannelOf(const std::string& path,
                                                                     const std::string& session_id,
                                                                     absl::Duration timeout) {
  {
    absl::MutexLock lock(&mutex_);
    if (connecting_) return absl::UnavailableError("device memory: being connected");
    if (session_id_ != session_id) {
      // A call that began before its session ended.
      if (former_session_id_ == session_id) {
        return absl::UnavailableError("device memory: the session has ended");
      }
      former_session_id_ = std::exchange(session_id_, session_id);
      if (channel_.ok()) old_.push_back(*std::move(channel_));
      channel_ = absl::UnavailableError("device memory: not tried yet");
      pause_ = first_pause_;
    } else if (channel_.ok() || IsForGood(channel_.status()) ||
               SystemClock().Monotonic() < next_try_) {
      return channel_;
    }
    connecting_ = true;
  }
  absl::StatusOr<std::shared_ptr<DeviceChannel>> fresh =
      DeviceChannel::Connect(path, session_id, *device_, timeout);
  absl::MutexLock lock(&mutex_);
  connecting_ = false;
  if (fresh.ok()) {
    channel_ = std::move(fresh);
  } else {
    Fail(fresh.status());
  }
  return channel_;
}

void DeviceLink::Fail(absl::Status why) {
  channel_ = std::move(why);
  next_try_ = SystemClock().Monotonic() + pause_;
  pause_ = std::min(2 * pause_, kPauseMax);
}

absl::StatusOr<std::unique_ptr<DevicePages>> DeviceLink::Map(const std::string& path,
                                                             const std::string& session_id,
                                                             const ShmChannel::Wanted& wanted) {
  if (device_ == nullptr) {
    return absl::FailedPreconditionError("device memory: ClientOptions.device is not set");
  }
  if (path.empty()) {
    return absl::UnavailableError("device memory: the daemon is not on this machine");
  }
  PAGODA_ASSIGN_OR_RETURN(const std::shared_ptr<DeviceChannel> channel,
                          ChannelOf(path, session_id, wanted.timeout));
  return channel->Map(wanted);
}

void DeviceLink::Watch() {
  std::vector<std::shared_ptr<DeviceChannel>> watched;
  std::vector<std::shared_ptr<DeviceChannel>> ended;  // without the lock: they wait for streams
  {
    absl::MutexLock lock(&mutex_);
    if (channel_.ok()) {
      if (absl::Status why = (*channel_)->health(); !why.ok()) {
        old_.push_back(*std::move(channel_));
        Fail(std::move(why));
      }
    }
    const auto first_ended = std::partition(old_.begin(), old_.end(),
                                            [](const auto& old) { return old.use_count() > 1; });
    ended.assign(std::make_move_iterator(first_ended), std::make_move_iterator(old_.end()));
    old_.erase(first_ended, old_.end());
    watched = old_;
    if (channel_.ok()) watched.push_back(*channel_);
  }
  for (const std::shared_ptr<DeviceChannel>& channel : watched) channel->Watch();
}

}  // namespace pagoda::client
