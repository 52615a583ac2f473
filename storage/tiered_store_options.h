// How the store is set up.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "storage/host_tier.h"
#include "storage/lease_table.h"
#include "storage/policy/watermarks.h"
#include "storage/prefetch/prefetch_options.h"
#include "storage/ssd_options.h"

namespace pagoda {

struct TieredStoreOptions {
  // Behaviour.
  HostTierOptions host;
  SsdOptions ssd;  // an empty path: no SSD, everything lives in host memory only
  policy::Watermarks host_marks;
  policy::Watermarks ssd_marks;
  LeaseTable::Options leases;
  prefetch::Options prefetch;                        // of no effect without SSD
  absl::Duration lease_ttl_max = absl::Minutes(10);  // longer terms are cut to this

  // Performance.
  int32_t loader_threads = 2;      // one reader reaches about half of a disk; see storage/README.md
  int64_t load_queue_max = 65536;  // loads waiting; beyond, LoadAsync refuses
  int64_t write_queue_pages_max = 1024;  // pages waiting for SSD; beyond, PersistAsync refuses
  absl::Duration demotion_period = absl::Milliseconds(100);  // also how late a lease may expire

  absl::Status Validate() const;
};

}  // namespace pagoda
