// Fuzzes ParsePushPacket, which reads what any client of this machine sends. Method: what was read,
// written again, reads the same.
#include <string>

#include "proto/shm_push_packet.h"
#include "storage/base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const absl::string_view bytes(reinterpret_cast<const char*>(data), size);
  const auto view = pagoda::shm::ParsePushPacket(bytes);
  if (!view.ok()) return 0;
  const std::string fields = view->fields.SerializeAsString();
  const auto again =
      pagoda::shm::ParsePushPacket(pagoda::shm::PushPacket(view->tag, view->offsets, fields));
  PAGODA_CHECK(again.ok());
  PAGODA_CHECK(again->tag == view->tag && again->offsets == view->offsets);
  PAGODA_CHECK(again->fields.SerializeAsString() == fields);
  return 0;
}
