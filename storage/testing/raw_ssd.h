// Opens the SSD tier's RocksDB behind its back, to damage it as a disk would.
#pragma once

#include <memory>
#include <string>

#include "storage/base/page_key.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
}  // namespace rocksdb

namespace pagoda {

class RawSsd {
 public:
  // The tier must be closed.
  explicit RawSsd(const std::string& path);
  ~RawSsd();  // flushes

  // `index` of a segment, or 0xffff for the header. Aborts if there is no such value.
  std::string GetPlane(const RecordKey& key, uint16_t index);
  void PutPlane(const RecordKey& key, uint16_t index, const std::string& value);
  void DeletePlane(const RecordKey& key, uint16_t index);
  std::string GetMeta(const std::string& key);
  void PutMeta(const std::string& key, const std::string& value);
  std::string GetFormat();
  void PutFormat(const std::string& value);
  void DeleteFormat();

 private:
  std::unique_ptr<rocksdb::DB> db_;
  rocksdb::ColumnFamilyHandle* default_ = nullptr;
  rocksdb::ColumnFamilyHandle* meta_ = nullptr;
  rocksdb::ColumnFamilyHandle* planes_ = nullptr;
};

}  // namespace pagoda
