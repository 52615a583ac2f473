#include "storage/testing/raw_ssd.h"

#include <cstdio>
#include <fstream>

#include "rocksdb/db.h"
#include "storage/base/check.h"
#include "storage/ssd_index.h"

namespace pagoda {
namespace {

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

std::string ReadFile(const std::string& file, int64_t offset, int64_t bytes) {
  std::ifstream in(file, std::ios::binary);
  std::string value(bytes, '\0');
  in.seekg(offset);
  in.read(value.data(), bytes);
  PAGODA_CHECK(in.good());
  return value;
}

}  // namespace

std::string ExtentFilePath(const std::string& path, uint32_t file) {
  char name[64];
  std::snprintf(name, sizeof(name), "/extents/%06u.extents", file);
  return path + name;
}

RawSsd::RawSsd(const std::string& path) : path_(path) {
  SsdOptions options;
  options.path = path;
  std::vector<rocksdb::ColumnFamilyHandle*> handles;
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status =
      rocksdb::DB::Open(SsdDbOptions(options), path, SsdFamilies(options), &handles, &db);
  PAGODA_CHECK(status.ok());
  db_.reset(db);
  default_ = handles[0];
  meta_ = handles[1];
}

RawSsd::~RawSsd() {
  rocksdb::Status status = db_->Flush(rocksdb::FlushOptions(), {default_, meta_});
  PAGODA_CHECK(status.ok());
  for (rocksdb::ColumnFamilyHandle* handle : {default_, meta_}) {
    status = db_->DestroyColumnFamilyHandle(handle);
    PAGODA_CHECK(status.ok());
  }
  status = db_->Close();
  PAGODA_CHECK(status.ok());
}

RawSsd::Place RawSsd::PlaceOf(const RecordKey& key, int index) {
  const DirectoryRecord record = GetRecord(key);
  Place place{ExtentFilePath(path_, record.extent.file), record.extent.offset,
              int64_t{record.header_bytes}};
  if (index == kRawHeader) return place;
  const auto header = DecodePageHeader(AsBytes(ReadFile(place.file, place.offset, place.bytes)));
  PAGODA_CHECK(header.ok());
  place.offset += static_cast<int64_t>(header->segments.at(index).offset);
  place.bytes = header->segments.at(index).stored_bytes();
  return place;
}

std::string RawSsd::GetBytes(const RecordKey& key, int index) {
  const Place place = PlaceOf(key, index);
  return ReadFile(place.file, place.offset, place.bytes);
}

void RawSsd::PutBytes(const RecordKey& key, int index, const std::string& value) {
  const Place place = PlaceOf(key, index);
  PAGODA_CHECK(static_cast<int64_t>(value.size()) <= place.bytes);
  std::fstream out(place.file, std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(place.offset);
  out.write(value.data(), static_cast<int64_t>(value.size()));
  PAGODA_CHECK(out.good());
}

void RawSsd::FlipBit(const RecordKey& key, int index, size_t bit) {
  std::string value = GetBytes(key, index);
  value[bit / 8] = static_cast<char>(value[bit / 8] ^ (1 << (bit % 8)));
  PutBytes(key, index, value);
}

DirectoryRecord RawSsd::GetRecord(const RecordKey& key) {
  auto record = DecodeDirectoryRecord(key, AsBytes(GetMeta(key.Encode())));
  PAGODA_CHECK(record.ok());
  return *record;
}
void RawSsd::PutRecord(const DirectoryRecord& record) {
  PutMeta(record.record.Encode(), EncodeDirectoryRecord(record));
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
