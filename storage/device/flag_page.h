// A page of flag words that two processes share: the CPU, streams and processes all write and await
// them. It comes and goes as a sealed memfd, so that neither side can take it from the other.
//
// Ownership  the mapping lives as long as the object; a device registers it for its streams
// Errors     UNAVAILABLE       the system refuses; names the call
//            INVALID_ARGUMENT  what came is not such a page
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "storage/base/unique_fd.h"

namespace pagoda {

class FlagPage {
 public:
  static constexpr int64_t kBytes = 4096;

  static absl::StatusOr<FlagPage> Create();
  static absl::StatusOr<FlagPage> Map(UniqueFd fd);
  FlagPage(FlagPage&& other) noexcept;
  FlagPage& operator=(FlagPage&&) = delete;
  ~FlagPage();

  std::byte* data() const { return data_; }
  // REQUIRES: index < kBytes / 8
  uint64_t* word(int index) const { return reinterpret_cast<uint64_t*>(data_) + index; }
  int fd() const { return fd_.get(); }  // stays ours

 private:
  FlagPage(UniqueFd fd, std::byte* data);
  UniqueFd fd_;
  std::byte* data_;
};

}  // namespace pagoda
