// A disk that is slow, fails, and forgets what was not flushed when the process dies. What is
// written becomes visible at once and durable at the next flush, as with the real tier.
#pragma once

#include <vector>

#include "tests/simulation/universe.h"

namespace pagoda::simulation {

class SimDisk {
 public:
  explicit SimDisk(const Universe& universe)
      : universe_(universe),
        visible_(static_cast<size_t>(universe.key_count()), kNoForm),
        durable_(visible_) {}

  int FormOf(int key) const { return visible_[static_cast<size_t>(key)]; }
  void Put(int key, int form) {
    Count(key, -1);
    visible_[static_cast<size_t>(key)] = form;
    Count(key, +1);
  }
  void Delete(int key) { Put(key, kNoForm); }
  int64_t used_bytes() const { return used_bytes_; }

  void Flush() { durable_ = visible_; }
  // The process was killed: changes since the last flush are lost, deletions too.
  void Kill() {
    visible_ = durable_;
    used_bytes_ = 0;
    for (int key = 0; key < universe_.key_count(); ++key) Count(key, +1);
  }

  bool sick = false;  // every operation fails
  bool slow = false;  // every operation takes ten times as long

 private:
  void Count(int key, int sign) {
    const int form = FormOf(key);
    if (form != kNoForm) used_bytes_ += sign * universe_.at(key).bytes(form);
  }

  const Universe& universe_;
  std::vector<int> visible_;
  std::vector<int> durable_;
  int64_t used_bytes_ = 0;
};

}  // namespace pagoda::simulation
