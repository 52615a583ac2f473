// Opens the SSD tier's index and extent files behind its back, to damage them as a disk would.
#pragma once

#include <memory>
#include <string>

#include "storage/directory_record.h"

namespace rocksdb {
class ColumnFamilyHandle;
class DB;
}  // namespace rocksdb

namespace pagoda {

constexpr int kRawHeader = -1;  // instead of the index of a segment

class RawSsd {
 public:
  // The tier must be closed.
  explicit RawSsd(const std::string& path);
  ~RawSsd();  // flushes

  // The stored bytes of a segment or of the header, padding included, wherever they lie. Putting
  // writes as many bytes as it is given to the same place. Aborts if there is no such page.
  std::string GetBytes(const RecordKey& key, int index);
  void PutBytes(const RecordKey& key, int index, const std::string& value);
  void FlipBit(const RecordKey& key, int index, size_t bit);

  DirectoryRecord GetRecord(const RecordKey& key);
  void PutRecord(const DirectoryRecord& record);
  std::string GetMeta(const std::string& key);
  void PutMeta(const std::string& key, const std::string& value);
  std::string GetFormat();
  void PutFormat(const std::string& value);
  void DeleteFormat();

 private:
  struct Place {
    std::string file;
    int64_t offset = 0;
    int64_t bytes = 0;
  };
  Place PlaceOf(const RecordKey& key, int index);

  const std::string path_;
  std::unique_ptr<rocksdb::DB> db_;
  rocksdb::ColumnFamilyHandle* default_ = nullptr;
  rocksdb::ColumnFamilyHandle* meta_ = nullptr;
};

// Path of an extent file of the folder.
std::string ExtentFilePath(const std::string& path, uint32_t file);

}  // namespace pagoda
