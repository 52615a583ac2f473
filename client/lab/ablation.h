// The rows of `pagoda eval ablate`: raw16 first, then one way of saving bytes at a time, then all
// that go together, then q8 and q4 over a grid of windows. What each row reads is decided here; who
// runs them and shows them is client/cli.
//
//   q8 to q2    all beyond the window at that precision
//   ladder      q8 for the last q8_tokens, q4 beyond: pages lose their lo planes as they age
//   profile     q4, and K keeps its lo plane in the layers of the model's profile
//   composite   raw16 for the last q8_tokens, q2 beyond
//   shared      q4, the first half of the text from a prefix cache: a daemon that keeps q8
//   all         ladder, profile and shared, as far as they are there
//   q4 w512     q4 with that window
//
// Units      tokens, bytes
// Threads    pure functions
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "client/worker/kv_sequence.h"

namespace pagoda::lab {

struct AblationRow {
  std::string name;  // stable: JSON and command lines use it
  KvOptions kv;
  bool shared_prefix = false;  // the first half comes from a prefix cache
};

struct AblationPlan {
  int64_t window_tokens = 128;
  int64_t q8_tokens = 1024;
  std::vector<int32_t> k_lo_layers = {};  // of the profile; empty: no rows that need one
  bool shared_prefix = true;              // there is a cache
  std::vector<int64_t> grid_windows = {0, 128, 512, 1024, 2048};
};
// raw16 is always first. No two rows read alike: of the grid, windows that are the plan's own are
// left out, and all where less than two features would go together.
std::vector<AblationRow> AblationRows(const AblationPlan& plan);

}  // namespace pagoda::lab
