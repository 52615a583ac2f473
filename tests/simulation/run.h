// One seeded story of a store: clients that push, look up, lease, fall silent and die; a ladder
// that encodes; watermarks that evict by policies that change; a disk that fails and is slow; kills
// that lose what was not flushed; prefetch. After every step the books are asked whether something
// went wrong.
//
// Invariants  no leased or pinned page leaves its tier; no page goes before one that follows it;
//             a lookup finds exactly the longest prefix the books know, in the caller's scope only;
//             bytes, pages, leases add up; memory stays below the hard mark; every load is answered
//             and demotion gets on, within a bound of steps
#pragma once

#include <cstdint>
#include <string>

#include "tests/simulation/universe.h"

namespace pagoda::simulation {

// What happened, summed over runs: a simulation that never evicts proves nothing.
struct Tally {
  int64_t steps = 0;
  int64_t pushes = 0;
  int64_t hit_pages = 0;
  int64_t victims = 0;
  int64_t loads = 0;
  int64_t writes = 0;
  int64_t failed_writes = 0;
  int64_t kills = 0;
  int64_t dead_clients = 0;
  int64_t leases = 0;
  int64_t prefetched = 0;
  void Add(const Tally& other);
  std::string ToString() const;
};

// Empty when all went well; else "step N: what was wrong".
std::string RunSeed(const Universe& universe, uint64_t seed, int64_t step_count, Tally& tally);

}  // namespace pagoda::simulation
