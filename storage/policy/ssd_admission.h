// Which pages are worth a write to SSD when host memory lets go of them. A page that is refused is
// forgotten; one that is asked for again was worth it after all, and the ghost remembers that.
//
//   always         every page
//   second_touch   pages that were used again since they were pushed
//   s3fifo_ghost   those, and pages that come back soon after they were refused
//
// The caller admits whatever other pages need, whatever this says: a page that others follow is
// written, or its chain would break. Pure: events in, answers out.
//
// Threads    externally synchronised
// Limits     the ghost holds `ghost_entries` fingerprints, the oldest goes first
// Cost       O(1); 8 bytes in the ring and about 16 in the set for each fingerprint
// Source     Yang et al., FIFO queues are all you need for cache eviction, SOSP 2023 (the ghost)
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::policy {

enum class SsdAdmissionKind : uint8_t { kAlways = 0, kSecondTouch = 1, kS3FifoGhost = 2 };

absl::string_view SsdAdmissionName(SsdAdmissionKind kind);
// INVALID_ARGUMENT lists the known names.
absl::StatusOr<SsdAdmissionKind> ParseSsdAdmission(absl::string_view name);

class SsdAdmission {
 public:
  static constexpr size_t kGhostEntries = 1 << 16;
  explicit SsdAdmission(SsdAdmissionKind kind = SsdAdmissionKind::kAlways,
                        size_t ghost_entries = kGhostEntries)
      : kind_(kind), ghost_entries_(ghost_entries) {}

  SsdAdmissionKind kind() const { return kind_; }
  // True: write it. `used_again` says whether the page was used since it was pushed. A page that is
  // refused is remembered by its fingerprint; one that is admitted is forgotten.
  bool Admit(uint64_t fingerprint, bool used_again);
  size_t ghost_count() const { return ghost_.size(); }

 private:
  void Remember(uint64_t fingerprint);

  SsdAdmissionKind kind_;
  size_t ghost_entries_;
  std::vector<uint64_t> ring_;  // the order in which they came; a forgotten one keeps its place
  size_t next_ = 0;
  absl::flat_hash_map<uint64_t, size_t> ghost_;  // the place of each in the ring
};

}  // namespace pagoda::policy
