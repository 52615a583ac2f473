#include "storage/device/pinned_memory.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/log.h"

namespace pagoda {

PinnedMemory::~PinnedMemory() {
  std::map<const std::byte*, Entry> chunks;
  absl::MutexLock lock(&mutex_);
  chunks.swap(chunks_);  // unregistered after the lock
}

bool PinnedMemory::Pin(MutableByteSpan chunk) {
  const auto bytes = static_cast<int64_t>(chunk.size());
  absl::Status status;
  {
    absl::MutexLock lock(&mutex_);
    if (const auto it = chunks_.find(chunk.data()); it != chunks_.end()) {
      PAGODA_CHECK(it->second.bytes == bytes);
      return it->second.registration != nullptr;
    }
    chunks_[chunk.data()].bytes = bytes;
    if (report_.pinned_bytes + bytes > bytes_max_) {
      status = absl::ResourceExhaustedError(
          absl::StrFormat("%d bytes are pinned, at most %d", report_.pinned_bytes, bytes_max_));
    } else {
      report_.pinned_bytes += bytes;  // held while it is registered
    }
  }
  std::unique_ptr<HostRegistration> registration;
  const bool counted = status.ok();
  if (counted) {
    auto registered = runtime_.RegisterHost(chunk.data(), bytes);
    status = registered.status();
    if (registered.ok()) registration = *std::move(registered);
  }
  bool first_refusal = false;
  {
    absl::MutexLock lock(&mutex_);
    Entry& entry = chunks_[chunk.data()];
    entry.busy = false;
    entry.registration = std::move(registration);
    if (status.ok()) return true;
    if (counted) report_.pinned_bytes -= bytes;
    report_.plain_bytes += bytes;
    first_refusal = report_.refusal.ok();
    report_.refusal.Update(status);
  }
  if (first_refusal) LogWarning("host_memory_plain", {{"reason", std::string(status.message())}});
  return false;
}

void PinnedMemory::Forget(const std::byte* chunk) {
  Entry gone;  // unregistered after the lock
  absl::MutexLock lock(&mutex_);
  const auto it = chunks_.find(chunk);
  if (it == chunks_.end()) return;
  PAGODA_CHECK(!it->second.busy);
  (it->second.registration != nullptr ? report_.pinned_bytes : report_.plain_bytes) -=
      it->second.bytes;
  gone = std::move(it->second);
  chunks_.erase(it);
}

PinnedMemory::Report PinnedMemory::report() const {
  absl::MutexLock lock(&mutex_);
  return report_;
}

}  // namespace pagoda
