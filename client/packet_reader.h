// Takes structs off the front of a packet of proto/shm_protocol.h, never beyond its end.
#pragma once

#include <cstring>

#include "absl/strings/string_view.h"

namespace pagoda::client {

class PacketReader {
 public:
  explicit PacketReader(absl::string_view bytes) : bytes_(bytes) {}
  template <typename T>
  bool Take(T& value) {
    if (bytes_.size() < sizeof(T)) return false;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return true;
  }
  bool TakeBytes(size_t size, absl::string_view& bytes) {
    if (bytes_.size() < size) return false;
    bytes = bytes_.substr(0, size);
    bytes_.remove_prefix(size);
    return true;
  }
  bool Skip(size_t bytes) {
    absl::string_view skipped;
    return TakeBytes(bytes, skipped);
  }
  absl::string_view rest() const { return bytes_; }

 private:
  absl::string_view bytes_;
};

}  // namespace pagoda::client
