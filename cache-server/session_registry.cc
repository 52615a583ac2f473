#include "cache-server/session_registry.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/digest.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

// One answer for a session that never was, has ended or is another tenant's.
absl::Status Unknown(const SessionId& id) {
  return absl::NotFoundError(
      absl::StrCat("session ", id.hex(), " is not open; open a new session"));
}

}  // namespace

absl::string_view SessionEndReasonName(SessionEndReason reason) {
  constexpr absl::string_view kNames[] = {"closed", "timeout", "shutdown"};
  return kNames[static_cast<int>(reason)];
}

SessionRegistry::SessionRegistry(const Options& options, const Clock& clock, EndCallback on_end)
    : options_(options), clock_(clock), on_end_(std::move(on_end)) {}

absl::StatusOr<SessionId> SessionRegistry::Open(const std::string& tenant,
                                                std::shared_ptr<SessionStream> stream) {
  const absl::StatusOr<Sha256Digest> random = RandomBytes32();
  if (!random.ok()) return random.status();
  SessionId id;
  std::memcpy(id.bytes.data(), random->data(), id.bytes.size());
  absl::MutexLock lock(&mutex_);
  if (draining_) return absl::UnavailableError("the server is draining; use another one");
  if (sessions_.size() >= options_.sessions_max) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("%d sessions are open, sessions_max", sessions_.size()));
  }
  Session& session = sessions_[id];
  session.tenant = tenant;
  session.last_message = clock_.Monotonic();
  session.own_stream = std::move(stream);
  return id;
}

absl::Status SessionRegistry::Touch(const SessionId& id) {
  absl::MutexLock lock(&mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return Unknown(id);
  found->second.last_message = clock_.Monotonic();
  return absl::OkStatus();
}

absl::Status SessionRegistry::Check(const SessionId& id, const std::string& tenant) const {
  absl::MutexLock lock(&mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second.tenant != tenant) return Unknown(id);
  return absl::OkStatus();
}

absl::Status SessionRegistry::AddStream(const SessionId& id, const std::string& tenant,
                                        std::shared_ptr<SessionStream> stream) {
  absl::MutexLock lock(&mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second.tenant != tenant) return Unknown(id);
  if (found->second.streams.size() >= options_.streams_per_session_max) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "session has %d push streams, staged_pages_per_session_max", found->second.streams.size()));
  }
  found->second.streams.insert(std::move(stream));
  return absl::OkStatus();
}

absl::StatusOr<CallerPtr> SessionRegistry::AddSideStream(const SessionId& id,
                                                         std::shared_ptr<SessionStream> stream) {
  constexpr size_t kSideStreamsMax = 8;  // a client has four
  absl::MutexLock lock(&mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return Unknown(id);
  if (found->second.side_streams.size() >= kSideStreamsMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("session has %d side streams", kSideStreamsMax));
  }
  found->second.side_streams.insert(std::move(stream));
  return found->second.own_stream->caller();
}

absl::Status SessionRegistry::AddFetchStream(const SessionId& id, const std::string& tenant,
                                             std::shared_ptr<SessionStream> stream) {
  constexpr size_t kFetchStreamsMax = 256;  // fetches of a client at a time
  absl::MutexLock lock(&mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second.tenant != tenant) return Unknown(id);
  if (found->second.fetch_streams.size() >= kFetchStreamsMax) {
    return absl::ResourceExhaustedError(
        absl::StrFormat("session has %d fetch streams; fetch fewer at a time", kFetchStreamsMax));
  }
  found->second.fetch_streams.insert(std::move(stream));
  return absl::OkStatus();
}

absl::Status SessionRegistry::AddPeerStream(const SessionId& id, const std::string& tenant,
                                            std::shared_ptr<SessionStream> stream) {
  constexpr size_t kPeerStreamsMax = 2;
  absl::MutexLock lock(&mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end() || found->second.tenant != tenant) return Unknown(id);
  if (found->second.peer_streams.size() >= kPeerStreamsMax) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "session has %d links to GPUs; end one, or use another path", kPeerStreamsMax));
  }
  found->second.peer_streams.insert(std::move(stream));
  return absl::OkStatus();
}

void SessionRegistry::RemoveStream(const SessionId& id, const SessionStream* stream) {
  std::shared_ptr<SessionStream> removed;  // Its destructor runs without the lock.
  absl::MutexLock lock(&mutex_);
  const auto found = sessions_.find(id);
  if (found == sessions_.end()) return;
  for (auto* streams : {&found->second.streams, &found->second.side_streams,
                        &found->second.fetch_streams, &found->second.peer_streams}) {
    for (auto it = streams->begin(); it != streams->end(); ++it) {
      if (it->get() != stream) continue;
      removed = *it;
      streams->erase(it);
      return;
    }
  }
}

void SessionRegistry::Announce(const SessionId& id, Session session, SessionEndReason reason) {
  for (const auto* streams :
       {&session.streams, &session.side_streams, &session.fetch_streams, &session.peer_streams}) {
    for (const std::shared_ptr<SessionStream>& stream : *streams) stream->OnSessionEnd(reason);
  }
  on_end_(id, reason);
  session.own_stream->OnSessionEnd(reason);
}

void SessionRegistry::End(const SessionId& id, SessionEndReason reason) {
  Session session;
  {
    absl::MutexLock lock(&mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    session = std::move(found->second);
    sessions_.erase(found);
  }
  Announce(id, std::move(session), reason);
}

void SessionRegistry::CheckFetchProgress() {
  std::vector<std::shared_ptr<SessionStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, session] : sessions_) {
      streams.insert(streams.end(), session.fetch_streams.begin(), session.fetch_streams.end());
    }
  }
  const absl::Duration now = clock_.Monotonic();
  for (const std::shared_ptr<SessionStream>& stream : streams) stream->CheckProgress(now);
}

int64_t SessionRegistry::EndSilent() {
  std::vector<SessionId> silent;
  const absl::Duration now = clock_.Monotonic();
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, session] : sessions_) {
      if (now - session.last_message > options_.timeout) silent.push_back(id);
    }
  }
  for (const SessionId& id : silent) End(id, SessionEndReason::kTimeout);
  return static_cast<int64_t>(silent.size());
}

void SessionRegistry::EndAll(SessionEndReason reason) {
  std::vector<SessionId> all;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, session] : sessions_) all.push_back(id);
  }
  for (const SessionId& id : all) End(id, reason);
}

void SessionRegistry::StartDraining() {
  std::vector<std::shared_ptr<SessionStream>> streams;
  {
    absl::MutexLock lock(&mutex_);
    if (draining_) return;
    draining_ = true;
    for (const auto& [id, session] : sessions_) streams.push_back(session.own_stream);
  }
  for (const std::shared_ptr<SessionStream>& stream : streams) stream->OnDraining();
}

bool SessionRegistry::draining() const {
  absl::MutexLock lock(&mutex_);
  return draining_;
}

bool SessionRegistry::AwaitNone(absl::Duration timeout) const {
  absl::MutexLock lock(&mutex_);
  const auto none = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return sessions_.empty(); };
  return mutex_.AwaitWithTimeout(absl::Condition(&none), timeout);
}

size_t SessionRegistry::session_count() const {
  absl::MutexLock lock(&mutex_);
  return sessions_.size();
}

}  // namespace pagoda
