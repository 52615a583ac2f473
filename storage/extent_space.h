// Which parts of the extent files are free. It hands out runs, takes them back and joins
// neighbours; it does no I/O and keeps nothing of what is in use: that is in the records, from
// which it is rebuilt.
//
// Best fit: the smallest free run that is long enough, of equal ones the first of the lowest file.
// Pages come in a handful of sizes, so freed runs fit again, and high files run empty.
//
// Units    bytes, multiples of kExtentAlignBytes
// Threads  externally synchronised
// Cost     O(log free runs) a call; about 40 bytes a free run, none for what is in use
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "storage/extent.h"

namespace pagoda {

class ExtentSpace {
 public:
  // A new file, all of it free. REQUIRES: the number is not in use.
  void AddFile(uint32_t file, int64_t bytes);
  // REQUIRES: nothing in the file is in use.
  void RemoveFile(uint32_t file);
  // No more is handed out of this file; what is in use comes back as before.
  void RetireFile(uint32_t file);

  // After AddFile, what is in use already. Returns what cannot be: extents of unknown files or
  // beyond a file's end, and all that overlap another one. Those are not taken. Once only.
  std::vector<Extent> Adopt(std::vector<Extent> used);

  // Nothing when no free run is long enough.
  std::optional<Extent> Allocate(int64_t bytes);
  // REQUIRES: allocated or adopted, and not freed since.
  void Free(const Extent& extent);

  bool has_file(uint32_t file) const { return files_.contains(file); }
  // Files without anything in use, highest number first.
  std::vector<uint32_t> EmptyFiles() const;
  int64_t file_count() const { return static_cast<int64_t>(files_.size()); }
  int64_t file_bytes(uint32_t file) const { return files_.at(file).bytes; }
  int64_t total_bytes() const { return total_bytes_; }
  int64_t used_bytes() const { return used_bytes_; }
  int64_t free_run_count() const { return static_cast<int64_t>(by_size_.size()); }

 private:
  struct File {
    int64_t bytes = 0;
    int64_t used_bytes = 0;
    bool retired = false;
    absl::btree_map<int64_t, int64_t> free;  // offset -> bytes; empty when retired
  };
  struct Run {  // in the order of preference
    int64_t bytes;
    uint32_t file;
    int64_t offset;
    auto operator<=>(const Run&) const = default;
  };
  void AddRun(File& file, uint32_t number, int64_t offset, int64_t bytes);
  void EraseRun(File& file, uint32_t number, int64_t offset, int64_t bytes);

  std::map<uint32_t, File> files_;
  absl::btree_set<Run> by_size_;
  int64_t total_bytes_ = 0;
  int64_t used_bytes_ = 0;
};

}  // namespace pagoda
