// The client's end of pages in device memory: one connection to the daemon of this machine, the
// memory that it has shared with this process, and how far this process has read it
// (proto/shm_protocol.h, storage/device/memory_import.h).
//
// Threads    every method from any thread; one request is under way at a time, and who would wait
//            for it longer than a moment is told UNAVAILABLE
// Ownership  pages hold their channel, and with it the maps; the device outlives both
// Errors     UNAVAILABLE, DEADLINE_EXCEEDED   the daemon is away or slow, or the channel is busy
//            UNIMPLEMENTED, FAILED_PRECONDITION   there is nothing to share: no device there, or
//                                                 another one
//            others come from the daemon or the device, or name what it sent that cannot be
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "client/client.h"
#include "client/shm_channel.h"

namespace pagoda::client {

class DeviceChannel {
 public:
  static absl::StatusOr<std::shared_ptr<DeviceChannel>> Connect(const std::string& path,
                                                                const std::string& session_id,
                                                                DeviceRuntime& device,
                                                                absl::Duration timeout);
  virtual ~DeviceChannel() = default;

  // Those pages, as far as they are in device memory; they may still be on their way there.
  virtual absl::StatusOr<std::unique_ptr<DevicePages>> Map(const ShmChannel::Wanted& wanted) = 0;
  // Now and then: streams that wait for pages of a daemon that is gone, or late, wait no longer.
  virtual void Watch() = 0;
  // OK, or why nothing comes any more.
  virtual absl::Status health() const = 0;
};

// The channel of the current session, made when it is first wanted. One that could not be made, or
// broke, is made again after a pause, unless there is nothing to share. Null device: there is none.
class DeviceLink {
 public:
  // `pause`: after the first failure of a session; twice as long after each further one, as each
  // may leave memory with the daemon until this process ends.
  DeviceLink(DeviceRuntime* device, absl::Duration pause) : device_(device), first_pause_(pause) {}

  // Where the daemon's socket is, and the session with it.
  absl::StatusOr<std::unique_ptr<DevicePages>> Map(const std::string& path,
                                                   const std::string& session_id,
                                                   const ShmChannel::Wanted& wanted)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  absl::StatusOr<std::shared_ptr<DeviceChannel>> ChannelOf(const std::string& path,
                                                           const std::string& session_id,
                                                           absl::Duration timeout)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // There is no channel, and none for a while.
  void Fail(absl::Status why) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  DeviceRuntime* const device_;
  const absl::Duration first_pause_;

  absl::Mutex mutex_;
  std::string session_id_ ABSL_GUARDED_BY(mutex_);         // of the latest try
  std::string former_session_id_ ABSL_GUARDED_BY(mutex_);  // before that
  absl::Duration pause_ ABSL_GUARDED_BY(mutex_);
  absl::Duration next_try_ ABSL_GUARDED_BY(mutex_);  // on the monotonic clock
  absl::StatusOr<std::shared_ptr<DeviceChannel>> channel_ ABSL_GUARDED_BY(mutex_) =
      absl::UnavailableError("device memory: not tried yet");
  bool connecting_ ABSL_GUARDED_BY(mutex_) = false;
  // Broken, or of sessions before, and perhaps still waited for.
  std::vector<std::shared_ptr<DeviceChannel>> old_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace pagoda::client
