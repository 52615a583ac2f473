// Feeds arbitrary bytes to the decoder of directory records, the first 37 as the record key. What
// decodes must survive being encoded and decoded again: no field is read that is not written.
#include <cstddef>
#include <cstdint>

#include "storage/base/check.h"
#include "storage/directory_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace pagoda;  // NOLINT: an entry point of one function
  const absl::string_view input(reinterpret_cast<const char*>(data), size);
  if (size < RecordKey::kEncodedBytes) return 0;
  const auto key = RecordKey::Decode(input.substr(0, RecordKey::kEncodedBytes));
  if (!key.has_value()) return 0;
  const absl::string_view bytes = input.substr(RecordKey::kEncodedBytes);
  const auto record = DecodeDirectoryRecord(*key, AsBytes(bytes));
  if (record.ok()) {
    const auto again = DecodeDirectoryRecord(*key, AsBytes(EncodeDirectoryRecord(*record)));
    PAGODA_CHECK(again.ok());
    PAGODA_CHECK(*again == *record);
  }
  return 0;
}
