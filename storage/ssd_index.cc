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
constexpr size_t kUnflushedMax = size_t{1} << 20;
constexpr size_t kProbeBytes = 64 << 10;

rocksdb::WriteOptions NoLog() {
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  options.no_slowdown = true;
  return options;
}

absl::string_view View(const rocksdb::Slice& slice) { return {slice.data(), slice.size()}; }

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
  db.avoid_flush_during_shutdown = true;  // the tier flushes before it closes
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
  std::unique_ptr<SsdIndex> index(new SsdIndex(options));
  {
    absl::MutexLock lock(&index->db_mutex_);
    PAGODA_RETURN_IF_ERROR(index->OpenDb());
  }
  PAGODA_RETURN_IF_ERROR(index->CheckFormat());
  return index;
}

SsdIndex::~SsdIndex() {
  absl::MutexLock lock(&db_mutex_);
  CloseDb();
}

absl::Status SsdIndex::OpenDb() {
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(SsdDbOptions(options_), options_.path,
                                                   SsdFamilies(options_), &handles, &db);
  const std::string doing = absl::StrCat("open ", options_.path);
  if (status.IsInvalidArgument()) {  // families that this version does not have
    return absl::FailedPreconditionError(
        absl::StrCat("ssd: ", doing, ": not a page store of this version; move the folder away (",
                     status.ToString(), ")"));
  }
  if (status.IsCorruption() || status.IsPathNotFound()) {
    return absl::DataLossError(absl::StrCat("ssd: ", doing, ": ", status.ToString()));
  }
  PAGODA_RETURN_IF_ERROR(FromRocksDb(status, doing));
  PAGODA_CHECK(handles.size() == 2);
  db_.reset(db);
  default_ = handles[0];
  meta_ = handles[1];
  return absl::OkStatus();
}

void SsdIndex::CloseDb() {
  if (db_ == nullptr) return;
  for (rocksdb::ColumnFamilyHandle* handle : {default_, meta_}) {
    const rocksdb::Status status = db_->DestroyColumnFamilyHandle(handle);
    PAGODA_CHECK(status.ok());
  }
  const rocksdb::Status closed = db_->Close();
  if (!closed.ok()) {
    LogError("ssd_close_failed", {{"path", options_.path}, {"error", closed.ToString()}});
  }
  db_ = nullptr;
}

absl::Status SsdIndex::TryDisk() const {
  rocksdb::Env* env =
      options_.system.env != nullptr ? options_.system.env : rocksdb::Env::Default();
  const std::string path = options_.path + "/.pagoda-probe";
  std::unique_ptr<rocksdb::WritableFile> file;
  rocksdb::Status status = env->NewWritableFile(path, &file, rocksdb::EnvOptions());
  if (status.ok()) status = file->Append(std::string(kProbeBytes, 'p'));
  if (status.ok()) status = file->Sync();
  if (status.ok()) status = file->Close();
  file = nullptr;
  env->DeleteFile(path).PermitUncheckedError();
  return FromRocksDb(status, absl::StrCat("write to ", options_.path));
}

absl::Status SsdIndex::Reopen() {
  PAGODA_RETURN_IF_ERROR(TryDisk());  // else what can still be read would be closed in vain
  absl::MutexLock lock(&db_mutex_);
  CloseDb();
  PAGODA_RETURN_IF_ERROR(OpenDb());
  absl::MutexLock changes(&changes_mutex_);
  for (const auto& [key, value] : unflushed_) {
    const rocksdb::Status status = value.has_value() ? db_->Put(NoLog(), meta_, key, *value)
                                                     : db_->Delete(NoLog(), meta_, key);
    PAGODA_RETURN_IF_ERROR(FromRocksDb(status, absl::StrCat("repeat changes of ", options_.path)));
  }
  failed_ = false;
  LogInfo("ssd_index_reopened",
          {{"path", options_.path}, {"repeated", absl::StrCat(unflushed_.size())}});
  return absl::OkStatus();
}

absl::Status SsdIndex::Closed() const {
  return absl::UnavailableError(absl::StrCat("ssd: the index of ", options_.path, " is closed"));
}

absl::Status SsdIndex::WriteFormat() {
  absl::ReaderMutexLock lock(&db_mutex_);
  std::unique_ptr<rocksdb::Iterator> any(db_->NewIterator(rocksdb::ReadOptions(), meta_));
  any->SeekToFirst();
  if (any->Valid()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "ssd: ", options_.path, " holds pages but no format record; move the folder away"));
  }
  PAGODA_ASSIGN_OR_RETURN(const Sha256Digest random, RandomBytes32());
  ByteWriter out;
  out.PutBytes(kFormatMagic, sizeof(kFormatMagic));
  out.Put(kSsdFormatVersion);
  out.PutBytes(random.data(), kInstanceBytes);
  out.Put(Crc32c(AsBytes(out.text())));
  PAGODA_RETURN_IF_ERROR(FromRocksDb(db_->Put(NoLog(), default_, kSsdFormatKey, out.text()),
                                     absl::StrCat("write format record of ", options_.path)));
  return FromRocksDb(db_->Flush(rocksdb::FlushOptions(), {default_, meta_}),
                     absl::StrCat("flush ", options_.path));
}

absl::Status SsdIndex::CheckFormat() {
  const std::string doing = absl::StrCat("read format record of ", options_.path);
  std::string value;
  const auto get = [&] {
    absl::ReaderMutexLock lock(&db_mutex_);
    return db_->Get(rocksdb::ReadOptions(), default_, kSsdFormatKey, &value);
  };
  rocksdb::Status found = get();
  if (found.IsNotFound()) {
    PAGODA_RETURN_IF_ERROR(WriteFormat());
    found = get();
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
        options_.path, version, kSsdFormatVersion));
  }
  char instance[kInstanceBytes];
  in.GetBytes(instance, sizeof(instance));
  const uint32_t expected = Crc32c(AsBytes(value).subspan(0, in.offset()));
  if (in.Get<uint32_t>() != expected || in.failed() || in.remaining() != 0) {
    return absl::DataLossError(
        absl::StrCat("ssd: format record of ", options_.path, ": wrong checksum"));
  }
  instance_id_ = absl::BytesToHexString(absl::string_view(instance, sizeof(instance)));
  return absl::OkStatus();
}

// ---- Records ------------------------------------------------------------------------------------

// RocksDB's block checksums stay on, though every record carries our own: it takes a block that it
// has not verified for sound, and a damaged one ends the process in its parsers.
absl::StatusOr<DirectoryRecord> SsdIndex::Get(const RecordKey& key) const {
  absl::ReaderMutexLock lock(&db_mutex_);
  if (db_ == nullptr) return Closed();
  rocksdb::PinnableSlice value;
  const rocksdb::Status status = db_->Get(rocksdb::ReadOptions(), meta_, key.Encode(), &value);
  if (status.IsNotFound()) return absl::NotFoundError("ssd: no such page");
  if (!status.ok()) {
    return WithIntegrityKind(FromRocksDb(status, "read record"), IntegrityKind::kRecord);
  }
  auto record = DecodeDirectoryRecord(key, AsBytes(View(value)));
  if (!record.ok()) return SsdDamage(IntegrityKind::kRecord, record.status().message());
  return record;
}

absl::Status SsdIndex::Change(const std::string& key, std::optional<std::string> value) {
  absl::ReaderMutexLock lock(&db_mutex_);
  if (db_ == nullptr) return Closed();
  {
    absl::MutexLock changes(&changes_mutex_);
    if (unflushed_.size() >= kUnflushedMax && !unflushed_.contains(key)) {
      return absl::UnavailableError(absl::StrFormat("ssd: %d changes wait to be flushed to %s",
                                                    kUnflushedMax, options_.path));
    }
  }
  const rocksdb::Status status =
      value.has_value() ? db_->Put(NoLog(), meta_, key, *value) : db_->Delete(NoLog(), meta_, key);
  absl::MutexLock changes(&changes_mutex_);
  if (status.ok()) {
    unflushed_[key] = std::move(value);
  } else {
    failed_ = true;
  }
  return FromRocksDb(status, absl::StrCat("change a record in ", options_.path));
}

absl::Status SsdIndex::Put(const DirectoryRecord& record) {
  return Change(record.record.Encode(), EncodeDirectoryRecord(record));
}

absl::Status SsdIndex::Delete(absl::string_view encoded_key) {
  return Change(std::string(encoded_key), std::nullopt);
}

absl::Status SsdIndex::Flush() {
  bool failed = false;
  {
    absl::MutexLock changes(&changes_mutex_);
    failed = failed_;
  }
  if (failed) PAGODA_RETURN_IF_ERROR(Reopen());
  Changes flushing;
  {
    absl::MutexLock changes(&changes_mutex_);
    flushing.swap(unflushed_);
  }
  absl::ReaderMutexLock lock(&db_mutex_);
  const absl::Status status =
      db_ == nullptr ? Closed()
                     : FromRocksDb(db_->Flush(rocksdb::FlushOptions(), {default_, meta_}),
                                   absl::StrCat("flush ", options_.path));
  if (status.ok()) return status;
  absl::MutexLock changes(&changes_mutex_);
  failed_ = true;
  unflushed_.merge(flushing);  // what came since is newer and stays
  return status;
}

absl::Status SsdIndex::ForEach(
    absl::FunctionRef<void(const DirectoryRecord&)> on_record,
    absl::FunctionRef<void(absl::string_view, const absl::Status&)> on_damaged) const {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  options.readahead_size = 2 << 20;
  absl::ReaderMutexLock lock(&db_mutex_);
  if (db_ == nullptr) return Closed();
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
  return FromRocksDb(it->status(), absl::StrCat("read records of ", options_.path));
}

}  // namespace pagoda
