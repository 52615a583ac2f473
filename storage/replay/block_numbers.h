// Small numbers for a trace's block ids, in the order in which they appear.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "storage/replay/trace.h"

namespace pagoda::replay {

class BlockNumbers {
 public:
  // Appends the id's number to `runs`, to the last one where it goes on.
  void Append(uint64_t id, std::vector<BlockRun>& runs) {
    const auto next = static_cast<uint32_t>(numbers_.size() + 1);
    const uint32_t number = numbers_.try_emplace(id, next).first->second;
    if (!runs.empty() && runs.back().first + runs.back().count == number) {
      ++runs.back().count;
    } else {
      runs.push_back({number, 1});
    }
  }

 private:
  absl::flat_hash_map<uint64_t, uint32_t> numbers_;
};

}  // namespace pagoda::replay
