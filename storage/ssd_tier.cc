#include "storage/ssd_tier.h"

#include <rocksdb/db.h>
#include <rocksdb/write_batch.h>

#include <cstring>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/crash_point.h"
#include "storage/base/crc32c.h"
#include "storage/base/digest.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/ssd_folder.h"
#include "storage/ssd_rocksdb.h"

namespace pagoda {
namespace {

constexpr char kFormatMagic[8] = {'P', 'G', 'D', 'A', 'S', 'S', 'D', '\n'};
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kInstanceBytes = 16;
constexpr char kIntegrityPayload[] = "pagoda/integrity";

rocksdb::Slice SliceOf(absl::string_view text) { return {text.data(), text.size()}; }
rocksdb::Slice SliceOf(ByteSpan bytes) { return SliceOf(AsText(bytes)); }

// Big-endian, so that a page's values lie in the order of its segments, the header last.
std::string PlaneKey(absl::string_view record_key, uint16_t index) {
  return absl::StrCat(record_key,
                      std::string{static_cast<char>(index >> 8), static_cast<char>(index & 0xff)});
}

rocksdb::WriteOptions NoLog() {
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  return options;
}

// RocksDB's block checksums stay on, though every value carries our own: it takes a block that it
// has not verified for sound, and a damaged one ends the process in its parsers.
rocksdb::ReadOptions Uncached(const rocksdb::Snapshot* snapshot = nullptr) {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  options.snapshot = snapshot;
  return options;
}

absl::Status Broken(IntegrityKind kind, absl::string_view text) {
  absl::Status status = absl::DataLossError(absl::StrCat("ssd: ", text));
  status.SetPayload(kIntegrityPayload, absl::Cord(std::string(1, static_cast<char>(kind))));
  return status;
}

// RocksDB's own finding of damage, with our mark.
absl::Status Marked(absl::Status status, IntegrityKind kind) {
  if (status.code() == absl::StatusCode::kDataLoss) {
    status.SetPayload(kIntegrityPayload, absl::Cord(std::string(1, static_cast<char>(kind))));
  }
  return status;
}

}  // namespace

IntegrityKind IntegrityKindOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kIntegrityPayload);
  if (!payload.has_value() || payload->size() != 1) return IntegrityKind::kSegment;
  return static_cast<IntegrityKind>(std::string(*payload)[0]);
}

// ---- Opening and closing ------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<SsdTier>> SsdTier::Open(const SsdOptions& options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  PAGODA_ASSIGN_OR_RETURN(const SsdFolder folder, PrepareSsdFolder(options.path));
  if (options.direct_io && !folder.direct_io) {
    LogWarning("ssd_direct_io_unsupported", {{"path", options.path}, {"using", "buffered"}});
  }
  std::unique_ptr<SsdTier> tier(new SsdTier(options, options.direct_io && folder.direct_io));
  PAGODA_RETURN_IF_ERROR(tier->OpenDb());
  PAGODA_RETURN_IF_ERROR(tier->CheckFormat());
  PAGODA_RETURN_IF_ERROR(tier->CountPages());
  if (options.flush_period > absl::ZeroDuration()) {
    tier->flusher_ = std::thread([raw = tier.get()] { raw->FlushLoop(); });
  }
  LogInfo("ssd_opened", {{"path", options.path},
                         {"instance", tier->instance_id_},
                         {"pages", absl::StrCat(tier->page_count())},
                         {"used_bytes", absl::StrCat(tier->used_bytes())},
                         {"direct_io", tier->direct_io_ ? "true" : "false"}});
  return tier;
}

SsdTier::SsdTier(const SsdOptions& options, bool direct_io)
    : options_(options), direct_io_(direct_io) {}

absl::Status SsdTier::OpenDb() {
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(
      SsdDbOptions(options_, direct_io_), options_.path, SsdFamilies(options_), &handles, &db);
  const std::string doing = absl::StrCat("open ", options_.path);
  if (status.IsInvalidArgument()) {
    return absl::FailedPreconditionError(
        absl::StrCat("ssd: ", doing, ": not a page store of this version; move the folder away (",
                     status.ToString(), ")"));
  }
  PAGODA_RETURN_IF_ERROR(FromRocksDb(status, doing));
  PAGODA_CHECK(handles.size() == 3);
  db_.reset(db);
  default_ = handles[0];
  meta_ = handles[1];
  planes_ = handles[2];
  return absl::OkStatus();
}

absl::Status SsdTier::CheckFormat() {
  std::string value;
  const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), default_, kSsdFormatKey, &value);
  if (!found.ok() && !found.IsNotFound()) return FromRocksDb(found, "read format record");
  if (found.IsNotFound()) {
    std::unique_ptr<rocksdb::Iterator> any(db_->NewIterator(rocksdb::ReadOptions(), meta_));
    any->SeekToFirst();
    if (any->Valid()) {
      return absl::FailedPreconditionError(absl::StrCat(
          "ssd: ", options_.path, " holds pages but no format record; move the folder away"));
    }
    PAGODA_ASSIGN_OR_RETURN(const Sha256Digest random, RandomBytes32());
    ByteWriter out;
    out.PutBytes(kFormatMagic, sizeof(kFormatMagic));
    out.Put(kFormatVersion);
    out.PutBytes(random.data(), kInstanceBytes);
    out.Put(Crc32c(AsBytes(out.text())));
    value = out.Take();
    PAGODA_RETURN_IF_ERROR(
        FromRocksDb(db_->Put(NoLog(), default_, kSsdFormatKey, value), "write format record"));
    PAGODA_RETURN_IF_ERROR(Flush());
  }
  ByteReader in(AsBytes(value));
  char magic[sizeof(kFormatMagic)];
  in.GetBytes(magic, sizeof(magic));
  const auto version = in.Get<uint32_t>();
  if (std::memcmp(magic, kFormatMagic, sizeof(magic)) != 0 || version != kFormatVersion) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "ssd: %s has format version %d, this build reads %d; move the folder away (its pages are a "
        "cache and can be recomputed), or run the version that wrote it",
        options_.path, version, kFormatVersion));
  }
  char instance[kInstanceBytes];
  in.GetBytes(instance, sizeof(instance));
  const uint32_t expected = Crc32c(AsBytes(value).subspan(0, in.offset()));
  if (in.Get<uint32_t>() != expected || in.failed() || in.remaining() != 0) {
    return absl::DataLossError(
        absl::StrCat("ssd: format record of ", options_.path, " is damaged; move the folder away"));
  }
  instance_id_ = absl::BytesToHexString(absl::string_view(instance, sizeof(instance)));
  return absl::OkStatus();
}

absl::Status SsdTier::CountPages() {
  int64_t bytes = 0;
  int64_t count = 0;
  PAGODA_RETURN_IF_ERROR(ForEachRecord(
      [&](const DirectoryRecord& record) {
        bytes += record.bytes;
        ++count;
      },
      [](absl::string_view, const absl::Status&) {}));
  used_bytes_.store(bytes, std::memory_order_relaxed);
  page_count_.store(count, std::memory_order_relaxed);
  return absl::OkStatus();
}

SsdTier::~SsdTier() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (flusher_.joinable()) flusher_.join();
  if (db_ == nullptr) return;
  const absl::Status flushed = Flush();
  if (!flushed.ok()) {
    LogError("ssd_close_flush_failed", {{"path", options_.path}, {"error", flushed.ToString()}});
  }
  for (rocksdb::ColumnFamilyHandle* handle : {default_, meta_, planes_}) {
    const rocksdb::Status status = db_->DestroyColumnFamilyHandle(handle);
    PAGODA_CHECK(status.ok());
  }
  const rocksdb::Status closed = db_->Close();
  if (!closed.ok()) {
    LogError("ssd_close_failed", {{"path", options_.path}, {"error", closed.ToString()}});
  }
}

void SsdTier::FlushLoop() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.flush_period)) return;
    }
    if (unflushed_count() == 0) continue;
    const absl::Status status = Flush();
    if (!status.ok()) {
      LogWarning("ssd_flush_failed", {{"path", options_.path}, {"error", status.ToString()}});
    }
  }
}

absl::Status SsdTier::Flush() {
  const int64_t count = unflushed_count_.load(std::memory_order_relaxed);
  CrashPoint(CrashAt::kSsdFlush);
  const rocksdb::Status status = db_->Flush(rocksdb::FlushOptions(), {default_, meta_, planes_});
  PAGODA_RETURN_IF_ERROR(FromRocksDb(status, absl::StrCat("flush ", options_.path)));
  CrashPoint(CrashAt::kSsdFlushDone);
  unflushed_count_.fetch_sub(count, std::memory_order_relaxed);
  return absl::OkStatus();
}

// ---- Changing -----------------------------------------------------------------------------------

absl::StatusOr<DirectoryRecord> SsdTier::ReadRecord(const RecordKey& key,
                                                    const rocksdb::Snapshot* snapshot) const {
  rocksdb::PinnableSlice value;
  rocksdb::ReadOptions options = Uncached(snapshot);
  options.fill_cache = true;  // records are small
  const rocksdb::Status status = db_->Get(options, meta_, key.Encode(), &value);
  if (status.IsNotFound()) return absl::NotFoundError("ssd: no such page");
  if (!status.ok()) return Marked(FromRocksDb(status, "read record"), IntegrityKind::kRecord);
  auto record = DecodeDirectoryRecord(key, AsBytes(absl::string_view(value.data(), value.size())));
  if (!record.ok()) return Broken(IntegrityKind::kRecord, record.status().message());
  return record;
}

absl::Status SsdTier::Put(const SsdPageWrite& page) {
  PAGODA_CHECK(page.segments.size() == page.record.segment_count);
  PAGODA_CHECK(page.segments.size() < kSsdHeaderIndex);
  CrashPoint(CrashAt::kSsdPut);
  const auto old = ReadRecord(page.record.record, /*snapshot=*/nullptr);
  const bool replaces = old.ok();
  const bool damaged = old.status().code() == absl::StatusCode::kDataLoss;
  if (!replaces && !damaged && old.status().code() != absl::StatusCode::kNotFound) {
    return old.status();
  }
  const std::string key = page.record.record.Encode();
  size_t reserved = 4096 + page.header.size();
  for (const ByteSpan segment : page.segments) reserved += segment.size() + 64;
  rocksdb::WriteBatch batch(reserved);
  rocksdb::Status status;
  if (damaged) status = batch.DeleteRange(planes_, PlaneKey(key, 0), PlaneKey(key, 0xffff));
  for (size_t i = page.segments.size(); replaces && i < old->segment_count && status.ok(); ++i) {
    status = batch.Delete(planes_, PlaneKey(key, static_cast<uint16_t>(i)));
  }
  for (size_t i = 0; i < page.segments.size() && status.ok(); ++i) {
    status = batch.Put(planes_, PlaneKey(key, static_cast<uint16_t>(i)), SliceOf(page.segments[i]));
  }
  if (status.ok()) {
    status = batch.Put(planes_, PlaneKey(key, kSsdHeaderIndex), SliceOf(page.header));
  }
  CrashPoint(CrashAt::kSsdRecord);
  if (status.ok()) status = batch.Put(meta_, key, EncodeDirectoryRecord(page.record));
  if (status.ok()) status = db_->Write(NoLog(), &batch);
  CrashPoint(CrashAt::kSsdPutDone);
  PAGODA_RETURN_IF_ERROR(FromRocksDb(status, absl::StrCat("write page to ", options_.path)));
  used_bytes_.fetch_add(page.record.bytes - (replaces ? old->bytes : 0), std::memory_order_relaxed);
  page_count_.fetch_add(replaces ? 0 : 1, std::memory_order_relaxed);
  unflushed_count_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status SsdTier::Delete(const RecordKey& key) {
  const auto old = ReadRecord(key, /*snapshot=*/nullptr);
  if (old.status().code() == absl::StatusCode::kNotFound) return absl::OkStatus();
  if (old.status().code() == absl::StatusCode::kDataLoss) return DeleteDamaged(key.Encode());
  if (!old.ok()) return old.status();
  CrashPoint(CrashAt::kSsdDelete);
  const std::string encoded = key.Encode();
  rocksdb::WriteBatch batch;
  rocksdb::Status status = batch.Delete(meta_, encoded);
  for (uint16_t i = 0; i < old->segment_count && status.ok(); ++i) {
    status = batch.Delete(planes_, PlaneKey(encoded, i));
  }
  if (status.ok()) status = batch.Delete(planes_, PlaneKey(encoded, kSsdHeaderIndex));
  if (status.ok()) status = db_->Write(NoLog(), &batch);
  CrashPoint(CrashAt::kSsdDeleteDone);
  PAGODA_RETURN_IF_ERROR(FromRocksDb(status, absl::StrCat("delete page in ", options_.path)));
  used_bytes_.fetch_sub(old->bytes, std::memory_order_relaxed);
  page_count_.fetch_sub(1, std::memory_order_relaxed);
  unflushed_count_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status SsdTier::DeleteDamaged(absl::string_view encoded_key) {
  const std::string key(encoded_key);
  rocksdb::WriteBatch batch;
  rocksdb::Status status = batch.Delete(meta_, key);
  // A key of another length could cover other pages' planes: then only the record goes.
  if (status.ok() && key.size() == RecordKey::kEncodedBytes) {
    status = batch.DeleteRange(planes_, PlaneKey(key, 0), PlaneKey(key, 0xffff) + '\0');
  }
  if (status.ok()) status = db_->Write(NoLog(), &batch);
  PAGODA_RETURN_IF_ERROR(FromRocksDb(status, "delete damaged page"));
  unflushed_count_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

// ---- Reading ------------------------------------------------------------------------------------

SsdTier::Reader::Reader(Reader&& other) noexcept
    : tier_(other.tier_),
      snapshot_(std::exchange(other.snapshot_, nullptr)),
      key_(other.key_),
      header_(std::move(other.header_)) {}

SsdTier::Reader::~Reader() {
  if (snapshot_ != nullptr) tier_->db_->ReleaseSnapshot(snapshot_);
}

absl::StatusOr<SsdTier::Reader> SsdTier::ReadPage(const RecordKey& key, const ScopeId& scope,
                                                  const Identity& identity) const {
  const rocksdb::Snapshot* snapshot = db_->GetSnapshot();
  if (snapshot == nullptr) return absl::InternalError("ssd: RocksDB gives no snapshot");
  Reader reader(this, snapshot, key);
  PAGODA_ASSIGN_OR_RETURN(const DirectoryRecord record, ReadRecord(key, snapshot));
  rocksdb::PinnableSlice value;
  const rocksdb::Status status =
      db_->Get(Uncached(snapshot), planes_, PlaneKey(key.Encode(), kSsdHeaderIndex), &value);
  if (status.IsNotFound()) return Broken(IntegrityKind::kMissing, "record without a header");
  if (!status.ok()) return Marked(FromRocksDb(status, "read header"), IntegrityKind::kHeader);
  auto header = DecodePageHeader(AsBytes(absl::string_view(value.data(), value.size())));
  if (!header.ok()) return Broken(IntegrityKind::kHeader, header.status().message());
  if (header->record != key || header->scope != scope || header->identity != identity) {
    return Broken(IntegrityKind::kHeader, "header of another page, scope or model");
  }
  if (DirectoryRecordOf(*header) != record) {
    return Broken(IntegrityKind::kHeader, "header does not fit its record");
  }
  reader.header_ = *std::move(header);
  return reader;
}

absl::Status SsdTier::Reader::ReadSegment(uint32_t index, MutableByteSpan target) const {
  PAGODA_CHECK(index < header_.segments.size());
  const SegmentEntry& segment = header_.segments[index];
  PAGODA_CHECK(target.size() == segment.length);
  rocksdb::PinnableSlice value;
  const std::string key = PlaneKey(key_.Encode(), static_cast<uint16_t>(index));
  const rocksdb::Status status = tier_->db_->Get(Uncached(snapshot_), tier_->planes_, key, &value);
  if (status.IsNotFound()) {
    return Broken(IntegrityKind::kMissing, absl::StrFormat("segment %d is missing", index));
  }
  if (!status.ok()) return Marked(FromRocksDb(status, "read segment"), IntegrityKind::kSegment);
  if (value.size() != segment.length) {
    return Broken(IntegrityKind::kSegment, absl::StrFormat("segment %d has %d bytes, not %d", index,
                                                           value.size(), segment.length));
  }
  std::memcpy(target.data(), value.data(), value.size());
  if (Crc32c(target) != segment.crc32c) {
    return Broken(IntegrityKind::kSegment, absl::StrFormat("checksum of segment %d", index));
  }
  return absl::OkStatus();
}

absl::Status SsdTier::ForEachRecord(
    absl::FunctionRef<void(const DirectoryRecord&)> on_record,
    absl::FunctionRef<void(absl::string_view, const absl::Status&)> on_damaged) const {
  rocksdb::ReadOptions options;
  options.fill_cache = false;
  options.readahead_size = 2 << 20;
  std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(options, meta_));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    const absl::string_view encoded(it->key().data(), it->key().size());
    const auto key = RecordKey::Decode(encoded);
    if (!key.has_value()) {
      on_damaged(encoded, Broken(IntegrityKind::kRecord, "record key of a wrong length"));
      continue;
    }
    const auto record = DecodeDirectoryRecord(
        *key, AsBytes(absl::string_view(it->value().data(), it->value().size())));
    if (record.ok()) {
      on_record(*record);
    } else {
      on_damaged(encoded, Broken(IntegrityKind::kRecord, record.status().message()));
    }
  }
  return FromRocksDb(it->status(), absl::StrCat("read records of ", options_.path));
}

}  // namespace pagoda
