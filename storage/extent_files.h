// Preallocated files that pages are written into as extents, with direct I/O from and to the
// caller's own memory. It knows neither records nor pages.
//
//   FOLDER/000001.extents, 000002.extents, ...   made by fallocate when the ones before are full
//
// Threads    every method from any thread; an extent belongs to one writer until it is published
// Errors     RESOURCE_EXHAUSTED   no free run is long enough, or the disk is full
//            UNAVAILABLE          the disk or the system refuses; names file, step, cause, remedy
//            DATA_LOSS            (reading) the file ends early, or the disk cannot read it
// Limits     file_count_max files of file_bytes; one open descriptor each
// Cost       no copies where memory is aligned to 4096 and sizes are multiples of it
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "storage/base/bytes.h"
#include "storage/extent.h"
#include "storage/extent_space.h"
#include "storage/file_ops.h"

namespace pagoda {

class ExtentFiles {
 public:
  struct Options {
    std::string folder;
    int64_t file_bytes = 0;      // of new files; those that exist keep their size
    int64_t file_count_max = 0;  // of that size; limits the bytes of all files
    bool direct_io = true;
  };

  // Creates the folder, opens the files that are there. `ops` must outlive this.
  static absl::StatusOr<std::unique_ptr<ExtentFiles>> Open(const Options& options, FileOps& ops);
  ~ExtentFiles();
  ExtentFiles(const ExtentFiles&) = delete;
  ExtentFiles& operator=(const ExtentFiles&) = delete;

  // What is in use already; as ExtentSpace::Adopt. Before the first Allocate.
  std::vector<Extent> Adopt(std::vector<Extent> used) ABSL_LOCKS_EXCLUDED(mutex_);

  // Makes another file when it must and may. `bytes` is a multiple of kExtentAlignBytes.
  absl::StatusOr<Extent> Allocate(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  void Free(const Extent& extent) ABSL_LOCKS_EXCLUDED(mutex_);

  // Fills the whole extent with the parts, one after the other. With direct I/O their memory and
  // sizes are aligned to kExtentAlignBytes. After an error the extent's bytes are undefined.
  absl::Status Write(const Extent& extent, absl::Span<const ByteSpan> parts);
  // Reads from `begin` within the extent. The same alignment.
  absl::Status Read(const Extent& extent, int64_t begin,
                    absl::Span<const MutableByteSpan> parts) const;

  // What was written to this file is on the disk. After an error nobody knows which of the bytes
  // written since the last success are: they must be taken for lost, and the call not repeated.
  absl::Status Sync(uint32_t file);
  // Nothing more is written to this file; what lies in it can be read.
  void Retire(uint32_t file) ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsRetired(uint32_t file) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Gives the disk back what is empty, but for one file (and retired ones in any case).
  void RemoveEmptyFiles() ABSL_LOCKS_EXCLUDED(mutex_);

  // It lies within an existing file.
  bool Holds(const Extent& extent) const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t file_count() const ABSL_LOCKS_EXCLUDED(mutex_);
  int64_t total_bytes() const ABSL_LOCKS_EXCLUDED(mutex_);
  std::string PathOf(uint32_t file) const;

 private:
  struct File;
  using FilePtr = std::shared_ptr<const File>;

  ExtentFiles(const Options& options, FileOps& ops) : options_(options), ops_(ops) {}
  absl::Status OpenExisting();
  absl::Status OpenOne(uint32_t number);
  // A file of the size of Options, made and opened but not yet known to anyone.
  absl::StatusOr<FilePtr> Create(uint32_t number);
  absl::Status SyncFolder();
  FilePtr FileOf(uint32_t number) const ABSL_LOCKS_EXCLUDED(mutex_);

  const Options options_;
  FileOps& ops_;

  mutable absl::Mutex mutex_;
  ExtentSpace space_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, FilePtr> files_ ABSL_GUARDED_BY(mutex_);
  std::map<uint32_t, bool> retired_ ABSL_GUARDED_BY(mutex_);
  int64_t growing_count_ ABSL_GUARDED_BY(mutex_) = 0;  // files that are being made
  uint32_t next_number_ ABSL_GUARDED_BY(mutex_) = 1;
};

// The one place where system errors of the SSD's files become ours.
absl::Status FromErrno(int64_t negative_errno, absl::string_view doing);

}  // namespace pagoda
