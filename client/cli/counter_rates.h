// Rates from two looks at a daemon's counters.
//
// Threads  one at a time
#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "pagoda/v1/admin.pb.h"

namespace pagoda::cli {

struct CounterRate {
  std::string name;
  uint64_t total = 0;
  double per_second = 0;
};

class CounterRates {
 public:
  // Every counter, those that moved first, fastest first; then by name. Rates are 0 at the first
  // look and after a restart of the daemon, whose counters begin again. `now` is monotonic.
  std::vector<CounterRate> Update(const v1::StatusResponse& status, absl::Duration now);

 private:
  std::string instance_id_;
  absl::Duration last_;
  std::map<std::string, uint64_t> totals_;
};

}  // namespace pagoda::cli
