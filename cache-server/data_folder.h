// The folder that a daemon owns while it runs: made if absent, checked for writing, locked against
// a second daemon. The lock ends with the process, however it ends.
//
// Errors  UNAVAILABLE          cannot be made or written; names the cause
//         FAILED_PRECONDITION  another daemon uses it
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace pagoda {

class DataFolder {
 public:
  static absl::StatusOr<std::unique_ptr<DataFolder>> Take(const std::string& path);
  ~DataFolder();
  DataFolder(const DataFolder&) = delete;
  DataFolder& operator=(const DataFolder&) = delete;

 private:
  explicit DataFolder(int lock) : lock_(lock) {}
  const int lock_;
};

}  // namespace pagoda
