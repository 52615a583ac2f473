// The states of the daemon at the moment of a scrape: tiers, queues, sessions, the process. Read
// from their owners, never counted twice.
//
// Threads    Collect() from the scraper's threads, several at once.
// Ownership  what the callback reads must outlive this.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <map>
#include <vector>

#include "cache-server/hbm_state.h"
#include "storage/store_policies.h"
#include "storage/store_stats.h"

namespace pagoda {

struct DaemonState {
  StoreStats store;
  StorePolicies policies;
  std::map<ScopeId, std::string> scope_names;  // those in the token file
  int64_t sessions = 0;
  int64_t sequences = 0;
  int64_t encode_queue_pages = 0;
  bool draining = false;
  HbmState hbm;
};

class GaugeCollector : public prometheus::Collectable {
 public:
  explicit GaugeCollector(std::function<DaemonState()> read) : read_(std::move(read)) {}
  std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  const std::function<DaemonState()> read_;
};

}  // namespace pagoda
