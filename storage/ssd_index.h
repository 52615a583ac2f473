// The records of the pages on SSD, in RocksDB: record key -> DirectoryRecord, and the folder's
// format. Small values only; page bytes lie in extent files.
//
//   column family meta   record key -> DirectoryRecord
//   default              "format"   -> version and instance id
//
// There is no write-ahead log: changes are on the disk after Flush. A change that RocksDB could
// make only by waiting (memtables full, flushes failing) is refused. After RocksDB has met an
// error of the disk, every Flush tries first to resume it.
//
// Threads    every method from any thread
// Errors     DATA_LOSS            a record that fails its checksum (IntegrityKind::kRecord)
//            NOT_FOUND            no such record
//            FAILED_PRECONDITION  Open: another version, or the folder is in use; names a remedy
//            RESOURCE_EXHAUSTED   the disk is full
//            UNAVAILABLE          the disk fails; names path and cause
//            INTERNAL             a RocksDB error we do not understand
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
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
  explicit SsdIndex(std::string path) : path_(std::move(path)) {}
  absl::Status OpenDb(const SsdOptions& options);
  absl::Status CheckFormat();
  absl::Status WriteFormat();
  absl::Status Noted(const rocksdb::Status& status, absl::string_view doing);

  const std::string path_;
  std::string instance_id_;
  std::unique_ptr<rocksdb::DB> db_;
  rocksdb::ColumnFamilyHandle* default_ = nullptr;  // the handles are destroyed before db_
  rocksdb::ColumnFamilyHandle* meta_ = nullptr;
  std::atomic<bool> failed_{false};  // relaxed: only says that resuming is worth a try
};

}  // namespace pagoda
