// Pages on SSD: bytes in extent files (extent_files.h), one record each in RocksDB (ssd_index.h).
// It keeps bytes and verifies them; which pages belong here, and which must go, is the store's
// business.
//
// A page exists when its record exists, and its bytes are written before its record. Space that is
// freed is used again only after the change of its record is on the disk and no reader can still
// be in it. A kill loses the last moments (flush_period) and never shows half a page. Checksums of
// header and segments are checked on every read.
//
// Threads    every method from any thread, but one key is put by one caller at a time
// Errors     DATA_LOSS            bytes that fail a checksum, do not belong to the asked key, are
//                                 missing or cannot be read; ssd_damage.h says which
//            NOT_FOUND            no such page
//            FAILED_PRECONDITION  Open: format of another version, or folder in use; names a remedy
//            RESOURCE_EXHAUSTED   the disk or the space for pages is full
//            UNAVAILABLE          the folder or the disk fails; names path and cause
//            INTERNAL             a RocksDB error we do not understand
// Cost       nothing is copied where the caller's memory is aligned to 4096 and padded; a page is
//            one write, and one read of the header plus one of everything else
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "storage/base/bytes.h"
#include "storage/directory_record.h"
#include "storage/extent_files.h"
#include "storage/extent_limbo.h"
#include "storage/policy/token_bucket.h"
#include "storage/ssd_damage.h"
#include "storage/ssd_options.h"

namespace pagoda {

class SsdIndex;

struct SsdPageWrite {
  DirectoryRecord record;          // its extent is the tier's to fill
  ByteSpan header;                 // encoded PageHeader
  std::vector<ByteSpan> segments;  // payloads, with their zero padding to 4096 or without
};

// What was dropped when the tier was opened.
struct SsdOpenDamage {
  bool index_lost = false;        // the index could not be read: everything was set aside
  int64_t overlapping_count = 0;  // two records claim the same bytes: both are dropped
  int64_t missing_count = 0;      // the file is gone or too short
};

class SsdTier {
 public:
  // A page seen at one moment: its header and segments fit together whatever is written meanwhile.
  class Reader {
   public:
    Reader(Reader&& other) noexcept;
    ~Reader();
    const PageHeader& header() const { return header_; }
    // Reads one segment, target.size() == its length or its padded size, and verifies it.
    absl::Status ReadSegment(uint32_t index, MutableByteSpan target) const;
    // Reads all of them in one vectored read, and verifies each. Targets have the segments' lengths
    // or their padded sizes; padding is set to zero.
    absl::Status ReadAll(absl::Span<const MutableByteSpan> targets) const;

   private:
    friend class SsdTier;
    Reader(SsdTier* tier, ExtentLimbo::Epoch epoch) : tier_(tier), epoch_(epoch) {}
    absl::Status Verify(uint32_t index, ByteSpan padded) const;
    SsdTier* tier_;
    ExtentLimbo::Epoch epoch_;
    Extent extent_;
    PageHeader header_;
  };

  // An index that is damaged is set aside (ssd_folder.h) and the tier starts empty.
  static absl::StatusOr<std::unique_ptr<SsdTier>> Open(const SsdOptions& options);
  // Flushes and closes. Readers must be gone.
  ~SsdTier();
  SsdTier(const SsdTier&) = delete;
  SsdTier& operator=(const SsdTier&) = delete;

  // Waits until `bytes` may be written without going beyond write_bytes_per_second_max: for who
  // writes in the background, before Put. Returns at once when there is no limit.
  void WaitForRate(int64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Writes a page, or replaces the one that was there.
  absl::Status Put(const SsdPageWrite& page) ABSL_LOCKS_EXCLUDED(mutex_, change_mutex_);
  // OK also when the page is not there.
  absl::Status Delete(const RecordKey& key) ABSL_LOCKS_EXCLUDED(mutex_, change_mutex_);

  // Opens a page for reading: its header verified by checksum and against key, scope, identity.
  absl::StatusOr<Reader> ReadPage(const RecordKey& key, const ScopeId& scope,
                                  const Identity& identity) ABSL_LOCKS_EXCLUDED(mutex_);
  // The page's record, without its bytes.
  absl::StatusOr<DirectoryRecord> Find(const RecordKey& key) const;

  // Every page's record, in key order, without reading page bytes. A record that fails is handed
  // to `on_damaged` instead (its key may be unreadable too: empty), and should be deleted.
  absl::Status ForEachRecord(
      absl::FunctionRef<void(const DirectoryRecord&)> on_record,
      absl::FunctionRef<void(absl::string_view, const absl::Status&)> on_damaged) const;
  // Removes a record that cannot be trusted.
  absl::Status DeleteDamaged(absl::string_view encoded_key);
  const SsdOpenDamage& open_damage() const { return open_damage_; }

  // Everything that was put is on the disk after this. When the disk says that it could not keep
  // some of it, those pages are deleted and named by TakeLost; the rest is on the disk.
  absl::Status Flush() ABSL_LOCKS_EXCLUDED(mutex_, change_mutex_, flush_mutex_);
  // Pages that a failed flush has deleted since the last call.
  std::vector<RecordKey> TakeLost() ABSL_LOCKS_EXCLUDED(mutex_);
  // A sync has failed: from then on the tier may know less pages than those who asked it to keep
  // them, until they see TakeLost().
  bool has_lost() const { return has_lost_.load(std::memory_order_relaxed); }
  // Flushes that failed since Open().
  int64_t flush_failure_count() const { return flush_failures_.load(std::memory_order_relaxed); }

  // Writes, syncs and reads a little, and flushes: OK says that the disk works.
  absl::Status Probe() ABSL_LOCKS_EXCLUDED(mutex_, change_mutex_, flush_mutex_);

  // Sum of record.bytes of all pages; exact after Open().
  int64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  int64_t page_count() const { return page_count_.load(std::memory_order_relaxed); }
  int64_t capacity_bytes() const { return options_.capacity_bytes; }
  // Changes that a kill at this moment would lose.
  int64_t unflushed_count() const { return unflushed_count_.load(std::memory_order_relaxed); }
  // What the extent files take on the disk, in use or not.
  int64_t file_bytes() const { return files_->total_bytes(); }
  int64_t file_count() const { return files_->file_count(); }
  // Random id of this folder's content, as 32 hex digits: another one means another store.
  const std::string& instance_id() const;
  bool uses_direct_io() const { return direct_io_; }
  const std::string& path() const { return options_.path; }

 private:
  struct Written {
    RecordKey key;
    Extent extent;
  };
  using WrittenByFile = absl::flat_hash_map<uint32_t, std::vector<Written>>;

  static absl::StatusOr<std::unique_ptr<SsdTier>> OpenWhole(const SsdOptions& options);
  SsdTier(const SsdOptions& options, bool direct_io);
  absl::Status AdoptRecords();
  bool adopted_ = false;  // the files know what is in use: before, nothing may be removed
  absl::StatusOr<Extent> AllocateOrFlush(int64_t bytes);
  absl::Status WriteBytes(const Extent& extent, const SsdPageWrite& page);
  absl::Status Publish(const DirectoryRecord& record) ABSL_LOCKS_EXCLUDED(change_mutex_);
  absl::Status Unpublish(const DirectoryRecord& record)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(change_mutex_);
  void Lose(uint32_t file, std::vector<Written> written, const absl::Status& cause);
  void ReuseFreed() ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status FlushOnce() ABSL_EXCLUSIVE_LOCKS_REQUIRED(flush_mutex_);
  void FlushLoop() ABSL_LOCKS_EXCLUDED(mutex_);

  // Constant after Open().
  const SsdOptions options_;
  const bool direct_io_;
  const Clock& clock_;
  SsdOpenDamage open_damage_;
  std::unique_ptr<SsdIndex> index_;
  std::unique_ptr<ExtentFiles> files_;

  // Synchronised by themselves. Plain counts for display and watermarks: relaxed, because no other
  // memory is published through them.
  std::atomic<int64_t> used_bytes_{0};
  std::atomic<int64_t> page_count_{0};
  std::atomic<int64_t> unflushed_count_{0};
  std::atomic<int64_t> flush_failures_{0};
  std::atomic<bool> has_lost_{false};

  // Held through a flush: one after the other.
  absl::Mutex flush_mutex_ ABSL_ACQUIRED_BEFORE(change_mutex_, mutex_);
  // Held while a record is looked at and changed: RocksDB's memtable, and at worst one small read.
  absl::Mutex change_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);

  // Guarded by mutex_, under which there is no I/O.
  mutable absl::Mutex mutex_;
  ExtentLimbo limbo_ ABSL_GUARDED_BY(mutex_);
  WrittenByFile unsynced_ ABSL_GUARDED_BY(mutex_);  // published since their file's last sync
  std::vector<RecordKey> lost_ ABSL_GUARDED_BY(mutex_);
  policy::TokenBucket write_rate_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread flusher_;
};

}  // namespace pagoda
