#include "storage/device/runtime.h"

#include "absl/strings/str_cat.h"

namespace pagoda {

std::string DeviceUuid::ToString() const {
  std::string text = "GPU-";
  for (size_t i = 0; i < bytes.size(); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    absl::StrAppend(&text, absl::Hex(bytes[i], absl::kZeroPad2));
  }
  return text;
}

absl::string_view CopyDirectionName(CopyDirection direction) {
  switch (direction) {
    case CopyDirection::kHostToDevice:
      return "h2d";
    case CopyDirection::kDeviceToHost:
      return "d2h";
    case CopyDirection::kWithinDevice:
      return "d2d";
  }
  return "unknown";
}

}  // namespace pagoda
