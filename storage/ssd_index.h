// The records of the pages on SSD, in RocksDB: record key -> DirectoryRecord, and the folder's
// format. Small values only; page bytes lie in extent files.
//
//   column family meta   record key -> DirectoryRecord
//   default              "format"   -> version and instance id
//
// There is no write-ahead log: changes are on the disk after Flush. A change that RocksDB could
// make only by waiting (memtables full, flushes failing) is refused.
//
// An error while RocksDB flushes or compacts makes it read-only, some of them until it is opened
// again. So the changes since the last flush are kept here too, and the Flush after such an error
// opens the database again and repeats them, once the disk takes writes. Nothing is lost, and reads
// go on meanwhile.
//
// Threads    every method from any thread
// Errors     DATA_LOSS            a record that fails its checksum (IntegrityKind::kRecord); Open,
//                                 ForEach: the index cannot be read
//            NOT_FOUND            no such record
//            FAILED_PRECONDITION  Open: another version, or the folder is in use; names a remedy
//            RESOURCE_EXHAUSTED   the disk is full
//            UNAVAILABLE          the disk fails; names path and cause
// Limits     2^20 changes that could not be flushed; beyond, changes are refused
//            INTERNAL             a RocksDB error we do not understand
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "rocksdb/db.h"
#include "storage/directory_record.h"
#include "storage/ssd_options.h"

namespace pagoda {

constexpr char kSsdMetaFamily[] = "meta";
constexpr char kSsdFormatKey[] = "format";  // in the default family
constexpr uint32_t kSsdFormatVersion = 2;   // 1 had page bytes in RocksDB

// The one place where RocksDB's errors become ours. `doing` names the operation and the path.
absl::Status FromRocksDb(const rocksdb::Status& status, absl::string_view doing);

rocksdb::DBOptions SsdDbOptions(const SsdOptions& options);
// default, meta: in this order.
std::vector<rocksdb::ColumnFamilyDescriptor> SsdFamilies(const SsdOptions& options);

class SsdIndex {
 public:
  static absl::StatusOr<std::unique_ptr<SsdIndex>> Open(const SsdOptions& options);
  // Closes without flushing.
  ~SsdIndex();
  SsdIndex(const SsdIndex&) = delete;
  SsdIndex& operator=(const SsdIndex&) = delete;

  absl::StatusOr<DirectoryRecord> Get(const RecordKey& key) const;
  absl::Status Put(const DirectoryRecord& record);
  // OK also when there is none. The key may be any that ForEach named.
  absl::Status Delete(absl::string_view encoded_key);
  absl::Status Flush();

  // In the order of the keys. A record that fails is handed to `on_damaged` with its encoded key.
  absl::Status ForEach(
      absl::FunctionRef<void(const DirectoryRecord&)> on_record,
      absl::FunctionRef<void(absl::string_view, const absl::Status&)> on_damaged) const;

  // Random id of this folder's content, as 32 hex digits.
  const std::string& instance_id() const { return instance_id_; }

 private:
  explicit SsdIndex(const SsdOptions& options) : options_(options) {}
  // The newest value of each key that was changed; nothing: deleted.
  using Changes = absl::flat_hash_map<std::string, std::optional<std::string>>;

  absl::Status OpenDb() ABSL_EXCLUSIVE_LOCKS_REQUIRED(db_mutex_);
  void CloseDb() ABSL_EXCLUSIVE_LOCKS_REQUIRED(db_mutex_);
  absl::Status Reopen() ABSL_LOCKS_EXCLUDED(db_mutex_, changes_mutex_);
  absl::Status TryDisk() const;
  absl::Status CheckFormat() ABSL_LOCKS_EXCLUDED(db_mutex_);
  absl::Status WriteFormat() ABSL_LOCKS_EXCLUDED(db_mutex_);
  absl::Status Change(const std::string& key, std::optional<std::string> value)
      ABSL_LOCKS_EXCLUDED(db_mutex_, changes_mutex_);
  absl::Status Closed() const;

  const SsdOptions options_;
  std::string instance_id_;  // constant after Open()

  // Held for writing only while the database is opened again.
  mutable absl::Mutex db_mutex_ ABSL_ACQUIRED_BEFORE(changes_mutex_);
  std::unique_ptr<rocksdb::DB> db_ ABSL_GUARDED_BY(db_mutex_);  // null: opening it again failed
  rocksdb::ColumnFamilyHandle* default_ ABSL_GUARDED_BY(db_mutex_) = nullptr;
  rocksdb::ColumnFamilyHandle* meta_ ABSL_GUARDED_BY(db_mutex_) = nullptr;

  mutable absl::Mutex changes_mutex_;
  Changes unflushed_ ABSL_GUARDED_BY(changes_mutex_);
  bool failed_ ABSL_GUARDED_BY(changes_mutex_) = false;  // to be opened again
};

}  // namespace pagoda
