// A slow network on one machine: passes bytes on between a Unix socket of its own and another,
// those that come back at no more than a rate.
//
// Threads    its own: one that accepts, two for each connection
// Ownership  the destructor ends all connections
// Units      bytes per second
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace pagoda::cli {

class SlowRelay {
 public:
  // `path` is made and removed; `target_path` is who is reached through it.
  static absl::StatusOr<std::unique_ptr<SlowRelay>> Start(const std::string& path,
                                                          const std::string& target_path,
                                                          double bytes_per_second);
  virtual ~SlowRelay() = default;
  virtual void set_rate(double bytes_per_second) = 0;
};

}  // namespace pagoda::cli
