// Fuzzes DecodeDirectoryRecord, which reads bytes from disks: the first 37 bytes are the record
// key. Method: the rest as it is; then again with version, length and checksum put right, so that
// the rules behind them are reached. What decodes must survive being encoded and decoded again.
#include <cstddef>
#include <cstdint>

#include "storage/base/check.h"
#include "storage/directory_record.h"
#include "storage/testing/mended_record.h"

namespace pagoda {
namespace {

void CheckOne(const RecordKey& key, const std::string& bytes) {
  const auto record = DecodeDirectoryRecord(key, AsBytes(bytes));
  if (!record.ok()) return;
  const auto again = DecodeDirectoryRecord(key, AsBytes(EncodeDirectoryRecord(*record)));
  PAGODA_CHECK(again.ok());
  PAGODA_CHECK(*again == *record);
}

}  // namespace
}  // namespace pagoda

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using pagoda::RecordKey;
  if (size < RecordKey::kEncodedBytes) return 0;
  const std::string input(reinterpret_cast<const char*>(data), size);
  const auto key = RecordKey::Decode(absl::string_view(input).substr(0, RecordKey::kEncodedBytes));
  if (!key.has_value()) return 0;
  const std::string bytes = input.substr(RecordKey::kEncodedBytes);
  pagoda::CheckOne(*key, bytes);
  pagoda::CheckOne(*key, pagoda::MendedRecord(*key, bytes));
  return 0;
}
