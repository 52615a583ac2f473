// Pages on SSD, in RocksDB with blob files. It keeps bytes and verifies them; which pages belong
// here, and which must go, is the store's business.
//
//   column family meta     record key                   -> DirectoryRecord
//   column family planes   record key | u16 big-endian  -> segment bytes; 0xffff: the header
//   default                "format"                     -> version and instance id
//
// A page exists when its meta record exists. All of a page's changes are one WriteBatch; there is
// no write-ahead log: memtables of all families are flushed together, so a kill loses the last
// moments (flush_period) and never shows half a page. RocksDB verifies its blocks, and we every
// page by our own checksums, on every read.
//
// Threads    every method from any thread, but one key is changed by one caller at a time
// Errors     DATA_LOSS            bytes that fail a checksum or do not belong to the asked key
//            NOT_FOUND            no such page
//            FAILED_PRECONDITION  Open: format of another version, or folder in use; names a remedy
//            UNAVAILABLE          the folder or the disk fails; names path and cause
//            INTERNAL             a RocksDB error we do not understand
// Limits     65534 segments a page
// Cost       Put copies the page twice (batch, memtable); a read copies once
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "storage/base/bytes.h"
#include "storage/directory_record.h"
#include "storage/ssd_options.h"
#include "storage/store_observer.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
class Slice;
class Snapshot;
class Status;
}  // namespace rocksdb

namespace pagoda {

// The one place where RocksDB's errors become ours. `doing` names the operation and the path.
absl::Status FromRocksDb(const rocksdb::Status& status, absl::string_view doing);

// What exactly was wrong, of a DATA_LOSS that SsdTier returned.
IntegrityKind IntegrityKindOf(const absl::Status& status);

struct SsdPageWrite {
  DirectoryRecord record;
  ByteSpan header;                 // encoded PageHeader
  std::vector<ByteSpan> segments;  // payloads without padding
};

class SsdTier {
 public:
  // A page seen at one moment: its header and segments fit together whatever is written meanwhile.
  class Reader {
   public:
    Reader(Reader&& other) noexcept;
    ~Reader();
    const PageHeader& header() const { return header_; }
    // Reads whole segments, target.size() == the segment's length, and verifies each.
    absl::Status ReadSegment(uint32_t index, MutableByteSpan target) const;

   private:
    friend class SsdTier;
    Reader(const SsdTier* tier, const rocksdb::Snapshot* snapshot, const RecordKey& key)
        : tier_(tier), snapshot_(snapshot), key_(key) {}
    const SsdTier* tier_;
    const rocksdb::Snapshot* snapshot_;
    RecordKey key_;
    PageHeader header_;
  };

  static absl::StatusOr<std::unique_ptr<SsdTier>> Open(const SsdOptions& options);
  // Flushes and closes. Readers must be gone.
  ~SsdTier();
  SsdTier(const SsdTier&) = delete;
  SsdTier& operator=(const SsdTier&) = delete;

  // Writes a page, or replaces the one that was there (planes may be fewer or other ones).
  absl::Status Put(const SsdPageWrite& page);
  // OK also when the page is not there.
  absl::Status Delete(const RecordKey& key);

  // Opens a page for reading: its header verified by checksum and against key, scope, identity.
  absl::StatusOr<Reader> ReadPage(const RecordKey& key, const ScopeId& scope,
                                  const Identity& identity) const;

  // Every page's record, in key order, without reading page bytes. A record that fails is handed
  // to `on_damaged` instead (its key may be unreadable too: empty), and should be deleted.
  absl::Status ForEachRecord(
      absl::FunctionRef<void(const DirectoryRecord&)> on_record,
      absl::FunctionRef<void(absl::string_view, const absl::Status&)> on_damaged) const;
  // Removes whatever is stored under an encoded record key that cannot be trusted.
  absl::Status DeleteDamaged(absl::string_view encoded_key);

  // Everything that was put is on the disk after this.
  absl::Status Flush();

  // Sum of record.bytes of all pages; exact after Open().
  int64_t used_bytes() const { return used_bytes_.load(std::memory_order_relaxed); }
  int64_t page_count() const { return page_count_.load(std::memory_order_relaxed); }
  int64_t capacity_bytes() const { return options_.capacity_bytes; }
  // Changes that a kill at this moment would lose.
  int64_t unflushed_count() const { return unflushed_count_.load(std::memory_order_relaxed); }
  // Random id of this folder's content, as 32 hex digits: another one means another store.
  const std::string& instance_id() const { return instance_id_; }
  bool uses_direct_io() const { return direct_io_; }
  const std::string& path() const { return options_.path; }

 private:
  SsdTier(const SsdOptions& options, bool direct_io);
  absl::Status OpenDb();
  absl::Status CheckFormat();
  absl::Status CountPages();
  void FlushLoop() ABSL_LOCKS_EXCLUDED(mutex_);
  // The page's record; NOT_FOUND, DATA_LOSS or a disk error.
  absl::StatusOr<DirectoryRecord> ReadRecord(const RecordKey& key,
                                             const rocksdb::Snapshot* snapshot) const;

  // Constant after Open().
  const SsdOptions options_;
  const bool direct_io_;
  std::string instance_id_;
  std::unique_ptr<rocksdb::DB> db_;
  rocksdb::ColumnFamilyHandle* default_ = nullptr;  // the handles are destroyed before db_
  rocksdb::ColumnFamilyHandle* meta_ = nullptr;
  rocksdb::ColumnFamilyHandle* planes_ = nullptr;

  // Synchronised by themselves. Plain counts for display and watermarks: relaxed, because no other
  // memory is published through them.
  std::atomic<int64_t> used_bytes_{0};
  std::atomic<int64_t> page_count_{0};
  std::atomic<int64_t> unflushed_count_{0};

  // Guarded by mutex_.
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;

  std::thread flusher_;
};

}  // namespace pagoda
