// The folder of the SSD tier, before RocksDB sees it: it exists, we may write to it, and we know
// whether it takes direct I/O. RocksDB's own messages for these cases name neither.
//
// Errors  UNAVAILABLE  names the folder, the step and the system's reason
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace pagoda {

struct SsdFolder {
  bool direct_io = false;  // the file system takes O_DIRECT (tmpfs does since Linux 6.6)
};

// Creates the folder if it is absent. Leaves no file behind.
absl::StatusOr<SsdFolder> PrepareSsdFolder(const std::string& path);

}  // namespace pagoda
