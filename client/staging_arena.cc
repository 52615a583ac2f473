#include "client/staging_arena.h"

#include <iterator>

#include "storage/base/bytes.h"
#include "storage/base/check.h"

namespace pagoda::client {
namespace {

constexpr int64_t kUnit = 64;

}  // namespace

StagingArena::StagingArena(int64_t bytes) : free_bytes_(bytes / kUnit * kUnit) {
  if (free_bytes_ > 0) free_[0] = free_bytes_;
}

std::optional<int64_t> StagingArena::Take(int64_t bytes) {
  PAGODA_CHECK(bytes > 0);
  const int64_t wanted = AlignUp(bytes, kUnit);
  for (auto range = free_.begin(); range != free_.end(); ++range) {
    const auto [offset, length] = *range;
    if (length < wanted) continue;
    free_.erase(range);
    if (length > wanted) free_[offset + wanted] = length - wanted;
    free_bytes_ -= wanted;
    return offset;
  }
  return std::nullopt;
}

void StagingArena::Return(int64_t offset, int64_t bytes) {
  int64_t length = AlignUp(bytes, kUnit);
  free_bytes_ += length;
  auto next = free_.lower_bound(offset);
  PAGODA_CHECK(next == free_.end() || next->first >= offset + length);
  if (next != free_.end() && next->first == offset + length) {
    length += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto before = std::prev(next);
    PAGODA_CHECK(before->first + before->second <= offset);
    if (before->first + before->second == offset) {
      before->second += length;
      return;
    }
  }
  free_[offset] = length;
}

}  // namespace pagoda::client
