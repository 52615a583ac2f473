// Fuzzes DecodePageHeader, which reads bytes from disks and peers.
// Method: the input as it is; then again with magic, version and checksum put right, so that the
// rules behind them are reached. What decodes must encode and decode to the same.
#include <cstring>
#include <string>

#include "storage/base/check.h"
#include "storage/base/crc32c.h"
#include "storage/base/page_header.h"

namespace pagoda {
namespace {

constexpr size_t kCrcOffset = 380;
constexpr size_t kHeaderBytesOffset = 12;

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

// The same bytes, past magic, version, length and checksum.
std::string Mended(std::string bytes) {
  const std::string good = EncodePageHeader(PageHeader{});
  if (bytes.size() < good.size()) bytes.resize(good.size());
  bytes.resize(AlignUp(bytes.size(), kSegmentAlignBytes));
  std::memcpy(bytes.data(), good.data(), kHeaderBytesOffset);
  const auto size = static_cast<uint32_t>(bytes.size());
  std::memcpy(bytes.data() + kHeaderBytesOffset, &size, sizeof(size));
  std::memset(bytes.data() + kCrcOffset, 0, sizeof(uint32_t));
  const uint32_t crc = Crc32c(AsBytes(bytes));
  std::memcpy(bytes.data() + kCrcOffset, &crc, sizeof(crc));
  return bytes;
}

}  // namespace
}  // namespace pagoda

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  pagoda::CheckOne(bytes);
  pagoda::CheckOne(pagoda::Mended(bytes));
  return 0;
}
