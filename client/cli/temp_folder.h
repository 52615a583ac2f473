// A folder of its own below the system's temporary folder, for daemons that live as long as one
// command. Only its owner may read it.
//
// Ownership  the destructor removes it with everything in it
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace pagoda::cli {

class TempFolder {
 public:
  // "<temporary folder>/<prefix>XXXXXX". INTERNAL names the path and the system's reason.
  static absl::StatusOr<TempFolder> Make(absl::string_view prefix);
  TempFolder(TempFolder&& other) noexcept : path_(std::move(other.path_)) { other.path_.clear(); }
  TempFolder& operator=(TempFolder&&) = delete;
  ~TempFolder();

  const std::string& path() const { return path_; }
  std::string File(absl::string_view name) const;

  // A new file that only its owner may read.
  absl::Status WriteFile(absl::string_view name, absl::string_view text) const;

 private:
  explicit TempFolder(std::string path) : path_(std::move(path)) {}

  std::string path_;  // empty: moved away
};

}  // namespace pagoda::cli
