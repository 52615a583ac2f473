#include "storage/ssd_index.h"

#include <rocksdb/cache.h>
#include <rocksdb/env.h>
#include <rocksdb/filter_policy.h>
#include <rocksdb/table.h>

#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/crc32c.h"
#include "storage/base/digest.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/ssd_damage.h"

namespace pagoda {
namespace {

constexpr char kFormatMagic[8] = {'P', 'G', 'D', 'A', 'S', 'S', 'D', '\n'};
constexpr size_t kInstanceBytes = 16;
constexpr int kOpenFilesMax = 64;  // records are small: a handful of files

rocksdb::WriteOptions NoLog() {
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  options.no_slowdown = true;
  return options;
}

rocksdb::ReadOptions Unchecked() {
  rocksdb::ReadOptions options;
  options.verify_checksums = false;  // every record carries our own
  return options;
}

absl::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }
rocksdb::Slice SliceOf(absl::string_view text) { return {text.data(), text.size()}; }

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

rocksdb::DBOptions SsdDbOptions(const SsdOptions& options) {
  rocksdb::DBOptions db;
  if (options.system.env != nullptr) db.env = options.system.env;
  db.create_if_missing = true;
  db.create_missing_column_families = true;
  db.atomic_flush = true;
  // A failed flush or compaction is tried again instead of stopping the database for good: the
  // disk may heal, and every record carries its own checksum.
  db.paranoid_checks = false;
  db.max_background_jobs = options.background_jobs;
  db.max_open_files = kOpenFilesMax;
  db.stats_dump_period_sec = 0;
  db.stats_persist_period_sec = 0;
  db.keep_log_file_num = 4;
  db.max_log_file_size = 16 << 20;
  db.info_log_level = rocksdb::WARN_LEVEL;
  return db;
}

std::vector<rocksdb::ColumnFamilyDescriptor> SsdFamilies(const SsdOptions& options) {
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(options.block_cache_bytes);
  table.filter_policy.reset(rocksdb::NewBloomFilterPolicy(10));

  rocksdb::ColumnFamilyOptions meta;
  meta.compression = rocksdb::kNoCompression;
  meta.write_buffer_size = options.index_buffer_bytes;
  meta.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return {{rocksdb::kDefaultColumnFamilyName, meta}, {kSsdMetaFamily, meta}};
}

// ---- Opening and closing ------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<SsdIndex>> SsdIndex::Open(const SsdOptions& options) {
  std::unique_ptr<SsdIndex> index(new SsdIndex(options.path));
  PAGODA_RETURN_IF_ERROR(index->OpenDb(options));
  PAGODA_RETURN_IF_ERROR(index->CheckFormat());
  return index;
}

SsdIndex::~SsdIndex() {
  if (db_ == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* handle : {default_, meta_}) {
    const rocksdb::Status status = db_->DestroyColumnFamilyHandle(handle);
    PAGODA_CHECK(status.ok());
  }
  const rocksdb::Status closed = db_->Close();
  if (!closed.ok()) {
    LogError("ssd_close_failed", {{"path", path_}, {"error", closed.ToString()}});
  }
}

absl::Status SsdIndex::OpenDb(const SsdOptions& options) {
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(SsdDbOptions(options), path_, SsdFamilies(options), &handles, &db);
  const std::string doing = absl::StrCat("open ", path_);
  if (status.IsInvalidArgument()) {  // families that this version does not have
    return absl::FailedPreconditionError(
        absl::StrCat("ssd: ", doing, ": not a page store of this version; move the folder away (",
                     status.ToString(), ")"));
  }
  if (status.IsCorruption()) {
    return absl::DataLossError(absl::StrCat("ssd: ", doing,
                                            ": its index is damaged; move the "
                                            "folder away (",
                                            status.ToString(), ")"));
  }
  PAGODA_RETURN_IF_ERROR(FromRocksDb(status, doing));
  PAGODA_CHECK(handles.size() == 2);
  db_.reset(db);
  default_ = handles[0];
  meta_ = handles[1];
  return absl::OkStatus();
}

absl::Status SsdIndex::WriteFormat() {
  std::unique_ptr<rocksdb::Iterator> any(db_->NewIterator(rocksdb::ReadOptions(), meta_));
  any->SeekToFirst();
  if (any->Valid()) {
    return absl::FailedPreconditionError(
        absl::StrCat("ssd: ", path_, " holds pages but no format record; move the folder away"));
  }
  PAGODA_ASSIGN_OR_RETURN(const Sha256Digest random, RandomBytes32());
  ByteWriter out;
  out.PutBytes(kFormatMagic, sizeof(kFormatMagic));
  out.Put(kSsdFormatVersion);
  out.PutBytes(random.data(), kInstanceBytes);
  out.Put(Crc32c(AsBytes(out.text())));
  PAGODA_RETURN_IF_ERROR(FromRocksDb(db_->Put(NoLog(), default_, kSsdFormatKey, out.text()),
                                     absl::StrCat("write format record of ", path_)));
  return Flush();
}

absl::Status SsdIndex::CheckFormat() {
  const std::string doing = absl::StrCat("read format record of ", path_);
  std::string value;
  rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), default_, kSsdFormatKey, &value);
  if (found.IsNotFound()) {
    PAGODA_RETURN_IF_ERROR(WriteFormat());
    found = db_->Get(rocksdb::ReadOptions(), default_, kSsdFormatKey, &value);
  }
  PAGODA_RETURN_IF_ERROR(FromRocksDb(found, doing));
  ByteReader in(AsBytes(value));
  char magic[sizeof(kFormatMagic)];
  in.GetBytes(magic, sizeof(magic));
  const auto version = in.Get<uint32_t>();
  if (std::memcmp(magic, kFormatMagic, sizeof(magic)) != 0 || version != kSsdFormatVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "ssd: %s has format version %d, this build reads %d; move the folder away (its pages are a "
        "cache and can be recomputed), or run the version that wrote it",
        path_, version, kSsdFormatVersion));
  }
  char instance[kInstanceBytes];
  in.GetBytes(instance, sizeof(instance));
  const uint32_t expected = Crc32c(AsBytes(value).subspan(0, in.offset()));
  if (in.Get<uint32_t>() != expected || in.failed() || in.remaining() != 0) {
    return absl::DataLossError(
        absl::StrCat("ssd: format record of ", path_, " is damaged; move the folder away"));
  }
  instance_id_ = absl::BytesToHexString(absl::string_view(instance, sizeof(instance)));
  return absl::OkStatus();
}

// ---- Records ------------------------------------------------------------------------------------

absl::Status SsdIndex::Noted(const rocksdb::Status& status, absl::string_view doing) {
  if (!status.ok()) failed_.store(true, std::memory_order_relaxed);
  return FromRocksDb(status, absl::StrCat(doing, " ", path_));
}

absl::StatusOr<DirectoryRecord> SsdIndex::Get(const RecordKey& key) const {
  rocksdb::PinnableSlice value;
  const rocksdb::Status status = db_->Get(Unchecked(), meta_, key.Encode(), &value);
  if (status.IsNotFound()) return absl::NotFoundError("ssd: no such page");
  if (!status.ok()) {
    return WithIntegrityKind(FromRocksDb(status, "read record"), IntegrityKind::kRecord);
  }
  auto record = DecodeDirectoryRecord(key, AsBytes(View(value)));
  if (!record.ok()) return SsdDamage(IntegrityKind::kRecord, record.status().message());
  return record;
}

absl::Status SsdIndex::Put(const DirectoryRecord& record) {
  return Noted(db_->Put(NoLog(), meta_, record.record.Encode(), EncodeDirectoryRecord(record)),
               "write record to");
}

absl::Status SsdIndex::Delete(absl::string_view encoded_key) {
  return Noted(db_->Delete(NoLog(), meta_, SliceOf(encoded_key)), "delete record in");
}

absl::Status SsdIndex::Flush() {
  if (failed_.exchange(false, std::memory_order_relaxed)) {
    PAGODA_RETURN_IF_ERROR(Noted(db_->Resume(), "resume"));
  }
  return Noted(db_->Flush(rocksdb::FlushOptions(), {default_, meta_}), "flush");
}

absl::Status SsdIndex::ForEach(
    absl::FunctionRef<void(const DirectoryRecord&)> on_record,
    absl::FunctionRef<void(absl::string_view, const absl::Status&)> on_damaged) const {
  rocksdb::ReadOptions options = Unchecked();
  options.fill_cache = false;
  options.readahead_size = 2 << 20;
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options, meta_));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const absl::string_view encoded = View(it->key());
    const auto key = RecordKey::Decode(encoded);
    if (!key.has_value()) {
      on_damaged(encoded, SsdDamage(IntegrityKind::kRecord, "record key of a wrong length"));
      continue;
    }
    const auto record = DecodeDirectoryRecord(*key, AsBytes(View(it->value())));
    if (record.ok()) {
      on_record(*record);
    } else {
      on_damaged(encoded, SsdDamage(IntegrityKind::kRecord, record.status().message()));
    }
  }
  return FromRocksDb(it->status(), absl::StrCat("read records of ", path_));
}

}  // namespace pagoda
