#include "storage/extent_space.h"

#include <algorithm>
#include <iterator>

#include "storage/base/check.h"

namespace pagoda {
namespace {

bool IsAligned(int64_t value) { return value % kExtentAlignBytes == 0; }

}  // namespace

void ExtentSpace::AddRun(File& file, uint32_t number, int64_t offset, int64_t bytes) {
  file.free.emplace(offset, bytes);
  by_size_.insert({bytes, number, offset});
}

void ExtentSpace::EraseRun(File& file, uint32_t number, int64_t offset, int64_t bytes) {
  PAGODA_CHECK(by_size_.erase({bytes, number, offset}) == 1);
  file.free.erase(offset);
}

void ExtentSpace::AddFile(uint32_t file, int64_t bytes) {
  PAGODA_CHECK(file != 0);
  PAGODA_CHECK(bytes > 0 && IsAligned(bytes));
  const auto [it, added] = files_.try_emplace(file);
  PAGODA_CHECK(added);
  it->second.bytes = bytes;
  total_bytes_ += bytes;
  AddRun(it->second, file, 0, bytes);
}

void ExtentSpace::RetireFile(uint32_t file) {
  const auto it = files_.find(file);
  PAGODA_CHECK(it != files_.end());
  it->second.retired = true;
  for (const auto& [offset, bytes] : it->second.free) by_size_.erase({bytes, file, offset});
  it->second.free.clear();
}

void ExtentSpace::RemoveFile(uint32_t file) {
  RetireFile(file);
  const auto it = files_.find(file);
  PAGODA_CHECK(it->second.used_bytes == 0);
  total_bytes_ -= it->second.bytes;
  files_.erase(it);
}

std::vector<Extent> ExtentSpace::Adopt(std::vector<Extent> used) {
  PAGODA_CHECK(used_bytes_ == 0);
  std::sort(used.begin(), used.end());
  std::vector<Extent> refused;
  // Of what came before in this file: how far it reaches, and which one reaches there.
  int64_t end = 0;
  size_t reaching = 0;
  std::vector<bool> bad(used.size(), false);
  for (size_t i = 0; i < used.size(); ++i) {
    const Extent& extent = used[i];
    if (i == 0 || extent.file != used[i - 1].file) end = 0;
    const auto file = files_.find(extent.file);
    if (file == files_.end() || extent.offset < 0 || extent.bytes <= 0 ||
        extent.bytes > file->second.bytes || extent.offset > file->second.bytes - extent.bytes ||
        !IsAligned(extent.offset) || !IsAligned(extent.bytes)) {
      bad[i] = true;
      continue;
    }
    if (extent.offset < end) bad[i] = bad[reaching] = true;
    if (extent.end() > end) {
      end = extent.end();
      reaching = i;
    }
  }
  for (size_t i = 0; i < used.size(); ++i) {
    if (bad[i]) {
      refused.push_back(used[i]);
      continue;
    }
    // Taken from the file's last run: the extents come in the order of their offsets.
    File& file = files_.at(used[i].file);
    const auto last = std::prev(file.free.end());
    const int64_t offset = last->first;
    const int64_t bytes = last->second;
    EraseRun(file, used[i].file, offset, bytes);
    if (used[i].offset > offset) AddRun(file, used[i].file, offset, used[i].offset - offset);
    const int64_t rest = offset + bytes - used[i].end();
    if (rest > 0) AddRun(file, used[i].file, used[i].end(), rest);
    file.used_bytes += used[i].bytes;
    used_bytes_ += used[i].bytes;
  }
  return refused;
}

std::optional<Extent> ExtentSpace::Allocate(int64_t bytes) {
  PAGODA_CHECK(bytes > 0 && IsAligned(bytes));
  const auto best = by_size_.lower_bound({bytes, 0, 0});
  if (best == by_size_.end()) return std::nullopt;
  const Run run = *best;
  File& file = files_.at(run.file);
  EraseRun(file, run.file, run.offset, run.bytes);
  if (run.bytes > bytes) AddRun(file, run.file, run.offset + bytes, run.bytes - bytes);
  file.used_bytes += bytes;
  used_bytes_ += bytes;
  return Extent{run.file, run.offset, bytes};
}

void ExtentSpace::Free(const Extent& extent) {
  const auto it = files_.find(extent.file);
  PAGODA_CHECK(it != files_.end());
  File& file = it->second;
  PAGODA_CHECK(extent.offset >= 0 && extent.bytes > 0 && extent.end() <= file.bytes);
  PAGODA_CHECK(file.used_bytes >= extent.bytes);
  file.used_bytes -= extent.bytes;
  used_bytes_ -= extent.bytes;
  if (file.retired) return;
  int64_t begin = extent.offset;
  int64_t end = extent.end();
  const auto after = file.free.lower_bound(begin);
  const bool joins_after = after != file.free.end() && after->first == end;
  PAGODA_CHECK(after == file.free.end() || after->first >= end);
  int64_t before_offset = -1;
  if (after != file.free.begin()) {
    const auto before = std::prev(after);
    PAGODA_CHECK(before->first + before->second <= begin);
    if (before->first + before->second == begin) before_offset = before->first;
  }
  if (joins_after) {
    const int64_t bytes = after->second;
    EraseRun(file, extent.file, end, bytes);
    end += bytes;
  }
  if (before_offset >= 0) {
    EraseRun(file, extent.file, before_offset, begin - before_offset);
    begin = before_offset;
  }
  AddRun(file, extent.file, begin, end - begin);
}

std::vector<uint32_t> ExtentSpace::EmptyFiles() const {
  std::vector<uint32_t> empty;
  for (auto it = files_.rbegin(); it != files_.rend(); ++it) {
    if (it->second.used_bytes == 0) empty.push_back(it->first);
  }
  return empty;
}

}  // namespace pagoda
