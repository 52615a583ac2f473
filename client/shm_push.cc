#include "client/shm_push.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_format.h"
#include "absl/synchronization/mutex.h"
#include "client/shm_connect.h"
#include "client/staging_arena.h"
#include "proto/shm_protocol.h"
#include "proto/shm_push_packet.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/packet_socket.h"
#include "storage/base/status_macros.h"

namespace pagoda::client {
namespace {

constexpr absl::Duration kTick = absl::Milliseconds(200);  // how late a deadline is noticed

// The area. Reserved memory keeps it, beyond the channel if need be.
class Area {
 public:
  static absl::StatusOr<std::shared_ptr<Area>> Make(const UniqueFd& fd, int64_t bytes) {
    // A file that became shorter would end this process when it is written.
    struct stat info {};
    if (!fd.valid() || ::fstat(fd.get(), &info) != 0 || info.st_size < bytes ||
        (::fcntl(fd.get(), F_GET_SEALS) & F_SEAL_SHRINK) == 0) {
      return absl::DataLossError("shm: a staging area that is not what was asked for");
    }
    void* data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED,
                        fd.get(), 0);
    if (data == MAP_FAILED) {
      return absl::UnavailableError(
          absl::StrFormat("shm: mmap of %d bytes: %s", bytes, std::strerror(errno)));
    }
    return std::shared_ptr<Area>(new Area(static_cast<std::byte*>(data), bytes));
  }
  ~Area() { ::munmap(data_, static_cast<size_t>(bytes_)); }
  Area(const Area&) = delete;
  Area& operator=(const Area&) = delete;

  std::optional<int64_t> Take(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    return arena_.Take(bytes);
  }
  void Return(int64_t offset, int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_) {
    absl::MutexLock lock(&mutex_);
    arena_.Return(offset, bytes);
  }
  std::byte* data() const { return data_; }
  // Where those bytes lie in the area, if they do.
  std::optional<int64_t> OffsetOf(ByteSpan bytes) const {
    if (bytes.data() < data_ || bytes.data() > data_ + bytes_) return std::nullopt;
    const int64_t offset = bytes.data() - data_;
    if (static_cast<int64_t>(bytes.size()) > bytes_ - offset) return std::nullopt;
    return offset;
  }

 private:
  Area(std::byte* data, int64_t bytes) : data_(data), bytes_(bytes), arena_(bytes) {}

  std::byte* const data_;
  const int64_t bytes_;
  absl::Mutex mutex_;
  StagingArena arena_ ABSL_GUARDED_BY(mutex_);
};

// A range of the area, for as long as somebody needs it.
class Range {
 public:
  Range(std::shared_ptr<Area> area, int64_t offset, int64_t bytes)
      : area_(std::move(area)), offset_(offset), bytes_(bytes) {}
  ~Range() { area_->Return(offset_, bytes_); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;

  int64_t offset() const { return offset_; }
  std::byte* data() const { return area_->data() + offset_; }

 private:
  const std::shared_ptr<Area> area_;
  const int64_t offset_;
  const int64_t bytes_;
};

struct Queued {
  ShmPushChannel::Page page;
  std::string fields;  // a v1.PushRequest
};

// Named to the daemon, unanswered.
struct Named {
  Queued queued;
  std::shared_ptr<const Range> range;  // null: the page's own memory lies in the area
  uint32_t tag = 0;
  absl::Duration since;
};

class ShmPushChannelImpl : public ShmPushChannel {
 public:
  ShmPushChannelImpl(UniqueFd socket, UniqueFd wake, const Options& options)
      : options_(options), socket_(std::move(socket)), wake_(std::move(wake)) {
    absl::MutexLock lock(&join_mutex_);
    thread_ = std::thread([this] { Run(); });
  }
  ~ShmPushChannelImpl() override { Stop(); }

  absl::Status Push(const PushConfig& config, Page& page) override {
    Queued queued;
    queued.fields = PushMessage(config, page.item).SerializeAsString();
    {
      absl::MutexLock lock(&mutex_);
      if (over_) return absl::UnavailableError("shm: the push channel is closed");
      queued.page = std::move(page);
      queue_.push_back(std::move(queued));
    }
    Wake();
    return absl::OkStatus();
  }

  absl::StatusOr<PushMemory> Reserve(int64_t bytes) override {
    if (bytes <= 0) return absl::InvalidArgumentError("push: no bytes to reserve");
    std::shared_ptr<Area> area;
    {
      absl::MutexLock lock(&mutex_);
      if (over_ || area_ == nullptr) return absl::UnavailableError("shm: no staging area yet");
      area = area_;
    }
    const std::optional<int64_t> offset = area->Take(bytes);
    if (!offset.has_value()) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("push: no %d bytes free in the staging area", bytes));
    }
    auto range = std::make_shared<const Range>(std::move(area), *offset, bytes);
    PushMemory memory;
    memory.bytes = {range->data(), static_cast<size_t>(bytes)};
    memory.owner = std::move(range);
    return memory;
  }

  bool broken() const override { return broken_.load(std::memory_order_relaxed); }

  void Stop() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    Wake();
    absl::MutexLock joining(&join_mutex_);
    if (thread_.joinable()) thread_.join();
  }

 private:
  void Wake() const {
    const uint64_t one = 1;
    (void)!::write(wake_.get(), &one, sizeof(one));
  }

  void Run() {
    absl::Status status = AskForArea();
    while (status.ok()) {
      {
        absl::MutexLock lock(&mutex_);
        if (stopping_) status = absl::CancelledError("push: the client stops");
      }
      if (status.ok()) status = HearAnswers();
      if (status.ok()) status = NamePages();
      if (status.ok()) status = CheckTime();
      if (status.ok()) WaitForSomething();
    }
    End(status);
  }

  absl::Status AskForArea() {
    shm::Request request;
    request.op = shm::Op::kStage;
    request.tag = ++tag_;
    request.what = static_cast<uint64_t>(options_.staging_bytes);
    std::string packet;
    shm::AppendStruct(packet, request);
    asked_at_ = SystemClock().Monotonic();
    return TrySendPacket(socket_.get(), packet);
  }

  absl::Status HearAnswers() {
    while (true) {
      PAGODA_ASSIGN_OR_RETURN(std::optional<Packet> packet,
                              TryReceivePacket(socket_.get(), shm::kPacketBytesMax));
      if (!packet.has_value()) return absl::OkStatus();
      if (packet->bytes.empty()) return absl::UnavailableError("shm: the daemon hung up");
      shm::Reply reply;
      if (packet->bytes.size() < sizeof(reply)) {
        return absl::DataLossError("shm: an answer that is too short");
      }
      std::memcpy(&reply, packet->bytes.data(), sizeof(reply));
      const absl::string_view body = absl::string_view(packet->bytes).substr(sizeof(reply));
      if (!has_area_) {
        PAGODA_RETURN_IF_ERROR(TakeArea(reply, body, packet->fd));
      } else {
        PAGODA_RETURN_IF_ERROR(TakeAnswer(reply, body));
      }
    }
  }

  absl::Status TakeArea(const shm::Reply& reply, absl::string_view body, const UniqueFd& fd) {
    if (reply.op != shm::Op::kStage || reply.tag != tag_) {
      return absl::DataLossError("shm: an answer to something else");
    }
    if (reply.code != 0) return absl::Status(static_cast<absl::StatusCode>(reply.code), body);
    PAGODA_ASSIGN_OR_RETURN(std::shared_ptr<Area> area, Area::Make(fd, options_.staging_bytes));
    has_area_ = true;
    absl::MutexLock lock(&mutex_);
    area_ = std::move(area);
    return absl::OkStatus();
  }

  absl::Status TakeAnswer(const shm::Reply& reply, absl::string_view body) {
    if (named_.empty() || reply.op != shm::Op::kPush || reply.tag != named_.front().tag) {
      return absl::DataLossError("shm: an answer that fits no page");
    }
    absl::StatusOr<PushOutcome> outcome = PushOutcome::kStored;
    if (reply.code != 0) {
      outcome = absl::Status(static_cast<absl::StatusCode>(reply.code), body);
    } else if (reply.outcome < 1 || reply.outcome > 3) {
      return absl::DataLossError("shm: an outcome that does not exist");
    } else {
      outcome = static_cast<PushOutcome>(reply.outcome - 1);
    }
    Named answered = std::move(named_.front());
    named_.pop_front();
    if (!named_.empty()) named_.front().since = SystemClock().Monotonic();
    Answer(answered.queued, outcome, /*not_taken=*/false);
    return absl::OkStatus();
  }

  static void Answer(Queued& queued, const absl::StatusOr<PushOutcome>& outcome, bool not_taken) {
    queued.page.done(std::move(queued.page.item), outcome, not_taken);
  }

  // As many as there is room for.
  absl::Status NamePages() {
    if (!has_area_) return absl::OkStatus();
    while (named_.size() < static_cast<size_t>(shm::kPushesMax)) {
      if (!ready_.has_value()) {
        PAGODA_ASSIGN_OR_RETURN(const bool more, PrepareNext());
        if (!more) return absl::OkStatus();
      }
      const absl::Status sent = TrySendPacket(socket_.get(), packet_);
      if (absl::IsResourceExhausted(sent)) return absl::OkStatus();  // the socket is full
      PAGODA_RETURN_IF_ERROR(sent);
      ready_->since = SystemClock().Monotonic();
      named_.push_back(*std::move(ready_));
      ready_.reset();
    }
    return absl::OkStatus();
  }

  // Puts the next queued page into the area and its packet together. False: there is none, or no
  // room for it yet.
  absl::StatusOr<bool> PrepareNext() {
    while (true) {
      Queued next;
      {
        absl::MutexLock lock(&mutex_);
        if (queue_.empty()) return false;
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      if (next.page.cancelled != nullptr && next.page.cancelled->load()) {
        Answer(next, absl::CancelledError("push: cancelled"), /*not_taken=*/false);
        continue;
      }
      Named named;
      std::vector<uint64_t> offsets;
      if (Place(next.page.item, offsets, named.range)) {
        named.tag = ++tag_;
        packet_ = shm::PushPacket(named.tag, offsets, next.fields);
        named.queued = std::move(next);
        ready_ = std::move(named);
        return true;
      }
      // Room comes with answers. Without any to come it would have to come from who reserved some.
      if (named_.empty()) {
        Answer(next, absl::ResourceExhaustedError("push: larger than what is free of the area"),
               /*not_taken=*/true);
        continue;
      }
      absl::MutexLock lock(&mutex_);
      queue_.push_front(std::move(next));
      return false;
    }
  }

  // Where the segments lie in the area, into which they are copied unless they are there.
  bool Place(const PushItem& item, std::vector<uint64_t>& offsets,
             std::shared_ptr<const Range>& range) {
    std::shared_ptr<Area> area;
    {
      absl::MutexLock lock(&mutex_);
      area = area_;
    }
    for (const ByteSpan segment : item.segments) {
      const std::optional<int64_t> at = area->OffsetOf(segment);
      if (!at.has_value()) break;
      offsets.push_back(static_cast<uint64_t>(*at));
    }
    if (offsets.size() == item.segments.size()) return true;
    int64_t bytes = 0;
    for (const ByteSpan segment : item.segments) {
      bytes += AlignUp(static_cast<int64_t>(segment.size()), 64);
    }
    const std::optional<int64_t> offset = area->Take(bytes);
    if (!offset.has_value()) return false;
    auto taken = std::make_shared<const Range>(area, *offset, bytes);
    offsets.clear();
    std::byte* at = taken->data();
    for (const ByteSpan segment : item.segments) {
      std::memcpy(at, segment.data(), segment.size());
      offsets.push_back(static_cast<uint64_t>(at - area->data()));
      at += AlignUp(static_cast<int64_t>(segment.size()), 64);
    }
    range = std::move(taken);
    return true;
  }

  absl::Status CheckTime() const {
    const absl::Duration now = SystemClock().Monotonic();
    if (!has_area_ && now - asked_at_ > options_.answer_timeout) {
      return absl::DeadlineExceededError("shm: no staging area in time");
    }
    if (!named_.empty() && now - named_.front().since > options_.answer_timeout) {
      return absl::DeadlineExceededError("shm: a page was not answered in time");
    }
    return absl::OkStatus();
  }

  void WaitForSomething() const {
    const auto events = static_cast<short>(POLLIN | (ready_.has_value() ? POLLOUT : 0));
    pollfd polled[2] = {{socket_.get(), events, 0}, {wake_.get(), POLLIN, 0}};
    (void)::poll(polled, 2, static_cast<int>(absl::ToInt64Milliseconds(kTick)));
    uint64_t count;
    (void)!::read(wake_.get(), &count, sizeof(count));
  }

  void End(const absl::Status& status) {
    broken_.store(true, std::memory_order_relaxed);
    ::shutdown(socket_.get(), SHUT_RDWR);
    bool stopping;
    {
      absl::MutexLock lock(&mutex_);
      stopping = stopping_;
      area_.reset();
    }
    // In the order in which they were pushed: they may go on over gRPC. What is pushed meanwhile
    // queues behind them.
    if (ready_.has_value()) named_.push_back(*std::move(ready_));
    for (Named& named : named_) Answer(named.queued, status, !stopping);
    while (true) {
      Queued next;
      {
        absl::MutexLock lock(&mutex_);
        over_ = queue_.empty();
        if (over_) break;
        next = std::move(queue_.front());
        queue_.pop_front();
      }
      Answer(next, status, !stopping);
    }
    named_.clear();
  }

  const Options options_;
  const UniqueFd socket_;
  const UniqueFd wake_;
  std::atomic<bool> broken_{false};  // relaxed: it only says where not to begin

  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool over_ ABSL_GUARDED_BY(mutex_) = false;  // nobody answers any more
  std::shared_ptr<Area> area_ ABSL_GUARDED_BY(mutex_);
  std::deque<Queued> queue_ ABSL_GUARDED_BY(mutex_);

  // Of the thread.
  bool has_area_ = false;
  absl::Duration asked_at_;
  uint32_t tag_ = 0;
  std::optional<Named> ready_;  // its packet is packet_
  std::string packet_;
  std::deque<Named> named_;  // in order

  absl::Mutex join_mutex_;
  std::thread thread_ ABSL_GUARDED_BY(join_mutex_);  // last: it uses everything above
};

}  // namespace

absl::StatusOr<std::shared_ptr<ShmPushChannel>> ShmPushChannel::Connect(
    const std::string& path, const std::string& session_id, const Options& options) {
  PAGODA_ASSIGN_OR_RETURN(UniqueFd socket, ConnectShm(path, session_id));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!wake.valid()) return absl::ResourceExhaustedError("shm: no descriptor for eventfd");
  return std::make_shared<ShmPushChannelImpl>(std::move(socket), std::move(wake), options);
}

}  // namespace pagoda::client
