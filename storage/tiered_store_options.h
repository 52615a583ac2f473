// How the store is set up.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "storage/host_tier.h"
#include "storage/lease_table.h"
#include "storage/policy/circuit_breaker.h"
#include "storage/prefetch/prefetch_options.h"
#include "storage/ssd_options.h"
#include "storage/store_policies.h"

namespace pagoda {

struct TieredStoreOptions {
  // Behaviour.
  HostTierOptions host;
  SsdOptions ssd;          // an empty path: no SSD, everything lives in host memory only
  StorePolicies policies;  // may be changed later
  absl::Duration use_window = absl::Minutes(1);  // of the use counts: policy/use_count.h
  LeaseTable::Options leases;
  policy::CircuitBreaker::Options ssd_breaker;
  absl::Duration load_timeout = absl::Seconds(5);    // who waits for SSD is answered by then
  prefetch::Options prefetch;                        // of no effect without SSD
  absl::Duration lease_ttl_max = absl::Minutes(10);  // longer terms are cut to this

  // Performance.
  int32_t loader_threads = 2;            // pages read at a time; see storage/README.md
  int32_t writer_threads = 2;            // pages written at a time
  int64_t load_queue_max = 65536;        // loads waiting; beyond, LoadAsync refuses
  int64_t write_queue_pages_max = 1024;  // pages waiting for SSD; beyond, PersistAsync refuses
  int64_t compaction_bytes_per_second = int64_t{256} << 20;  // moved in host memory at most
  absl::Duration demotion_period = absl::Milliseconds(100);  // also how late a lease may expire

  absl::Status Validate() const;
};

}  // namespace pagoda
