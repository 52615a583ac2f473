#include "storage/ssd_rocksdb.h"

#include <rocksdb/cache.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/rate_limiter.h>
#include <rocksdb/table.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace pagoda {
namespace {

constexpr uint64_t kMetaBufferBytes = uint64_t{16} << 20;
constexpr uint64_t kMinBlobBytes = 16 << 10;  // smaller values stay in the tree: headers, mostly

}  // namespace

absl::Status FromRocksDb(const rocksdb::Status& status, absl::string_view doing) {
  if (status.ok()) return absl::OkStatus();
  const std::string cause = status.ToString();
  const std::string text = absl::StrCat("ssd: ", doing, ": ", cause);
  if (status.IsNotFound()) return absl::NotFoundError(text);
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(text);
  if (status.IsCorruption()) return absl::DataLossError(text);
  if (status.IsIOError() && absl::StrContains(cause, "LOCK")) {
    return absl::FailedPreconditionError(absl::StrCat(
        "ssd: ", doing, ": the folder is in use by another process; give each pagodad its own (",
        cause, ")"));
  }
  if (status.IsIOError() || status.IsBusy() || status.IsTimedOut() || status.IsTryAgain() ||
      status.IsShutdownInProgress() || status.IsIncomplete()) {
    return absl::UnavailableError(text);
  }
  return absl::InternalError(text);
}

rocksdb::DBOptions SsdDbOptions(const SsdOptions& options, bool direct_io) {
  rocksdb::DBOptions db;
  db.create_if_missing = true;
  db.create_missing_column_families = true;
  // Without a log, only flushing all families at one moment keeps records and planes together.
  db.atomic_flush = true;
  db.use_direct_reads = direct_io;
  db.use_direct_io_for_flush_and_compaction = direct_io;
  db.max_background_jobs = options.background_jobs;
  db.max_open_files = -1;
  db.bytes_per_sync = direct_io ? 0 : 8 << 20;  // no burst of dirty pages at the end of a file
  db.stats_dump_period_sec = 0;
  db.stats_persist_period_sec = 0;
  db.keep_log_file_num = 4;
  db.max_log_file_size = 16 << 20;
  db.info_log_level = rocksdb::WARN_LEVEL;
  if (options.background_bytes_per_second_max > 0) {
    db.rate_limiter.reset(rocksdb::NewGenericRateLimiter(
        options.background_bytes_per_second_max, /*refill_period_us=*/100 * 1000, /*fairness=*/10,
        rocksdb::RateLimiter::Mode::kAllIo));
  }
  return db;
}

std::vector<rocksdb::ColumnFamilyDescriptor> SsdFamilies(const SsdOptions& options) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(options.block_cache_bytes);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));

  rocksdb::ColumnFamilyOptions meta;
  meta.compression = rocksdb::kNoCompression;
  meta.write_buffer_size = kMetaBufferBytes;
  meta.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));

  rocksdb::ColumnFamilyOptions planes = meta;
  planes.write_buffer_size = options.write_buffer_bytes;
  planes.max_write_buffer_number = 4;
  planes.enable_blob_files = true;
  planes.min_blob_size = kMinBlobBytes;
  planes.blob_file_size = options.blob_file_bytes;
  planes.blob_compression_type = rocksdb::kNoCompression;
  planes.enable_blob_garbage_collection = true;
  planes.blob_garbage_collection_age_cutoff = 0.5;
  planes.blob_garbage_collection_force_threshold = 0.5;
  planes.blob_compaction_readahead_size = 2 << 20;

  return {{rocksdb::kDefaultColumnFamilyName, meta},
          {kSsdMetaFamily, meta},
          {kSsdPlanesFamily, planes}};
}

}  // namespace pagoda
