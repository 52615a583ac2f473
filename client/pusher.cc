#include "client/pusher.h"

#include <atomic>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "kernels/aligned_buffer.h"
#include "storage/base/clock.h"

namespace pagoda::client {
namespace {

int64_t BytesOf(const PushItem& item) {
  int64_t bytes = 0;
  for (const ByteSpan segment : item.segments) bytes += static_cast<int64_t>(segment.size());
  return bytes;
}

class PusherImpl : public Pusher {
 public:
  PusherImpl(PushConfig config, std::shared_ptr<ShmPushChannel> shm,
             std::function<std::shared_ptr<PushStream>(PushConfig, PushCallback)> open_stream,
             PushCallback callback, PusherEvents events)
      : state_(std::make_shared<State>()) {
    state_->config = std::move(config);
    state_->shm = std::move(shm);
    state_->open_stream = std::move(open_stream);
    state_->callback = std::move(callback);
    state_->events = std::move(events);
    if (state_->shm == nullptr) state_->StartStream();
  }
  ~PusherImpl() override { state_->Cancel(); }

  absl::Status Push(PushItem item) override { return state_->Push(std::move(item), state_); }
  absl::Status Flush(absl::Duration timeout) override { return state_->Flush(timeout); }
  PushMemory Reserve(int64_t bytes) override { return state_->Reserve(bytes); }

 private:
  struct State {
    PushConfig config;
    std::shared_ptr<ShmPushChannel> shm;
    std::function<std::shared_ptr<PushStream>(PushConfig, PushCallback)> open_stream;
    PushCallback callback;
    PusherEvents events;
    const std::shared_ptr<std::atomic<bool>> cancelled = std::make_shared<std::atomic<bool>>(false);

    absl::Mutex mutex;
    std::shared_ptr<PushStream> stream ABSL_GUARDED_BY(mutex);  // once it is needed, for good
    int64_t shm_pages ABSL_GUARDED_BY(mutex) = 0;               // unanswered
    int64_t shm_bytes ABSL_GUARDED_BY(mutex) = 0;

    std::shared_ptr<PushStream> StartStream() ABSL_LOCKS_EXCLUDED(mutex) {
      absl::MutexLock lock(&mutex);
      if (stream == nullptr && !cancelled->load()) stream = open_stream(config, callback);
      return stream;
    }

    absl::Status Push(PushItem item, const std::shared_ptr<State>& self)
        ABSL_LOCKS_EXCLUDED(mutex) {
      if (item.segments.empty() || item.segments.size() != item.segment_crc32c.size()) {
        return absl::InvalidArgumentError(
            "push: one checksum for each segment, at least one segment");
      }
      const int64_t bytes = BytesOf(item);
      if (bytes == 0) return absl::InvalidArgumentError("push: a page without bytes");
      std::shared_ptr<PushStream> over_grpc;
      {
        absl::MutexLock lock(&mutex);
        // Not before those that are to follow there from shared memory.
        if (shm_pages == 0) over_grpc = stream;
        if (over_grpc == nullptr) {
          if (shm_bytes + bytes > config.queue_bytes_max) {
            return absl::ResourceExhaustedError(absl::StrCat(
                "push queue: ", shm_bytes, " of ", config.queue_bytes_max, " bytes in use"));
          }
          ++shm_pages;
          shm_bytes += bytes;
        }
      }
      if (over_grpc != nullptr) return over_grpc->Push(std::move(item));
      ShmPushChannel::Page page;
      page.item = std::move(item);
      page.cancelled = cancelled;
      page.done = [self, bytes, start = SystemClock().Monotonic()](
                      PushItem done, const absl::StatusOr<PushOutcome>& outcome, bool not_taken) {
        self->Answered(std::move(done), bytes, start, outcome, not_taken);
      };
      if (shm->Push(config, page).ok()) return absl::OkStatus();
      Leave(bytes);
      events.on_fallback();
      over_grpc = StartStream();
      if (over_grpc == nullptr) return absl::CancelledError("push: cancelled");
      return over_grpc->Push(std::move(page.item));
    }

    void Answered(PushItem item, int64_t bytes, absl::Duration start,
                  const absl::StatusOr<PushOutcome>& outcome, bool not_taken)
        ABSL_LOCKS_EXCLUDED(mutex) {
      const PageKey key = item.key;
      if (!not_taken) {
        if (outcome.ok()) events.on_shm_page(bytes, SystemClock().Monotonic() - start);
        if (callback != nullptr) callback(key, outcome);
        return Leave(bytes);
      }
      events.on_fallback();
      absl::Status status = absl::CancelledError("push: cancelled");
      if (const std::shared_ptr<PushStream> over_grpc = StartStream(); over_grpc != nullptr) {
        status = over_grpc->Push(std::move(item));
      }
      if (!status.ok() && callback != nullptr) callback(key, status);
      Leave(bytes);
    }

    void Leave(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex) {
      absl::MutexLock lock(&mutex);
      --shm_pages;
      shm_bytes -= bytes;
    }

    absl::Status Flush(absl::Duration timeout) ABSL_LOCKS_EXCLUDED(mutex) {
      const absl::Duration end = SystemClock().Monotonic() + timeout;
      std::shared_ptr<PushStream> over_grpc;
      {
        absl::MutexLock lock(&mutex);
        const auto none = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex) { return shm_pages == 0; };
        if (!mutex.AwaitWithTimeout(absl::Condition(&none), timeout)) {
          return absl::DeadlineExceededError(absl::StrCat(shm_pages, " pushed pages unanswered"));
        }
        over_grpc = stream;
      }
      if (over_grpc == nullptr) return absl::OkStatus();
      return over_grpc->Flush(std::max(end - SystemClock().Monotonic(), absl::Milliseconds(1)));
    }

    PushMemory Reserve(int64_t bytes) {
      if (shm != nullptr) {
        absl::StatusOr<PushMemory> memory = shm->Reserve(bytes);
        if (memory.ok()) return *std::move(memory);
      }
      auto buffer =
          std::make_shared<kernels::AlignedBuffer>(kernels::AlignedBuffer::Uninitialized(bytes));
      PushMemory memory;
      memory.bytes = buffer->mutable_span();
      memory.owner = std::move(buffer);
      return memory;
    }

    void Cancel() ABSL_LOCKS_EXCLUDED(mutex) {
      cancelled->store(true);
      std::shared_ptr<PushStream> over_grpc;
      {
        absl::MutexLock lock(&mutex);
        over_grpc = stream;
      }
      if (over_grpc != nullptr) over_grpc->Cancel();
    }
  };

  const std::shared_ptr<State> state_;
};

}  // namespace

std::unique_ptr<Pusher> MakePusher(
    PushConfig config, std::shared_ptr<ShmPushChannel> shm,
    std::function<std::shared_ptr<PushStream>(PushConfig, PushCallback)> open_stream,
    PushCallback callback, PusherEvents events) {
  return std::make_unique<PusherImpl>(std::move(config), std::move(shm), std::move(open_stream),
                                      std::move(callback), std::move(events));
}

}  // namespace pagoda::client
