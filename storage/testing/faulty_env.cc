#include "storage/testing/faulty_env.h"

#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "rocksdb/file_system.h"

namespace pagoda {

using rocksdb::IOStatus;

class FaultyEnv::Files : public rocksdb::FileSystemWrapper {
 public:
  Files() : FileSystemWrapper(rocksdb::FileSystem::Default()) {}
  const char* Name() const override { return "pagoda-faulty"; }

  void Set(const IOStatus& error, int after_tables = 0) {
    absl::MutexLock lock(&mutex_);
    error_ = after_tables > 0 ? IOStatus::OK() : error;
    later_error_ = error;
    tables_left_ = after_tables;
  }
  void SetReads(const IOStatus& error, int64_t after) {
    absl::MutexLock lock(&mutex_);
    read_error_ = error;
    reads_left_ = after;
  }
  IOStatus MeetRead() {
    absl::MutexLock lock(&mutex_);
    if (read_error_.ok() || reads_left_-- > 0) return IOStatus::OK();
    ++fault_count_;
    return read_error_;
  }
  IOStatus NewRandomAccessFile(const std::string& path, const rocksdb::FileOptions& options,
                               std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                               rocksdb::IODebugContext* debug) override;
  void CountTable(const std::string& path) {
    if (!absl::EndsWith(path, ".sst")) return;
    absl::MutexLock lock(&mutex_);
    if (tables_left_ > 0 && --tables_left_ == 0) error_ = later_error_;
  }
  int64_t fault_count() const {
    absl::MutexLock lock(&mutex_);
    return fault_count_;
  }
  IOStatus Meet() {
    absl::MutexLock lock(&mutex_);
    if (!error_.ok()) ++fault_count_;
    return error_;
  }
  IOStatus NewWritableFile(const std::string& path, const rocksdb::FileOptions& options,
                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                           rocksdb::IODebugContext* debug) override;

 private:
  mutable absl::Mutex mutex_;
  IOStatus error_ ABSL_GUARDED_BY(mutex_);
  IOStatus later_error_ ABSL_GUARDED_BY(mutex_);
  IOStatus read_error_ ABSL_GUARDED_BY(mutex_);
  int64_t reads_left_ ABSL_GUARDED_BY(mutex_) = 0;
  int tables_left_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t fault_count_ ABSL_GUARDED_BY(mutex_) = 0;
};

namespace {

template <typename Meeter>
class FaultyFile : public rocksdb::FSWritableFileOwnerWrapper {
 public:
  FaultyFile(std::unique_ptr<rocksdb::FSWritableFile>&& target, Meeter meet)
      : FSWritableFileOwnerWrapper(std::move(target)), meet_(std::move(meet)) {}

  IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                  rocksdb::IODebugContext* debug) override {
    IOStatus failed = meet_();
    return failed.ok() ? FSWritableFileOwnerWrapper::Append(data, options, debug) : failed;
  }
  IOStatus Append(const rocksdb::Slice& data, const rocksdb::IOOptions& options,
                  const rocksdb::DataVerificationInfo& info,
                  rocksdb::IODebugContext* debug) override {
    IOStatus failed = meet_();
    return failed.ok() ? FSWritableFileOwnerWrapper::Append(data, options, info, debug) : failed;
  }
  IOStatus Sync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
    IOStatus failed = meet_();
    return failed.ok() ? FSWritableFileOwnerWrapper::Sync(options, debug) : failed;
  }
  IOStatus Fsync(const rocksdb::IOOptions& options, rocksdb::IODebugContext* debug) override {
    IOStatus failed = meet_();
    return failed.ok() ? FSWritableFileOwnerWrapper::Fsync(options, debug) : failed;
  }

 private:
  const Meeter meet_;
};

template <typename Meeter>
class FaultyReader : public rocksdb::FSRandomAccessFileOwnerWrapper {
 public:
  FaultyReader(std::unique_ptr<rocksdb::FSRandomAccessFile>&& target, Meeter meet)
      : FSRandomAccessFileOwnerWrapper(std::move(target)), meet_(std::move(meet)) {}

  IOStatus Read(uint64_t offset, size_t count, const rocksdb::IOOptions& options,
                rocksdb::Slice* result, char* scratch,
                rocksdb::IODebugContext* debug) const override {
    IOStatus failed = meet_();
    if (!failed.ok()) return failed;
    return FSRandomAccessFileOwnerWrapper::Read(offset, count, options, result, scratch, debug);
  }

 private:
  const Meeter meet_;
};

}  // namespace

IOStatus FaultyEnv::Files::NewRandomAccessFile(const std::string& path,
                                               const rocksdb::FileOptions& options,
                                               std::unique_ptr<rocksdb::FSRandomAccessFile>* file,
                                               rocksdb::IODebugContext* debug) {
  IOStatus status = FileSystemWrapper::NewRandomAccessFile(path, options, file, debug);
  if (!status.ok()) return status;
  const auto meet = [this] { return MeetRead(); };
  *file = std::make_unique<FaultyReader<decltype(meet)>>(std::move(*file), meet);
  return status;
}

IOStatus FaultyEnv::Files::NewWritableFile(const std::string& path,
                                           const rocksdb::FileOptions& options,
                                           std::unique_ptr<rocksdb::FSWritableFile>* file,
                                           rocksdb::IODebugContext* debug) {
  CountTable(path);
  IOStatus status = Meet();
  if (status.ok()) status = FileSystemWrapper::NewWritableFile(path, options, file, debug);
  if (!status.ok()) return status;
  const auto meet = [this] { return Meet(); };
  *file = std::make_unique<FaultyFile<decltype(meet)>>(std::move(*file), meet);
  return status;
}

FaultyEnv::FaultyEnv()
    : files_(std::make_shared<Files>()), env_(rocksdb::NewCompositeEnv(files_)) {}
FaultyEnv::~FaultyEnv() = default;

void FaultyEnv::FailWrites(const IOStatus& error) { files_->Set(error); }
void FaultyEnv::FailWritesAfterTables(int count, const IOStatus& error) {
  files_->Set(error, count);
}
void FaultyEnv::FailReadsAfter(int64_t count, const IOStatus& error) {
  files_->SetReads(error, count);
}
void FaultyEnv::Heal() {
  files_->Set(IOStatus::OK());
  files_->SetReads(IOStatus::OK(), 0);
}
int64_t FaultyEnv::fault_count() const { return files_->fault_count(); }

}  // namespace pagoda
