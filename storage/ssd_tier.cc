#include "storage/ssd_tier.h"

#include <algorithm>
#include <cstring>
#include <new>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"
#include "storage/base/crash_point.h"
#include "storage/base/crc32c.h"
#include "storage/base/digest.h"
#include "storage/base/log.h"
#include "storage/base/status_macros.h"
#include "storage/ssd_folder.h"
#include "storage/ssd_index.h"

namespace pagoda {
namespace {

constexpr int64_t kWriteBurstBytes = int64_t{16} << 20;

// Memory that direct I/O takes.
class AlignedBuffer {
 public:
  explicit AlignedBuffer(int64_t bytes)
      : data_(static_cast<std::byte*>(::operator new (bytes, std::align_val_t{kExtentAlignBytes}))),
        bytes_(bytes) {}
  ~AlignedBuffer() { ::operator delete (data_, std::align_val_t{kExtentAlignBytes}); }
  AlignedBuffer(const AlignedBuffer&) = delete;
  AlignedBuffer& operator=(const AlignedBuffer&) = delete;
  MutableByteSpan bytes() const { return {data_, static_cast<size_t>(bytes_)}; }

 private:
  std::byte* const data_;
  const int64_t bytes_;
};

template <typename Byte>
bool IsAligned(absl::Span<Byte> bytes) {
  return reinterpret_cast<uintptr_t>(bytes.data()) % kExtentAlignBytes == 0 &&
         bytes.size() % kExtentAlignBytes == 0;
}

template <typename Byte>
int64_t PaddedBytes(absl::Span<Byte> bytes) {
  return AlignUp(static_cast<int64_t>(bytes.size()), kExtentAlignBytes);
}

}  // namespace

// ---- Opening and closing ------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<SsdTier>> SsdTier::Open(const SsdOptions& options) {
  PAGODA_RETURN_IF_ERROR(options.Validate());
  absl::StatusOr<std::unique_ptr<SsdTier>> tier = OpenWhole(options);
  if (!absl::IsDataLoss(tier.status())) return tier;
  // A cache may forget; it may not stay away because of a bad block.
  PAGODA_ASSIGN_OR_RETURN(const std::string kept, SetSsdIndexAside(options.path));
  LogError("ssd_index_damaged", {{"path", options.path},
                                 {"cause", std::string(tier.status().message())},
                                 {"kept", kept},
                                 {"effect", "starts empty"}});
  tier = OpenWhole(options);
  if (tier.ok()) (*tier)->open_damage_.index_lost = true;
  return tier;
}

absl::StatusOr<std::unique_ptr<SsdTier>> SsdTier::OpenWhole(const SsdOptions& options) {
  PAGODA_ASSIGN_OR_RETURN(const SsdFolder folder, PrepareSsdFolder(options.path));
  if (options.direct_io && !folder.direct_io) {
    LogWarning("ssd_direct_io_unsupported", {{"path", options.path}, {"using", "buffered"}});
  }
  std::unique_ptr<SsdTier> tier(new SsdTier(options, options.direct_io && folder.direct_io));
  PAGODA_ASSIGN_OR_RETURN(tier->index_, SsdIndex::Open(options));  // locks the folder
  ExtentFiles::Options files;
  files.folder = options.path + "/extents";
  files.file_bytes = options.file_bytes();
  files.file_count_max = options.file_count_max();
  files.direct_io = tier->direct_io_;
  FileOps& ops = options.system.files != nullptr ? *options.system.files : SystemFileOps();
  PAGODA_ASSIGN_OR_RETURN(tier->files_, ExtentFiles::Open(files, ops));
  PAGODA_RETURN_IF_ERROR(tier->AdoptRecords());
  if (options.flush_period > absl::ZeroDuration()) {
    tier->flusher_ = std::thread([raw = tier.get()] { raw->FlushLoop(); });
  }
  LogInfo("ssd_opened", {{"path", options.path},
                         {"instance", tier->instance_id()},
                         {"pages", absl::StrCat(tier->page_count())},
                         {"used_bytes", absl::StrCat(tier->used_bytes())},
                         {"files", absl::StrCat(tier->file_count())},
                         {"direct_io", tier->direct_io_ ? "true" : "false"}});
  return tier;
}

SsdTier::SsdTier(const SsdOptions& options, bool direct_io)
    : options_(options),
      direct_io_(direct_io),
      clock_(options.system.clock != nullptr ? *options.system.clock : SystemClock()),
      write_rate_(options.write_bytes_per_second_max, kWriteBurstBytes) {}

absl::Status SsdTier::AdoptRecords() {
  std::vector<Extent> extents;
  int64_t bytes = 0;
  PAGODA_RETURN_IF_ERROR(index_->ForEach(
      [&](const DirectoryRecord& record) {
        extents.push_back(record.extent);
        bytes += record.bytes;
      },
      [](absl::string_view, const absl::Status&) {}));
  auto count = static_cast<int64_t>(extents.size());
  const std::vector<Extent> refused = files_->Adopt(std::move(extents));
  if (!refused.empty()) {
    const absl::flat_hash_set<Extent> bad(refused.begin(), refused.end());
    std::vector<RecordKey> dropped;
    PAGODA_RETURN_IF_ERROR(index_->ForEach(
        [&](const DirectoryRecord& record) {
          if (!bad.contains(record.extent)) return;
          dropped.push_back(record.record);
          bytes -= record.bytes;
          --count;
          ++(files_->Holds(record.extent) ? open_damage_.overlapping_count
                                          : open_damage_.missing_count);
        },
        [](absl::string_view, const absl::Status&) {}));
    for (const RecordKey& key : dropped) PAGODA_RETURN_IF_ERROR(index_->Delete(key.Encode()));
    LogError("ssd_records_dropped", {{"path", options_.path},
                                     {"overlapping", absl::StrCat(open_damage_.overlapping_count)},
                                     {"missing", absl::StrCat(open_damage_.missing_count)}});
    PAGODA_RETURN_IF_ERROR(index_->Flush());
  }
  used_bytes_.store(bytes, std::memory_order_relaxed);
  page_count_.store(count, std::memory_order_relaxed);
  adopted_ = true;
  return absl::OkStatus();
}

SsdTier::~SsdTier() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  if (flusher_.joinable()) flusher_.join();
  if (!adopted_) return;
  const absl::Status flushed = Flush();
  if (!flushed.ok()) {
    LogError("ssd_close_flush_failed", {{"path", options_.path}, {"error", flushed.ToString()}});
  }
}

const std::string& SsdTier::instance_id() const { return index_->instance_id(); }

// ---- Flushing -----------------------------------------------------------------------------------

void SsdTier::FlushLoop() {
  bool failing = false;  // one line when it begins, one when it ends
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), options_.flush_period)) return;
    }
    if (unflushed_count() == 0) continue;
    const absl::Status status = Flush();
    if (!status.ok() && !failing) {
      LogWarning("ssd_flush_failed", {{"path", options_.path}, {"error", status.ToString()}});
    } else if (status.ok() && failing) {
      LogInfo("ssd_flush_recovered", {{"path", options_.path}});
    }
    failing = !status.ok();
  }
}

absl::Status SsdTier::Flush() {
  absl::MutexLock flushing(&flush_mutex_);
  const absl::Status status = FlushOnce();
  if (!status.ok()) flush_failures_.fetch_add(1, std::memory_order_relaxed);
  return status;
}

absl::Status SsdTier::FlushOnce() {
  WrittenByFile written;
  {
    absl::MutexLock lock(&mutex_);
    written.swap(unsynced_);
  }
  absl::Status synced;
  for (auto& [file, pages] : written) {
    const absl::Status status = files_->Sync(file);
    if (status.ok()) continue;
    Lose(file, std::move(pages), status);
    synced = status;
  }
  const int64_t count = unflushed_count_.load(std::memory_order_relaxed);
  ExtentLimbo::Epoch mark = 0;
  {
    absl::MutexLock lock(&mutex_);
    mark = limbo_.MarkFlush();
  }
  CrashPoint(CrashAt::kSsdFlush);
  PAGODA_RETURN_IF_ERROR(index_->Flush());
  CrashPoint(CrashAt::kSsdFlushDone);
  unflushed_count_.fetch_sub(count, std::memory_order_relaxed);
  {
    absl::MutexLock lock(&mutex_);
    limbo_.Flushed(mark);
  }
  ReuseFreed();
  files_->RemoveEmptyFiles();
  return synced;
}

void SsdTier::Lose(uint32_t file, std::vector<Written> written, const absl::Status& cause) {
  has_lost_.store(true, std::memory_order_relaxed);
  absl::MutexLock changing(&change_mutex_);
  files_->Retire(file);  // from here on nothing is published in it
  {
    absl::MutexLock lock(&mutex_);
    const auto since = unsynced_.find(file);
    if (since != unsynced_.end()) {
      written.insert(written.end(), since->second.begin(), since->second.end());
      unsynced_.erase(since);
    }
  }
  std::vector<RecordKey> lost;
  for (const Written& page : written) {
    const auto record = index_->Get(page.key);
    if (!record.ok() || record->extent != page.extent) continue;  // replaced or deleted since
    lost.push_back(page.key);
    // If even that fails, the record stays until its bytes are read and found wrong.
    const absl::Status deleted = Unpublish(*record);
    if (!deleted.ok()) LogWarning("ssd_delete_failed", {{"error", deleted.ToString()}});
  }
  LogError("ssd_sync_failed", {{"path", files_->PathOf(file)},
                               {"pages_lost", absl::StrCat(lost.size())},
                               {"error", cause.ToString()}});
  absl::MutexLock lock(&mutex_);
  lost_.insert(lost_.end(), lost.begin(), lost.end());
}

std::vector<RecordKey> SsdTier::TakeLost() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(lost_, {});
}

void SsdTier::ReuseFreed() {
  std::vector<Extent> reusable;
  {
    absl::MutexLock lock(&mutex_);
    reusable = limbo_.TakeReusable();
  }
  for (const Extent& extent : reusable) files_->Free(extent);
}

// ---- Changing -----------------------------------------------------------------------------------

void SsdTier::WaitForRate(int64_t bytes) {
  absl::MutexLock lock(&mutex_);
  const absl::Duration wait = write_rate_.Take(bytes, clock_.Monotonic());
  if (wait > absl::ZeroDuration()) mutex_.AwaitWithTimeout(absl::Condition(&stopping_), wait);
}

absl::StatusOr<Extent> SsdTier::AllocateOrFlush(int64_t bytes) {
  absl::StatusOr<Extent> extent = files_->Allocate(bytes);
  if (extent.status().code() != absl::StatusCode::kResourceExhausted) return extent;
  bool wants_flush = false;
  {
    absl::MutexLock lock(&mutex_);
    if (limbo_.waiting_count() == 0) return extent;
    wants_flush = limbo_.wants_flush();
  }
  if (wants_flush) {
    PAGODA_RETURN_IF_ERROR(Flush());
  } else {
    ReuseFreed();  // readers may have ended since the last flush
  }
  return files_->Allocate(bytes);
}

absl::Status SsdTier::WriteBytes(const Extent& extent, const SsdPageWrite& page) {
  std::vector<ByteSpan> parts = {page.header};
  parts.insert(parts.end(), page.segments.begin(), page.segments.end());
  int64_t bounced_bytes = 0;
  for (const ByteSpan part : parts) bounced_bytes += IsAligned(part) ? 0 : PaddedBytes(part);
  const AlignedBuffer bounce(bounced_bytes);
  MutableByteSpan left = bounce.bytes();
  for (ByteSpan& part : parts) {
    if (IsAligned(part)) continue;
    const MutableByteSpan copy = left.subspan(0, PaddedBytes(part));
    std::memcpy(copy.data(), part.data(), part.size());
    std::memset(copy.data() + part.size(), 0, copy.size() - part.size());
    left.remove_prefix(copy.size());
    part = copy;
  }
  return files_->Write(extent, parts);
}

absl::Status SsdTier::Put(const SsdPageWrite& page) {
  PAGODA_CHECK(page.segments.size() == page.record.segment_count);
  int64_t bytes = PaddedBytes(page.header);
  for (const ByteSpan segment : page.segments) bytes += PaddedBytes(segment);
  PAGODA_CHECK(bytes == page.record.bytes);
  PAGODA_CHECK(page.header.size() == page.record.header_bytes);
  CrashPoint(CrashAt::kSsdPut);
  DirectoryRecord record = page.record;
  PAGODA_ASSIGN_OR_RETURN(record.extent, AllocateOrFlush(bytes));
  absl::Status status = WriteBytes(record.extent, page);
  CrashPoint(CrashAt::kSsdRecord);
  if (status.ok()) status = Publish(record);
  CrashPoint(CrashAt::kSsdPutDone);
  if (!status.ok()) files_->Free(record.extent);  // nothing names it
  return status;
}

absl::Status SsdTier::Publish(const DirectoryRecord& record) {
  absl::MutexLock changing(&change_mutex_);
  if (files_->IsRetired(record.extent.file)) {
    return absl::UnavailableError(
        absl::StrCat("ssd: ", files_->PathOf(record.extent.file), " failed to sync meanwhile"));
  }
  const auto old = index_->Get(record.record);
  const absl::StatusCode code = old.status().code();
  if (!old.ok() && code != absl::StatusCode::kDataLoss && code != absl::StatusCode::kNotFound) {
    return old.status();
  }
  PAGODA_RETURN_IF_ERROR(index_->Put(record));
  used_bytes_.fetch_add(record.bytes - (old.ok() ? old->bytes : 0), std::memory_order_relaxed);
  page_count_.fetch_add(old.ok() ? 0 : 1, std::memory_order_relaxed);
  unflushed_count_.fetch_add(1, std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  unsynced_[record.extent.file].push_back({record.record, record.extent});
  if (old.ok()) limbo_.Retire(old->extent);
  return absl::OkStatus();
}

absl::Status SsdTier::Unpublish(const DirectoryRecord& record) {
  PAGODA_RETURN_IF_ERROR(index_->Delete(record.record.Encode()));
  used_bytes_.fetch_sub(record.bytes, std::memory_order_relaxed);
  page_count_.fetch_sub(1, std::memory_order_relaxed);
  unflushed_count_.fetch_add(1, std::memory_order_relaxed);
  absl::MutexLock lock(&mutex_);
  limbo_.Retire(record.extent);
  return absl::OkStatus();
}

absl::Status SsdTier::Delete(const RecordKey& key) {
  absl::MutexLock changing(&change_mutex_);
  const auto old = index_->Get(key);
  if (old.ok()) {
    CrashPoint(CrashAt::kSsdDelete);
    const absl::Status deleted = Unpublish(*old);
    CrashPoint(CrashAt::kSsdDeleteDone);
    return deleted;
  }
  if (old.status().code() == absl::StatusCode::kNotFound) return absl::OkStatus();
  if (old.status().code() == absl::StatusCode::kDataLoss) return DeleteDamaged(key.Encode());
  return old.status();
}

absl::Status SsdTier::DeleteDamaged(absl::string_view encoded_key) {
  PAGODA_RETURN_IF_ERROR(index_->Delete(encoded_key));
  unflushed_count_.fetch_add(1, std::memory_order_relaxed);
  return absl::OkStatus();
}

absl::Status SsdTier::Probe() {
  PAGODA_ASSIGN_OR_RETURN(const Extent extent, AllocateOrFlush(kExtentAlignBytes));
  const AlignedBuffer written(extent.bytes);
  const AlignedBuffer read(extent.bytes);
  PAGODA_ASSIGN_OR_RETURN(const Sha256Digest pattern, RandomBytes32());
  std::memset(written.bytes().data(), 0, written.bytes().size());
  std::memcpy(written.bytes().data(), pattern.data(), pattern.size());
  absl::Status status = files_->Write(extent, {written.bytes()});
  if (status.ok()) {
    status = files_->Sync(extent.file);
    if (!status.ok()) Lose(extent.file, {}, status);
  }
  if (status.ok()) status = files_->Read(extent, 0, {read.bytes()});
  if (status.ok() && AsText(read.bytes()) != AsText(written.bytes())) {
    status = absl::UnavailableError("ssd: the disk does not give back what was just written");
  }
  files_->Free(extent);
  PAGODA_RETURN_IF_ERROR(status);
  return Flush();
}

// ---- Reading ------------------------------------------------------------------------------------

SsdTier::Reader::Reader(Reader&& other) noexcept
    : tier_(std::exchange(other.tier_, nullptr)),
      epoch_(other.epoch_),
      extent_(other.extent_),
      header_(std::move(other.header_)) {}

SsdTier::Reader::~Reader() {
  if (tier_ == nullptr) return;
  absl::MutexLock lock(&tier_->mutex_);
  tier_->limbo_.EndRead(epoch_);
}

absl::StatusOr<DirectoryRecord> SsdTier::Find(const RecordKey& key) const {
  return index_->Get(key);
}

absl::StatusOr<SsdTier::Reader> SsdTier::ReadPage(const RecordKey& key, const ScopeId& scope,
                                                  const Identity& identity) {
  ExtentLimbo::Epoch epoch = 0;
  {
    absl::MutexLock lock(&mutex_);
    epoch = limbo_.BeginRead();
  }
  Reader reader(this, epoch);  // before the record is read: its bytes stay until we are done
  PAGODA_ASSIGN_OR_RETURN(const DirectoryRecord record, index_->Get(key));
  const AlignedBuffer buffer(record.header_bytes);
  PAGODA_RETURN_IF_ERROR(files_->Read(record.extent, 0, {buffer.bytes()}));
  auto header = DecodePageHeader(buffer.bytes());
  if (!header.ok()) return SsdDamage(IntegrityKind::kHeader, header.status().message());
  if (header->record != key || header->scope != scope || header->identity != identity) {
    return SsdDamage(IntegrityKind::kHeader, "header of another page, scope or model");
  }
  DirectoryRecord expected = DirectoryRecordOf(*header);
  expected.extent = record.extent;
  if (expected != record) {
    return SsdDamage(IntegrityKind::kHeader, "header does not fit its record");
  }
  reader.extent_ = record.extent;
  reader.header_ = *std::move(header);
  return reader;
}

absl::Status SsdTier::Reader::Verify(uint32_t index, ByteSpan padded) const {
  const SegmentEntry& segment = header_.segments[index];
  if (Crc32c(padded.subspan(0, segment.length)) == segment.crc32c) return absl::OkStatus();
  return SsdDamage(IntegrityKind::kSegment, absl::StrFormat("checksum of segment %d", index));
}

absl::Status SsdTier::Reader::ReadSegment(uint32_t index, MutableByteSpan target) const {
  PAGODA_CHECK(index < header_.segments.size());
  const SegmentEntry& segment = header_.segments[index];
  const bool padded = target.size() == static_cast<size_t>(segment.stored_bytes());
  PAGODA_CHECK(padded || target.size() == segment.length);
  if (padded && IsAligned(target)) {
    PAGODA_RETURN_IF_ERROR(
        tier_->files_->Read(extent_, static_cast<int64_t>(segment.offset), {target}));
    PAGODA_RETURN_IF_ERROR(Verify(index, target));
    // No checksum covers the padding.
    std::memset(target.data() + segment.length, 0, target.size() - segment.length);
    return absl::OkStatus();
  }
  const AlignedBuffer buffer(segment.stored_bytes());
  PAGODA_RETURN_IF_ERROR(
      tier_->files_->Read(extent_, static_cast<int64_t>(segment.offset), {buffer.bytes()}));
  PAGODA_RETURN_IF_ERROR(Verify(index, buffer.bytes()));
  std::memcpy(target.data(), buffer.bytes().data(), segment.length);
  std::memset(target.data() + segment.length, 0, target.size() - segment.length);
  return absl::OkStatus();
}

absl::Status SsdTier::Reader::ReadAll(absl::Span<const MutableByteSpan> targets) const {
  PAGODA_CHECK(targets.size() == header_.segments.size());
  int64_t bounced_bytes = 0;
  for (size_t i = 0; i < targets.size(); ++i) {
    const SegmentEntry& segment = header_.segments[i];
    PAGODA_CHECK(targets[i].size() == segment.length ||
                 targets[i].size() == static_cast<size_t>(segment.stored_bytes()));
    if (!IsAligned(targets[i])) bounced_bytes += segment.stored_bytes();
  }
  const AlignedBuffer bounce(bounced_bytes);
  MutableByteSpan left = bounce.bytes();
  std::vector<MutableByteSpan> parts(targets.begin(), targets.end());
  for (MutableByteSpan& part : parts) {
    if (IsAligned(part)) continue;
    const size_t bytes = PaddedBytes(part);
    part = left.subspan(0, bytes);
    left.remove_prefix(bytes);
  }
  PAGODA_RETURN_IF_ERROR(tier_->files_->Read(extent_, header_.header_bytes(), parts));
  for (uint32_t i = 0; i < parts.size(); ++i) {
    PAGODA_RETURN_IF_ERROR(Verify(i, parts[i]));
    const uint32_t length = header_.segments[i].length;
    if (parts[i].data() != targets[i].data()) {
      std::memcpy(targets[i].data(), parts[i].data(), length);
    }
    // No checksum covers the padding.
    std::memset(targets[i].data() + length, 0, targets[i].size() - length);
  }
  return absl::OkStatus();
}

absl::Status SsdTier::ForEachRecord(
    absl::FunctionRef<void(const DirectoryRecord&)> on_record,
    absl::FunctionRef<void(absl::string_view, const absl::Status&)> on_damaged) const {
  return index_->ForEach(on_record, on_damaged);
}

}  // namespace pagoda
