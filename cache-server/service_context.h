// What the services work with. Plain references: server.cc owns all of it and stops the services
// first.
#pragma once

#include <cstdint>
#include <string>

#include "cache-server/caller.h"
#include "cache-server/encoder.h"
#include "cache-server/hbm.h"
#include "cache-server/metrics.h"
#include "cache-server/model_registry.h"
#include "cache-server/options.h"
#include "cache-server/session_registry.h"
#include "storage/base/clock.h"
#include "storage/tiered_store.h"
#include "storage/work_queue.h"

namespace pagoda {

class PeerLinks;

struct ServiceContext {
  const ServerOptions& options;
  const Clock& clock;
  const CallerTable& callers;
  TieredStore& store;
  ModelRegistry& models;
  SessionRegistry& sessions;
  Encoder& encoder;
  Metrics& metrics;
  WorkQueue& fetch_encodes;    // encoding for single answers
  WorkQueue& admin_jobs;       // calls that block
  std::string instance_id;     // new with every start
  uint32_t instance_tag = 0;   // the same, for lease ids
  std::string shm_socket;      // empty: no shared memory
  Hbm* hbm = nullptr;          // null: no device memory
  PeerLinks* peers = nullptr;  // null: no links to other GPUs
};

}  // namespace pagoda
