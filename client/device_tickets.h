// Which tickets of device memory may be given back: they are finished in any order, and told to the
// daemon in theirs, as the highest one below which none is open. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

namespace pagoda::client {

class DeviceTickets {
 public:
  // Tickets rise.
  void Open(uint64_t ticket) { open_[ticket] = false; }
  // The highest one to tell, if that is more than before. Once for each ticket.
  std::optional<uint64_t> Finish(uint64_t ticket) {
    if (const auto it = open_.find(ticket); it != open_.end()) it->second = true;
    std::optional<uint64_t> last;
    while (!open_.empty() && open_.begin()->second) {
      last = open_.begin()->first;
      open_.erase(open_.begin());
    }
    return last;
  }

 private:
  std::map<uint64_t, bool> open_;  // whether it is finished, behind one that is not
};

}  // namespace pagoda::client
