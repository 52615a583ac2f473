#include "storage/device/tier_mover.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "storage/base/check.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"

namespace pagoda {

absl::Status MoverOptions::Validate() const {
  if (bytes_in_flight_max <= 0 || moves_in_flight_max <= 0 || layers_max <= 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "mover: bytes_in_flight_max %d, moves_in_flight_max %d and layers_max %d must be positive",
        bytes_in_flight_max, moves_in_flight_max, layers_max));
  }
  return absl::OkStatus();
}

LayerMove::~LayerMove() {
  absl::MutexLock lock(&pool_->mutex);
  for (auto& event : events_) pool_->free.push_back(std::move(event));
}

std::optional<absl::Status> LayerMove::result() const {
  absl::MutexLock lock(&mutex_);
  return result_;
}

bool LayerMove::SetResult(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  if (result_.has_value()) return false;
  result_ = status;
  return true;
}

absl::Status LayerMove::LayerError(size_t layer) const {
  if (layer >= events_.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("mover: layer %d of a move of %d", layer, events_.size()));
  }
  absl::MutexLock lock(&mutex_);
  return result_.value_or(absl::OkStatus());
}

absl::Status LayerMove::WaitLayer(DeviceStream& consumer, size_t layer) {
  PAGODA_RETURN_IF_ERROR(LayerError(layer));
  return consumer.WaitFor(*events_[layer]);
}

absl::Status LayerMove::AwaitLayer(size_t layer, absl::Duration timeout) {
  PAGODA_RETURN_IF_ERROR(LayerError(layer));
  return runtime_.Await(*events_[layer], timeout);
}

absl::StatusOr<std::unique_ptr<TierMover>> TierMover::Create(DeviceRuntime& runtime,
                                                             const Clock& clock,
                                                             const MoverOptions& options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<TierMover> mover(new TierMover(runtime, clock, options));
  for (Lane& lane : mover->lanes_) {
    absl::MutexLock lock(&lane.mutex);
    PAGODA_ASSIGN_OR_RETURN(lane.stream, runtime.NewStream());
  }
  if (options.own_thread) mover->thread_ = std::thread([mover = mover.get()] { mover->Run(); });
  return mover;
}

TierMover::TierMover(DeviceRuntime& runtime, const Clock& clock, const MoverOptions& options)
    : runtime_(runtime),
      clock_(clock),
      options_(options),
      events_(std::make_shared<LayerMove::EventPool>()) {}

TierMover::~TierMover() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (thread_.joinable()) thread_.join();
  const absl::Duration end = SystemClock().Monotonic() + options_.drain_timeout;
  while (Poll() > 0 && SystemClock().Monotonic() < end) absl::SleepFor(options_.poll_pause);
  {
    absl::MutexLock lock(&mutex_);
    if (in_flight_.empty()) return;
    // The device may still write there: better lost than given to somebody else.
    LogError("mover_abandoned", {{"moves", absl::StrCat(in_flight_.size())},
                                 {"bytes", absl::StrCat(stats_.in_flight_bytes)}});
    new std::deque<InFlight>(std::move(in_flight_));
  }
  for (Lane& lane : lanes_) {
    absl::MutexLock lock(&lane.mutex);
    (void)lane.stream.release();
  }
}

absl::Status TierMover::Check(const Move& move) const {
  if (move.direction == CopyDirection::kWithinDevice) {
    return absl::InvalidArgumentError("mover: moves are between host and device");
  }
  if (move.layers.empty() || move.layers.size() > static_cast<size_t>(options_.layers_max)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "mover: a move of %d layers, from 1 to %d fit", move.layers.size(), options_.layers_max));
  }
  return absl::OkStatus();
}

absl::Status TierMover::TakeEvents(size_t count, LayerMove& move) {
  {
    absl::MutexLock lock(&events_->mutex);
    while (move.events_.size() < count && !events_->free.empty()) {
      move.events_.push_back(std::move(events_->free.back()));
      events_->free.pop_back();
    }
  }
  while (move.events_.size() < count) {
    PAGODA_ASSIGN_OR_RETURN(auto event, runtime_.NewEvent());
    move.events_.push_back(std::move(event));
  }
  return absl::OkStatus();
}

absl::Status TierMover::Enqueue(const Move& move, LayerMove& layers, DeviceStream& stream,
                                bool& touched) {
  if (move.after != nullptr) PAGODA_RETURN_IF_ERROR(stream.WaitFor(*move.after));
  for (size_t i = 0; i < move.layers.size(); ++i) {
    touched = true;  // an error of the copy does not say that no part of it was taken
    PAGODA_RETURN_IF_ERROR(stream.CopyBatch(move.direction, move.layers[i]));
    PAGODA_RETURN_IF_ERROR(stream.Record(*layers.events_[i]));
    if (move.progress == nullptr) continue;
    PAGODA_RETURN_IF_ERROR(stream.WriteFlag(move.progress, move.progress_base + i + 1));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<LayerMove>> TierMover::Submit(Move move) {
  PAGODA_RETURN_IF_ERROR(Check(move));
  InFlight flight;
  for (const auto& layer : move.layers) {
    for (const CopyPiece& piece : layer) flight.bytes += piece.bytes;
  }
  {
    absl::MutexLock lock(&mutex_);
    if (stats_.in_flight_count >= options_.moves_in_flight_max ||
        stats_.in_flight_bytes + flight.bytes > options_.bytes_in_flight_max) {
      ++stats_.refused_count;
      return absl::ResourceExhaustedError(
          absl::StrFormat("mover: asked %d bytes; %d of %d bytes and %d of %d moves are under way",
                          flight.bytes, stats_.in_flight_bytes, options_.bytes_in_flight_max,
                          stats_.in_flight_count, options_.moves_in_flight_max));
    }
    stats_.in_flight_bytes += flight.bytes;
    ++stats_.in_flight_count;
  }
  flight.move = std::shared_ptr<LayerMove>(new LayerMove(runtime_, events_));
  flight.direction = move.direction;
  flight.keep = std::move(move.keep);
  flight.deadline = clock_.Monotonic() + move.timeout;
  bool touched = false;
  absl::Status status = TakeEvents(move.layers.size(), *flight.move);
  Lane& lane = lanes_[static_cast<size_t>(move.direction)];
  // The lane's lock is held until the move is listed: moves of a lane end in order.
  absl::MutexLock lane_lock(&lane.mutex);
  if (status.ok()) status = Enqueue(move, *flight.move, *lane.stream, touched);
  flight.recorded = status.ok();
  if (status.ok()) {
    flight.done = std::move(move.done);
  } else {
    flight.move->SetResult(status);
  }
  const std::shared_ptr<LayerMove> layers = flight.move;
  absl::MutexLock lock(&mutex_);
  if (!status.ok()) ++stats_.failed_count;
  if (status.ok() || touched) {
    in_flight_.push_back(std::move(flight));  // also a failed one, until the device is done with it
  } else {
    stats_.in_flight_bytes -= flight.bytes;
    --stats_.in_flight_count;
  }
  if (!status.ok()) return status;
  return layers;
}

void TierMover::Cancel(LayerMove& move) {
  move.SetResult(absl::CancelledError("mover: cancelled"));
}

std::optional<absl::Status> TierMover::Ended(InFlight& flight) {
  DeviceEvent& last = *flight.move->events_.back();
  if (!flight.recorded) {
    Lane& lane = lanes_[static_cast<size_t>(flight.direction)];
    absl::MutexLock lock(&lane.mutex);
    flight.recorded = lane.stream->Record(last).ok();
    if (!flight.recorded) {
      // Of a lost device nothing runs; of one that only refuses, what was begun may.
      const absl::Status health = runtime_.health();
      if (health.ok()) return std::nullopt;
      return health;
    }
  }
  const absl::StatusOr<bool> done = last.Done();
  if (!done.ok()) return done.status();
  if (!*done) return std::nullopt;
  return absl::OkStatus();
}

int64_t TierMover::Poll() {
  std::deque<InFlight> looked_at;
  {
    absl::MutexLock lock(&mutex_);
    looked_at.swap(in_flight_);
  }
  const absl::Duration now = clock_.Monotonic();
  std::deque<InFlight> left;
  MoverStats change;
  bool lane_waits[2] = {};
  for (InFlight& flight : looked_at) {
    // Of moves that end in order, those behind one that has not ended need no question.
    bool& waits = lane_waits[static_cast<size_t>(flight.direction)];
    const std::optional<absl::Status> ended = waits ? std::nullopt : Ended(flight);
    waits |= flight.recorded && !ended.has_value();
    if (ended.has_value()) {
      if (flight.move->SetResult(*ended)) {
        ++(ended->ok() ? change.done_count : change.failed_count);
        if (ended->ok()) {
          change.bytes_by_direction[static_cast<size_t>(flight.direction)] += flight.bytes;
        }
      }
    } else if (now >= flight.deadline &&
               flight.move->SetResult(absl::DeadlineExceededError(
                   absl::StrFormat("mover: %d bytes %s were not there in time", flight.bytes,
                                   CopyDirectionName(flight.direction))))) {
      ++change.timed_out_count;
    }
    const std::optional<absl::Status> result = flight.move->result();
    if (result.has_value() && flight.done) std::exchange(flight.done, nullptr)(*result);
    if (!ended.has_value()) {
      left.push_back(std::move(flight));
      continue;
    }
    change.in_flight_bytes += flight.bytes;
    ++change.in_flight_count;
    flight.keep.clear();
  }
  absl::MutexLock lock(&mutex_);
  // What was submitted meanwhile stands behind.
  for (auto it = left.rbegin(); it != left.rend(); ++it) in_flight_.push_front(std::move(*it));
  for (size_t i = 0; i < 2; ++i) stats_.bytes_by_direction[i] += change.bytes_by_direction[i];
  stats_.done_count += change.done_count;
  stats_.failed_count += change.failed_count;
  stats_.timed_out_count += change.timed_out_count;
  stats_.in_flight_bytes -= change.in_flight_bytes;
  stats_.in_flight_count -= change.in_flight_count;
  return stats_.in_flight_count;
}

MoverStats TierMover::stats() const {
  absl::MutexLock lock(&mutex_);
  return stats_;
}

void TierMover::Run() {
  const auto wanted = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || stats_.in_flight_count > 0;
  };
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&wanted));
      if (stopping_) return;
    }
    if (Poll() > 0) absl::SleepFor(options_.poll_pause);
  }
}

}  // namespace pagoda
