// Fuzzes DecodeExport, which reads packets of another process. What decodes must encode to the
// same.
#include <fcntl.h>

#include <string>

#include "storage/base/check.h"
#include "storage/device/memory_export.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const int null_device = open("/dev/null", O_RDONLY | O_CLOEXEC);
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  for (const bool with_descriptor : {false, true}) {
    pagoda::Packet packet{bytes, {}};
    if (with_descriptor) packet.fd = pagoda::UniqueFd(fcntl(null_device, F_DUPFD_CLOEXEC, 0));
    const auto memory = pagoda::DecodeExport(std::move(packet));
    if (!memory.ok()) continue;
    PAGODA_CHECK(memory->handle.bytes > 0);
    PAGODA_CHECK(pagoda::EncodeExport(*memory).substr(16) == bytes.substr(16));
  }
  return 0;
}
