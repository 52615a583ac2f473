// The clients that are alive. A session lives while its stream does and while it is not silent for
// longer than the timeout; when it ends, whatever worked for it is told, once.
//
// It knows neither leases nor sequences: who opens the registry frees those in `on_end`.
//
// Threads    every method from any thread. Callbacks come without a lock held.
// Ownership  streams are held until they leave or the session ends.
// Errors     NOT_FOUND           no such session of that tenant: open a new one
//            RESOURCE_EXHAUSTED  sessions_max, or streams_per_session_max
//            UNAVAILABLE         draining: no new sessions
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "cache-server/caller.h"
#include "cache-server/sequence_table.h"
#include "storage/base/clock.h"

namespace pagoda {

enum class SessionEndReason : uint8_t { kClosed = 0, kTimeout = 1, kShutdown = 2 };
constexpr int kSessionEndReasonCount = 3;
absl::string_view SessionEndReasonName(SessionEndReason reason);

// A stream that works for a session.
class SessionStream {
 public:
  virtual ~SessionStream() = default;
  // Gives back everything; the session is gone already.
  virtual void OnSessionEnd(SessionEndReason reason) = 0;
  virtual void OnDraining() {}
  // Now and then, of a fetch stream: one that makes no progress is to end.
  virtual void CheckProgress(absl::Duration) {}
  // Who opened the session, of its own stream.
  virtual CallerPtr caller() const { return nullptr; }
};

class SessionRegistry {
 public:
  struct Options {
    uint32_t sessions_max = 256;
    uint32_t streams_per_session_max = 16;  // beside the session's own stream
    absl::Duration timeout = absl::Seconds(10);
  };
  using EndCallback = std::function<void(const SessionId&, SessionEndReason)>;

  SessionRegistry(const Options& options, const Clock& clock, EndCallback on_end);

  // `stream` is the session's own; it hears of the end and of draining.
  absl::StatusOr<SessionId> Open(const std::string& tenant, std::shared_ptr<SessionStream> stream)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // A message came.
  absl::Status Touch(const SessionId& id) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Check(const SessionId& id, const std::string& tenant) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AddStream(const SessionId& id, const std::string& tenant,
                         std::shared_ptr<SessionStream> stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // One beside the push streams, with a small limit of its own. It works for the session's caller,
  // who is returned.
  absl::StatusOr<CallerPtr> AddSideStream(const SessionId& id,
                                          std::shared_ptr<SessionStream> stream)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // One that fetches, with a limit of its own.
  absl::Status AddFetchStream(const SessionId& id, const std::string& tenant,
                              std::shared_ptr<SessionStream> stream) ABSL_LOCKS_EXCLUDED(mutex_);
  // A link to the client's GPU, two at a time: a new one is made before the old is seen to end.
  absl::Status AddPeerStream(const SessionId& id, const std::string& tenant,
                             std::shared_ptr<SessionStream> stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void RemoveStream(const SessionId& id, const SessionStream* stream) ABSL_LOCKS_EXCLUDED(mutex_);
  void CheckFetchProgress() ABSL_LOCKS_EXCLUDED(mutex_);
  // Idempotent.
  void End(const SessionId& id, SessionEndReason reason) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends the sessions that were silent for too long; returns how many.
  int64_t EndSilent() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndAll(SessionEndReason reason) ABSL_LOCKS_EXCLUDED(mutex_);
  // No new sessions from now on; the open ones are told.
  void StartDraining() ABSL_LOCKS_EXCLUDED(mutex_);
  bool draining() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until no session is open; false at the deadline.
  bool AwaitNone(absl::Duration timeout) const ABSL_LOCKS_EXCLUDED(mutex_);
  size_t session_count() const ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Session {
    std::string tenant;
    absl::Duration last_message;  // on the monotonic clock
    std::shared_ptr<SessionStream> own_stream;
    absl::flat_hash_set<std::shared_ptr<SessionStream>> streams;
    absl::flat_hash_set<std::shared_ptr<SessionStream>> side_streams;
    absl::flat_hash_set<std::shared_ptr<SessionStream>> fetch_streams;
    absl::flat_hash_set<std::shared_ptr<SessionStream>> peer_streams;
  };
  void Announce(const SessionId& id, Session session, SessionEndReason reason)
      ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  const Clock& clock_;
  const EndCallback on_end_;

  mutable absl::Mutex mutex_;
  absl::flat_hash_map<SessionId, Session> sessions_ ABSL_GUARDED_BY(mutex_);
  bool draining_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace pagoda
