// Fuzzes DecodePageHeader, which reads bytes from disks and peers.
// Method: the input as it is; then again with magic, version and checksum put right, so that the
// rules behind them are reached. What decodes must encode and decode to the same.
#include <string>

#include "storage/base/check.h"
#include "storage/base/page_header.h"
#include "storage/base/testing/mended_header.h"

namespace pagoda {
namespace {

void CheckOne(const std::string& bytes) {
  const absl::StatusOr<PageHeader> header = DecodePageHeader(AsBytes(bytes));
  if (!header.ok()) return;
  (void)PrecisionOf(header->planes);
  const std::string encoded = EncodePageHeader(*header);
  const absl::StatusOr<PageHeader> again = DecodePageHeader(AsBytes(encoded));
  PAGODA_CHECK(again.ok());
  PAGODA_CHECK(EncodePageHeader(*again) == encoded);
  PAGODA_CHECK(again->stored_bytes() == header->stored_bytes());
}

}  // namespace
}  // namespace pagoda

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  pagoda::CheckOne(bytes);
  pagoda::CheckOne(pagoda::MendedHeader(bytes));
  return 0;
}
