#include "storage/policy/ssd_admission.h"

#include "absl/strings/str_format.h"

namespace pagoda::policy {
namespace {

constexpr absl::string_view kNames[] = {"always", "second_touch", "s3fifo_ghost"};

}  // namespace

absl::string_view SsdAdmissionName(SsdAdmissionKind kind) { return kNames[static_cast<int>(kind)]; }

absl::StatusOr<SsdAdmissionKind> ParseSsdAdmission(absl::string_view name) {
  for (const auto kind : {SsdAdmissionKind::kAlways, SsdAdmissionKind::kSecondTouch,
                          SsdAdmissionKind::kS3FifoGhost}) {
    if (name == SsdAdmissionName(kind)) return kind;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "unknown ssd admission \"%s\"; known are always, second_touch, s3fifo_ghost", name));
}

bool SsdAdmission::Admit(uint64_t fingerprint, bool used_again) {
  if (kind_ == SsdAdmissionKind::kAlways || used_again) return true;
  if (kind_ == SsdAdmissionKind::kSecondTouch) return false;
  if (ghost_.erase(fingerprint) > 0) return true;
  Remember(fingerprint);
  return false;
}

void SsdAdmission::Remember(uint64_t fingerprint) {
  if (ghost_entries_ == 0) return;
  if (ring_.size() < ghost_entries_) {
    next_ = ring_.size();
    ring_.push_back(fingerprint);
  } else {
    const auto oldest = ghost_.find(ring_[next_]);
    // It may have been admitted since, and been refused again at another place.
    if (oldest != ghost_.end() && oldest->second == next_) ghost_.erase(oldest);
    ring_[next_] = fingerprint;
  }
  ghost_[fingerprint] = next_;
  next_ = (next_ + 1) % ghost_entries_;
}

}  // namespace pagoda::policy
