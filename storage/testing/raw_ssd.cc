#include "storage/testing/raw_ssd.h"

#include "rocksdb/db.h"
#include "storage/base/check.h"
#include "storage/ssd_rocksdb.h"

namespace pagoda {
namespace {

std::string PlaneKey(const RecordKey& key, uint16_t index) {
  return key.Encode() + static_cast<char>(index >> 8) + static_cast<char>(index & 0xff);
}

rocksdb::WriteOptions NoLog() {
  rocksdb::WriteOptions options;
  options.disableWAL = true;
  return options;
}

std::string MustGet(rocksdb::DB& db, rocksdb::ColumnFamilyHandle* family, const std::string& key) {
  std::string value;
  const rocksdb::Status status = db.Get(rocksdb::ReadOptions(), family, key, &value);
  PAGODA_CHECK(status.ok());
  return value;
}

}  // namespace

RawSsd::RawSsd(const std::string& path) {
  SsdOptions options;
  options.path = path;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(SsdDbOptions(options, /*direct_io=*/false), path,
                                                   SsdFamilies(options), &handles, &db);
  PAGODA_CHECK(status.ok());
  db_.reset(db);
  default_ = handles[0];
  meta_ = handles[1];
  planes_ = handles[2];
}

RawSsd::~RawSsd() {
  rocksdb::Status status = db_->Flush(rocksdb::FlushOptions(), {default_, meta_, planes_});
  PAGODA_CHECK(status.ok());
  for (rocksdb::ColumnFamilyHandle* handle : {default_, meta_, planes_}) {
    status = db_->DestroyColumnFamilyHandle(handle);
    PAGODA_CHECK(status.ok());
  }
  status = db_->Close();
  PAGODA_CHECK(status.ok());
}

std::string RawSsd::GetPlane(const RecordKey& key, uint16_t index) {
  return MustGet(*db_, planes_, PlaneKey(key, index));
}
void RawSsd::PutPlane(const RecordKey& key, uint16_t index, const std::string& value) {
  PAGODA_CHECK(db_->Put(NoLog(), planes_, PlaneKey(key, index), value).ok());
}
void RawSsd::DeletePlane(const RecordKey& key, uint16_t index) {
  PAGODA_CHECK(db_->Delete(NoLog(), planes_, PlaneKey(key, index)).ok());
}
std::string RawSsd::GetMeta(const std::string& key) { return MustGet(*db_, meta_, key); }
void RawSsd::PutMeta(const std::string& key, const std::string& value) {
  PAGODA_CHECK(db_->Put(NoLog(), meta_, key, value).ok());
}
std::string RawSsd::GetFormat() { return MustGet(*db_, default_, kSsdFormatKey); }
void RawSsd::PutFormat(const std::string& value) {
  PAGODA_CHECK(db_->Put(NoLog(), default_, kSsdFormatKey, value).ok());
}
void RawSsd::DeleteFormat() { PAGODA_CHECK(db_->Delete(NoLog(), default_, kSsdFormatKey).ok()); }

}  // namespace pagoda
