#include "storage/device/host_runtime.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "storage/base/bytes.h"
#include "storage/base/check.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr size_t kAlignBytes = 256;  // what cudaMalloc gives
constexpr int64_t kMapBytes = 4096;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr absl::Duration kFlagPoll = absl::Milliseconds(1);

bool Contains(const std::map<const std::byte*, int64_t>& ranges, const std::byte* data,
              int64_t bytes) {
  auto it = ranges.upper_bound(data);
  if (it == ranges.begin()) return false;
  --it;
  return data + bytes <= it->first + it->second;
}

void Merge(std::map<int64_t, int64_t>& into, const std::map<int64_t, int64_t>& from) {
  for (const auto& [stream, number] : from) into[stream] = std::max(into[stream], number);
}

absl::StatusOr<std::byte*> MapMemfd(int fd, int64_t bytes) {
  void* data = mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (data == MAP_FAILED) {
    return absl::UnavailableError(
        absl::StrFormat("host device: mmap of %d bytes: %s", bytes, std::strerror(errno)));
  }
  return static_cast<std::byte*>(data);
}

}  // namespace

class HostEvent final : public DeviceEvent {
 public:
  explicit HostEvent(HostRuntime* runtime) : runtime_(runtime) {}
  absl::StatusOr<bool> Done() override {
    absl::MutexLock lock(&runtime_->mutex_);
    return runtime_->EventDone(*state_);
  }

 private:
  friend class HostRuntime;
  friend class HostStream;
  HostRuntime* const runtime_;
  const std::shared_ptr<HostRuntime::EventState> state_ =
      std::make_shared<HostRuntime::EventState>();
};

class HostBuffer final : public DeviceBuffer {
 public:
  HostBuffer(HostRuntime* runtime, std::byte* data, int64_t bytes, int64_t counted_bytes,
             UniqueFd fd)
      : DeviceBuffer(data, bytes),
        runtime_(runtime),
        counted_bytes_(counted_bytes),
        fd_(std::move(fd)) {
    absl::MutexLock lock(&runtime_->mutex_);
    runtime_->buffers_.emplace(data, bytes);
  }
  ~HostBuffer() override {
    {
      absl::MutexLock lock(&runtime_->mutex_);
      runtime_->CheckFree(data(), bytes(), "a buffer was freed");
      runtime_->Carve(data(), bytes());
      runtime_->buffers_.erase(data());
      runtime_->used_bytes_ -= counted_bytes_;
    }
    if (fd_.valid()) {
      munmap(data(), static_cast<size_t>(bytes()));
    } else {
      std::free(data());
    }
  }
  int fd() const { return fd_.get(); }  // -1: private

 private:
  HostRuntime* const runtime_;
  const int64_t counted_bytes_;
  const UniqueFd fd_;
};

class HostRegistrationImpl final : public HostRegistration {
 public:
  HostRegistrationImpl(HostRuntime* runtime, std::byte* data, int64_t bytes)
      : runtime_(runtime), data_(data), bytes_(bytes) {}
  ~HostRegistrationImpl() override {
    absl::MutexLock lock(&runtime_->mutex_);
    runtime_->CheckFree(data_, bytes_, "host memory was unregistered");
    runtime_->Carve(data_, bytes_);
    runtime_->registered_.erase(data_);
    const auto* words = reinterpret_cast<const uint64_t*>(data_);
    auto& clocks = runtime_->flag_clocks_;
    clocks.erase(clocks.lower_bound(words), clocks.lower_bound(words + bytes_ / sizeof(uint64_t)));
  }

 private:
  HostRuntime* const runtime_;
  std::byte* const data_;
  const int64_t bytes_;
};

class HostStream final : public DeviceStream {
 public:
  using Work = HostRuntime::Work;

  explicit HostStream(HostRuntime* runtime) : runtime_(runtime) {
    absl::MutexLock lock(&runtime_->mutex_);
    state_.id = runtime_->next_stream_++;
    runtime_->streams_.push_back(&state_);
  }
  ~HostStream() override {
    absl::MutexLock lock(&runtime_->mutex_);
    runtime_->AwaitPiece();
    if (!state_.queue.empty()) {
      runtime_->Misuse(absl::StrFormat("stream %d was destroyed with %d unfinished works",
                                       state_.id, state_.queue.size()));
    }
    std::erase(runtime_->streams_, &state_);
  }

  absl::Status CopyBatch(CopyDirection direction, absl::Span<const CopyPiece> pieces) override {
    absl::MutexLock lock(&runtime_->mutex_);
    PAGODA_RETURN_IF_ERROR(runtime_->TakeFault(HostCall::kCopy));
    auto work = std::make_unique<Work>();
    work->name = CopyDirectionName(direction);
    for (const CopyPiece& piece : pieces) {
      const bool to_device = direction != CopyDirection::kDeviceToHost;
      const bool from_device = direction != CopyDirection::kHostToDevice;
      PAGODA_RETURN_IF_ERROR(CheckEnd(piece.target, piece.bytes, to_device));
      PAGODA_RETURN_IF_ERROR(CheckEnd(piece.source, piece.bytes, from_device));
      HostRuntime::Piece& added = work->pieces.emplace_back();
      added.copy = piece;
      // One source in four is read now, as CUDA may do with host memory.
      if (!from_device && runtime_->random_() % 4 == 0) {
        added.early.assign(piece.source, piece.source + piece.bytes);
      }
      work->ranges.push_back({piece.target, piece.bytes, /*writes=*/true});
      work->ranges.push_back({piece.source, piece.bytes, /*writes=*/false});
    }
    return runtime_->Submit(state_, std::move(work));
  }

  absl::Status Clear(std::byte* target, int64_t bytes) override {
    absl::MutexLock lock(&runtime_->mutex_);
    PAGODA_RETURN_IF_ERROR(runtime_->TakeFault(HostCall::kCopy));
    PAGODA_RETURN_IF_ERROR(CheckEnd(target, bytes, /*device=*/true));
    auto work = std::make_unique<Work>();
    work->name = "clear";
    work->pieces.emplace_back().copy = {target, nullptr, bytes};
    work->ranges.push_back({target, bytes, /*writes=*/true});
    return runtime_->Submit(state_, std::move(work));
  }

  absl::Status Record(DeviceEvent& event) override {
    auto& state = static_cast<HostEvent&>(event).state_;
    absl::MutexLock lock(&runtime_->mutex_);
    PAGODA_RETURN_IF_ERROR(runtime_->TakeFault(HostCall::kRecord));
    auto work = std::make_unique<Work>();
    work->kind = Work::Kind::kRecord;
    work->event = state;
    work->event_number = state->recorded + 1;
    PAGODA_RETURN_IF_ERROR(runtime_->Submit(state_, std::move(work)));
    ++state->recorded;
    state->clock = state_.clock;
    return absl::OkStatus();
  }

  absl::Status WaitFor(DeviceEvent& event) override {
    auto& state = static_cast<HostEvent&>(event).state_;
    absl::MutexLock lock(&runtime_->mutex_);
    if (state->recorded == 0) {
      return absl::FailedPreconditionError("host device: a wait for an event never recorded");
    }
    Merge(state_.clock, state->clock);
    auto work = std::make_unique<Work>();
    work->kind = Work::Kind::kWaitEvent;
    work->event = state;
    work->event_number = state->recorded;
    return runtime_->Submit(state_, std::move(work));
  }

  absl::Status WriteFlag(uint64_t* word, uint64_t value) override {
    absl::MutexLock lock(&runtime_->mutex_);
    PAGODA_RETURN_IF_ERROR(runtime_->TakeFault(HostCall::kFlag));
    PAGODA_RETURN_IF_ERROR(CheckFlag(word));
    PAGODA_RETURN_IF_ERROR(SubmitFlag(Work::Kind::kWriteFlag, word, value));
    Merge(runtime_->flag_clocks_[word], state_.clock);
    return absl::OkStatus();
  }

  absl::Status WaitFlag(const uint64_t* word, uint64_t value) override {
    absl::MutexLock lock(&runtime_->mutex_);
    PAGODA_RETURN_IF_ERROR(runtime_->TakeFault(HostCall::kFlag));
    PAGODA_RETURN_IF_ERROR(CheckFlag(word));
    if (const auto it = runtime_->flag_clocks_.find(word); it != runtime_->flag_clocks_.end()) {
      Merge(state_.clock, it->second);
    }
    return SubmitFlag(Work::Kind::kWaitFlag, const_cast<uint64_t*>(word), value);
  }

  void* native() override { return nullptr; }

 private:
  absl::Status SubmitFlag(Work::Kind kind, uint64_t* word, uint64_t value)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(runtime_->mutex_) {
    auto work = std::make_unique<Work>();
    work->kind = kind;
    work->name = "flag";
    work->word = word;
    work->value = value;
    return runtime_->Submit(state_, std::move(work));
  }
  absl::Status CheckFlag(const uint64_t* word) ABSL_EXCLUSIVE_LOCKS_REQUIRED(runtime_->mutex_) {
    const auto* data = reinterpret_cast<const std::byte*>(word);
    if (reinterpret_cast<uintptr_t>(word) % sizeof(uint64_t) == 0 &&
        runtime_->IsRegistered(data, sizeof(uint64_t))) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(absl::StrFormat(
        "host device: flag word at %p is not 8-aligned in registered host memory", word));
  }
  absl::Status CheckEnd(const std::byte* data, int64_t bytes, bool device)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(runtime_->mutex_) {
    if (bytes <= 0 || data == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("host device: a copy of %d bytes at %p", bytes, data));
    }
    if (device != runtime_->IsDevice(data, bytes)) {
      runtime_->Misuse(absl::StrFormat("a copy at %p of %d bytes, which are not %s memory", data,
                                       bytes, device ? "device" : "host"));
      return absl::InvalidArgumentError("host device: a copy outside of buffers");
    }
    if (runtime_->IsNotedFree(data, bytes)) {
      runtime_->Misuse(absl::StrFormat("a copy at %p of %d bytes, which are free", data, bytes));
      return absl::InvalidArgumentError("host device: a copy of free memory");
    }
    return absl::OkStatus();
  }

  HostRuntime* const runtime_;
  HostRuntime::StreamState state_;  // guarded by the runtime's mutex_
};

HostRuntime::HostRuntime(const HostRuntimeOptions& options)
    : options_(options),
      info_{options.uuid, "host", options.memory_bytes},
      random_(static_cast<std::minstd_rand::result_type>(options.seed)) {
  if (options_.schedule == HostRuntimeOptions::Schedule::kThread) {
    thread_ = std::thread([this] { Run(); });
  }
}

HostRuntime::~HostRuntime() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    PAGODA_CHECK(streams_.empty());
    PAGODA_CHECK(buffers_.empty());
    PAGODA_CHECK(registered_.empty());
  }
  if (thread_.joinable()) thread_.join();
}

absl::Status HostRuntime::health() const {
  absl::MutexLock lock(&mutex_);
  return health_;
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> HostRuntime::Allocate(int64_t bytes,
                                                                    DeviceSharing sharing) {
  if (bytes <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat("host device: a buffer of %d bytes", bytes));
  }
  const bool exportable = sharing == DeviceSharing::kExportable;
  const int64_t taken = exportable ? AlignUp(bytes, kMapBytes) : bytes;
  {
    absl::MutexLock lock(&mutex_);
    PAGODA_RETURN_IF_ERROR(TakeFault(HostCall::kAllocate));
    if (used_bytes_ + taken > options_.memory_bytes) {
      return absl::ResourceExhaustedError(
          absl::StrFormat("host device: asked %d bytes, %d of %d free", taken,
                          options_.memory_bytes - used_bytes_, options_.memory_bytes));
    }
    used_bytes_ += taken;
  }
  UniqueFd fd;
  absl::StatusOr<std::byte*> data = nullptr;
  if (exportable) {
    fd = UniqueFd(memfd_create("pagoda-device", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (!fd.valid() || ftruncate(fd.get(), taken) != 0 ||
        fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
      data = absl::UnavailableError(absl::StrFormat("host device: memfd: %s", strerror(errno)));
    } else {
      data = MapMemfd(fd.get(), taken);
    }
  } else {
    void* memory = nullptr;
    PAGODA_CHECK(posix_memalign(&memory, kAlignBytes, static_cast<size_t>(taken)) == 0);
    data = static_cast<std::byte*>(memory);
  }
  if (!data.ok()) {
    absl::MutexLock lock(&mutex_);
    used_bytes_ -= taken;
    return data.status();
  }
  return std::make_unique<HostBuffer>(this, *data, taken, taken, std::move(fd));
}

absl::StatusOr<std::unique_ptr<DeviceStream>> HostRuntime::NewStream() {
  PAGODA_RETURN_IF_ERROR(health());
  return std::make_unique<HostStream>(this);
}

absl::StatusOr<std::unique_ptr<DeviceEvent>> HostRuntime::NewEvent() {
  PAGODA_RETURN_IF_ERROR(health());
  return std::make_unique<HostEvent>(this);
}

absl::StatusOr<std::unique_ptr<HostRegistration>> HostRuntime::RegisterHost(std::byte* data,
                                                                            int64_t bytes) {
  if (bytes <= 0 || bytes % kMapBytes != 0 || reinterpret_cast<uintptr_t>(data) % kMapBytes != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "host device: registers %d bytes at %p; both must be multiples of 4096", bytes, data));
  }
  absl::MutexLock lock(&mutex_);
  PAGODA_RETURN_IF_ERROR(TakeFault(HostCall::kRegister));
  registered_.emplace(data, bytes);
  return std::make_unique<HostRegistrationImpl>(this, data, bytes);
}

absl::Status HostRuntime::Await(DeviceEvent& event, absl::Duration timeout) {
  const EventState& state = *static_cast<HostEvent&>(event).state_;
  const absl::Time end = absl::Now() + timeout;
  absl::MutexLock lock(&mutex_);
  while (true) {
    const absl::StatusOr<bool> done = EventDone(state);
    if (!done.ok()) return done.status();
    if (*done) return absl::OkStatus();
    if (options_.schedule == HostRuntimeOptions::Schedule::kManual) {
      if (StepLocked()) continue;
      return absl::DeadlineExceededError("host device: the event waits for what nobody does");
    }
    const auto ended = [this, &state]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !health_.ok() || state.done >= state.recorded;
    };
    if (!mutex_.AwaitWithDeadline(absl::Condition(&ended), end)) {
      return absl::DeadlineExceededError(absl::StrFormat("host device: an event was not done in %s",
                                                         absl::FormatDuration(timeout)));
    }
  }
}

absl::StatusOr<MemoryHandle> HostRuntime::Export(const DeviceBuffer& buffer) {
  {
    absl::MutexLock lock(&mutex_);
    PAGODA_RETURN_IF_ERROR(TakeFault(HostCall::kExport));
  }
  const auto& host = static_cast<const HostBuffer&>(buffer);
  PAGODA_CHECK(host.fd() >= 0);
  MemoryHandle handle;
  handle.kind = MemoryHandle::Kind::kMemfd;
  handle.uuid = info_.uuid;
  handle.bytes = buffer.bytes();
  handle.fd = UniqueFd(fcntl(host.fd(), F_DUPFD_CLOEXEC, 0));
  if (!handle.fd.valid()) {
    return absl::UnavailableError(absl::StrFormat("host device: dup: %s", strerror(errno)));
  }
  return handle;
}

absl::StatusOr<std::unique_ptr<DeviceBuffer>> HostRuntime::Import(MemoryHandle handle) {
  {
    absl::MutexLock lock(&mutex_);
    PAGODA_RETURN_IF_ERROR(TakeFault(HostCall::kImport));
  }
  if (handle.kind != MemoryHandle::Kind::kMemfd) {
    return absl::UnimplementedError("host device: a handle of a GPU's memory");
  }
  if (handle.uuid != info_.uuid) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "host device: memory of %s, this is %s", handle.uuid.ToString(), info_.uuid.ToString()));
  }
  // Sealed and long enough, or an access would end this process.
  struct stat status {};
  if (!handle.fd.valid() || fstat(handle.fd.get(), &status) != 0 || handle.bytes <= 0 ||
      status.st_size < handle.bytes || (fcntl(handle.fd.get(), F_GET_SEALS) & kSeals) != kSeals) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "host device: no sealed memfd of %d bytes came with the handle", handle.bytes));
  }
  PAGODA_ASSIGN_OR_RETURN(std::byte * data, MapMemfd(handle.fd.get(), handle.bytes));
  return std::make_unique<HostBuffer>(this, data, handle.bytes, 0, std::move(handle.fd));
}

void HostRuntime::NoteFreed(const std::byte* data, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  CheckFree(data, bytes, "memory was noted as free");
  Carve(data, bytes);
  noted_free_.emplace(data, bytes);
}

void HostRuntime::NoteOwned(const std::byte* data, int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  Carve(data, bytes);
}

bool HostRuntime::Step() {
  PAGODA_CHECK(options_.schedule == HostRuntimeOptions::Schedule::kManual);
  absl::MutexLock lock(&mutex_);
  return StepLocked();
}

int64_t HostRuntime::unfinished_count() const {
  absl::MutexLock lock(&mutex_);
  int64_t count = 0;
  for (const StreamState* stream : streams_) count += static_cast<int64_t>(stream->queue.size());
  return count;
}

int64_t HostRuntime::used_bytes() const {
  absl::MutexLock lock(&mutex_);
  return used_bytes_;
}

void HostRuntime::FailNext(HostCall call, absl::Status status, int64_t skipped) {
  absl::MutexLock lock(&mutex_);
  faults_.push_back({call, std::move(status), skipped});
}

void HostRuntime::FailPieceAfter(int64_t pieces) {
  absl::MutexLock lock(&mutex_);
  pieces_left_ = pieces;
}

void HostRuntime::Lose(absl::string_view reason) {
  absl::MutexLock lock(&mutex_);
  LoseLocked(reason);
}

std::vector<std::string> HostRuntime::misuses() const {
  absl::MutexLock lock(&mutex_);
  return misuses_;
}

absl::Status HostRuntime::TakeFault(HostCall call) {
  PAGODA_RETURN_IF_ERROR(health_);
  absl::Status status;
  for (auto it = faults_.begin(); it != faults_.end();) {
    if (it->call != call || it->skipped-- > 0) {
      ++it;
      continue;
    }
    status = std::move(it->status);
    it = faults_.erase(it);
  }
  return status;
}

absl::Status HostRuntime::Submit(StreamState& stream, std::unique_ptr<Work> work) {
  PAGODA_RETURN_IF_ERROR(health_);
  work->number = ++stream.submitted;
  stream.clock[stream.id] = work->number;
  work->before = stream.clock;
  CheckOrder(stream, *work);
  stream.queue.push_back(std::move(work));
  return absl::OkStatus();
}

// Of the new work against all that is unfinished in other streams, and of its pieces among
// themselves.
void HostRuntime::CheckOrder(const StreamState& stream, const Work& work) {
  for (const StreamState* other : streams_) {
    if (other == &stream) continue;
    const auto known = work.before.find(other->id);
    for (const auto& earlier : other->queue) {
      if (known != work.before.end() && known->second >= earlier->number) continue;
      for (const Range& a : earlier->ranges) {
        for (const Range& b : work.ranges) {
          if (!(a.writes || b.writes) || !a.Overlaps(b.begin, b.bytes)) continue;
          return Misuse(absl::StrFormat(
              "%s of stream %d and unfinished %s of stream %d meet at %p, nothing orders them",
              work.name, stream.id, earlier->name, other->id, b.begin));
        }
      }
    }
  }
  for (size_t i = 0; i < work.ranges.size(); ++i) {
    for (size_t j = 0; work.ranges[i].writes && j < work.ranges.size(); ++j) {
      const Range& other = work.ranges[j];
      if (i == j || !work.ranges[i].Overlaps(other.begin, other.bytes)) continue;
      return Misuse(absl::StrFormat("pieces of one %s of stream %d meet at %p", work.name,
                                    stream.id, other.begin));
    }
  }
}

absl::StatusOr<bool> HostRuntime::EventDone(const EventState& event) {
  PAGODA_RETURN_IF_ERROR(health_);
  if (event.recorded == 0) {
    return absl::FailedPreconditionError("host device: an event never recorded");
  }
  return event.done >= event.recorded;
}

bool HostRuntime::IsRunnable(const StreamState& stream) const {
  if (stream.queue.empty()) return false;
  const Work& head = *stream.queue.front();
  if (head.kind == Work::Kind::kWaitEvent) return head.event->done >= head.event_number;
  if (head.kind == Work::Kind::kWaitFlag) return LoadFlag(head.word) >= head.value;
  return true;
}

bool HostRuntime::AnyRunnable() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [this](const StreamState* stream)
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return IsRunnable(*stream); });
}

bool HostRuntime::AnyQueued() const {
  return std::any_of(streams_.begin(), streams_.end(),
                     [](const StreamState* stream) { return !stream->queue.empty(); });
}

bool HostRuntime::StepLocked() {
  AwaitPiece();
  std::vector<StreamState*> runnable;
  for (StreamState* stream : streams_) {
    if (IsRunnable(*stream)) runnable.push_back(stream);
  }
  if (runnable.empty()) return false;
  StreamState& stream = *runnable[random_() % runnable.size()];
  Work& work = *stream.queue.front();
  switch (work.kind) {
    case Work::Kind::kPieces:
      RunPiece(work);
      if (!health_.ok() || work.piece_done_count < work.pieces.size()) return true;
      break;
    case Work::Kind::kRecord:
      work.event->done = std::max(work.event->done, work.event_number);
      break;
    case Work::Kind::kWriteFlag:
      StoreFlag(work.word, work.value);
      break;
    case Work::Kind::kWaitEvent:
    case Work::Kind::kWaitFlag:
      break;
  }
  stream.queue.pop_front();
  return true;
}

void HostRuntime::RunPiece(Work& work) {
  const size_t left = work.pieces.size() - work.piece_done_count;
  if (left == 0) return;  // an empty batch
  // The pieces that are done stand in front.
  std::swap(work.pieces[work.piece_done_count],
            work.pieces[work.piece_done_count + random_() % left]);
  const Piece& piece = work.pieces[work.piece_done_count];
  if (pieces_left_ == 0) return LoseLocked("an injected fault of a copy");
  if (pieces_left_ > 0) --pieces_left_;
  if (!piece.skipped) {
    running_ = true;
    mutex_.Unlock();
    const auto bytes = static_cast<size_t>(piece.copy.bytes);
    if (piece.copy.source == nullptr) {
      std::memset(piece.copy.target, 0, bytes);
    } else {
      std::memcpy(piece.copy.target, piece.early.empty() ? piece.copy.source : piece.early.data(),
                  bytes);
    }
    mutex_.Lock();
    running_ = false;
  }
  ++work.piece_done_count;
}

void HostRuntime::AwaitPiece() {
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !running_; };
  mutex_.Await(absl::Condition(&idle));
}

void HostRuntime::LoseLocked(absl::string_view reason) {
  AwaitPiece();
  if (!health_.ok()) return;
  health_ = absl::UnavailableError(absl::StrFormat(
      "device %s is lost: %s; restart the process to use it again", info_.uuid.ToString(), reason));
  for (StreamState* stream : streams_) stream->queue.clear();
}

void HostRuntime::CheckFree(const std::byte* data, int64_t bytes, absl::string_view how) {
  AwaitPiece();
  for (StreamState* stream : streams_) {
    for (const auto& work : stream->queue) {
      bool touched = work->word != nullptr &&
                     Range{data, bytes}.Overlaps(reinterpret_cast<const std::byte*>(work->word), 8);
      for (const Range& range : work->ranges) touched |= range.Overlaps(data, bytes);
      if (!touched) continue;
      Misuse(absl::StrFormat("%s while an unfinished %s of stream %d touches it", how, work->name,
                             stream->id));
      // Not to be run: the bytes go.
      for (Piece& piece : work->pieces) piece.skipped = true;
      if (work->word != nullptr) work->kind = Work::Kind::kPieces;
    }
  }
}

// Takes a range out of noted_free_.
void HostRuntime::Carve(const std::byte* data, int64_t bytes) {
  auto it = noted_free_.upper_bound(data);
  if (it != noted_free_.begin()) --it;
  while (it != noted_free_.end() && it->first < data + bytes) {
    const auto [begin, size] = *it;
    if (!Range{begin, size}.Overlaps(data, bytes)) {
      ++it;
      continue;
    }
    it = noted_free_.erase(it);
    if (begin < data) noted_free_.emplace(begin, data - begin);
    if (begin + size > data + bytes) {
      noted_free_.emplace(data + bytes, begin + size - (data + bytes));
    }
  }
}

bool HostRuntime::IsDevice(const std::byte* data, int64_t bytes) const {
  return Contains(buffers_, data, bytes);
}

bool HostRuntime::IsRegistered(const std::byte* data, int64_t bytes) const {
  return Contains(registered_, data, bytes);
}

bool HostRuntime::IsNotedFree(const std::byte* data, int64_t bytes) const {
  auto it = noted_free_.upper_bound(data);
  if (it != noted_free_.end() && it->first < data + bytes) return true;
  if (it == noted_free_.begin()) return false;
  --it;
  return Range{it->first, it->second}.Overlaps(data, bytes);
}

void HostRuntime::Misuse(std::string what) {
  if (options_.abort_on_misuse) {
    std::fprintf(stderr, "device misuse: %s\n", what.c_str());
    std::abort();
  }
  misuses_.push_back(std::move(what));
}

void HostRuntime::Run() {
  absl::MutexLock lock(&mutex_);
  const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || AnyQueued();
  };
  const auto runnable = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || AnyRunnable();
  };
  while (true) {
    mutex_.Await(absl::Condition(&wanted));
    // Another process, or a thread that does not know us, may write the flag that a stream is
    // waiting for.
    mutex_.AwaitWithTimeout(absl::Condition(&runnable), kFlagPoll);
    if (stopping_) return;
    StepLocked();
  }
}

}  // namespace pagoda
