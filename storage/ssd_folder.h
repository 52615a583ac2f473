// The folder of the SSD tier, before RocksDB sees it: it exists, we may write to it, and we know
// whether it takes direct I/O (RocksDB's own messages for these cases name neither); or its content
// is set aside.
//
// Errors  UNAVAILABLE  names the folder, the step and the system's reason
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace pagoda {

struct SsdFolder {
  bool direct_io = false;  // the file system takes O_DIRECT (tmpfs does since Linux 6.6)
};

// Moves RocksDB's files to the folder "damaged" below `path`, where the last damaged index is kept
// for a look at it, and removes the pages. The new folder's path. RocksDB must not have it open.
absl::StatusOr<std::string> SetSsdIndexAside(const std::string& path);

// Creates the folder if it is absent. Leaves no file behind.
absl::StatusOr<SsdFolder> PrepareSsdFolder(const std::string& path);

}  // namespace pagoda
