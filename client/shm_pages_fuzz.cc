// Fuzzes what a client reads out of a daemon's memory: headers at any place, of any content, with
// any slabs. Method: the input is the front of a sealed memfd, and at its end the slabs of one
// page; whatever comes out names bytes inside the memory, every one of which is read.
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <memory>

#include "client/shm_pages.h"
#include "storage/base/check.h"
#include "storage/base/clock.h"

namespace pagoda::client {
namespace {

constexpr size_t kChunkBytes = 64 << 10;
constexpr size_t kMemfdBytes = kChunkBytes + 4096;

// One memory for all inputs: the daemon's side of it, and the client's.
struct Memory {
  Memory() : fd(::memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING)) {
    PAGODA_CHECK(::ftruncate(fd.get(), kMemfdBytes) == 0);
    data = static_cast<char*>(
        ::mmap(nullptr, kMemfdBytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0));
    PAGODA_CHECK(data != MAP_FAILED);
    PAGODA_CHECK(::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    auto made = ShmMap::Make(fd, {kMemfdBytes, kChunkBytes});
    PAGODA_CHECK(made.ok());
    map = *std::move(made);
  }
  UniqueFd fd;
  char* data = nullptr;
  ShmMapPtr map;
};

void Check(const uint8_t* data, size_t size) {
  static const auto* const memory = new Memory();
  constexpr size_t kSlabsMax = 6;
  if (size < kSlabsMax) return;
  const uint8_t* const slabs = data + size - kSlabsMax;
  std::memset(memory->data, 0, kMemfdBytes);
  std::memcpy(memory->data, data, std::min(size - kSlabsMax, kChunkBytes));
  // The record and the identity that the header itself states, so that more than the first check is
  // reached.
  RecordKey record;
  Identity identity;
  const auto header = DecodePageHeader(AsBytes(absl::string_view(
      reinterpret_cast<const char*>(data), std::min(size - kSlabsMax, kChunkBytes))));
  if (header.ok()) {
    record = header->record;
    identity = header->identity;
  }
  ShmPages pages({record}, identity, SystemClock().Monotonic() + absl::Hours(1));
  pages.Hold(memory->map);
  for (size_t i = 0; i < kSlabsMax; ++i) {
    if (i > 0 && slabs[i] == 0xff) break;
    if (!pages.AddSlab({1, static_cast<uint64_t>(slabs[i] % 20) * 4096, slabs[i] / 200u},
                       *memory->map)) {
      return;
    }
  }
  pages.AddPage({});
  const absl::StatusOr<MappedPage> page = pages.Page(0);
  (void)pages.StillThere(0, 1);
  if (!page.ok()) return;
  PAGODA_CHECK(page->segments.size() == page->header.segments.size());
  volatile char sum = 0;
  for (const ByteSpan segment : page->segments) {
    for (const std::byte b : segment) sum = static_cast<char>(sum + static_cast<char>(b));
  }
}

}  // namespace
}  // namespace pagoda::client

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  pagoda::client::Check(data, size);
  return 0;
}
