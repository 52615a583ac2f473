// Finds entries of a directory, and all that follow them, leaves first.
//
// The walk goes over the slots in slices. Between two of them the directory may change: an entry
// that went and came again is judged again, one that came into a slot already passed is not found.
//
//   SubtreeWalk walk;
//   for (EntryId at = 1; at < directory.slot_count(); at += kSlice) {
//     walk.Scan(directory, at, at + kSlice, marks);       // under the directory's lock
//   }
//   for (const SubtreeWalk::Found& found : walk.Take()) ...  // it may be gone: compare
//   incarnations
//
// Threads    one; the directory must not change during Scan
// Cost       O(slots), each looked at once; 12 bytes a slot, 12 a find
#pragma once

#include <cstdint>
#include <vector>

#include "absl/functional/function_ref.h"
#include "storage/policy/eviction_policy.h"

namespace pagoda {

class Directory;

class SubtreeWalk {
 public:
  struct Found {
    policy::EntryId id;
    uint32_t incarnation;
    uint32_t depth;
  };

  // The slots [begin, end), as far as there are any. `marks` is asked about every entry that is not
  // below a marked one, ghosts included.
  void Scan(const Directory& directory, policy::EntryId begin, policy::EntryId end,
            absl::FunctionRef<bool(policy::EntryId)> marks);
  // What was found, living entries only.
  std::vector<Found> Take();

 private:
  // Inherited from the parent.
  struct Verdict {
    uint32_t incarnation = 0;
    uint32_t depth = 0;
    bool known = false;
    bool marked = false;
  };

  std::vector<Verdict> verdicts_;  // by slot
  std::vector<policy::EntryId> path_;
  std::vector<Found> found_;
};

}  // namespace pagoda
