// A RocksDB environment whose files cannot be written or read while it is told to fail: new files,
// appends and syncs, or reads, give the same error.
//
// Threads  every method from any thread
#pragma once

#include <memory>

#include "rocksdb/env.h"
#include "rocksdb/io_status.h"

namespace pagoda {

class FaultyEnv {
 public:
  FaultyEnv();
  ~FaultyEnv();
  // To be put into SsdSystem; must outlive the database.
  rocksdb::Env* env() const { return env_.get(); }

  void FailWrites(const rocksdb::IOStatus& error);
  // The same, but only once `count` more tables (.sst) have been begun: the last of them and what
  // comes after it fail. A flush begins one for each family with changes, a compaction others.
  void FailWritesAfterTables(int count, const rocksdb::IOStatus& error);
  // Reads of files fail from the `count`-th on.
  void FailReadsAfter(int64_t count, const rocksdb::IOStatus& error);
  void Heal();
  int64_t fault_count() const;

 private:
  class Files;
  std::shared_ptr<Files> files_;
  std::unique_ptr<rocksdb::Env> env_;
};

}  // namespace pagoda
