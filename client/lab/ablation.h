// The rows of `pagoda eval ablate`: raw16 first, then one way of saving bytes at a time, then all
// that go together, then q8 and q4 over a grid of windows. What each row reads is decided here; who
// runs them and shows them is client/cli.
//
//   q8, q4      all beyond the window at that precision
//   ladder      q8 for the last q8_tokens, q4 beyond: pages lose their lo planes as they age
//   profile     q4, and K keeps its lo plane in the layers of the model's profile
//   composite   raw16 for the last q8_tokens, the top 2 bits of the code beyond. By the
//               laboratory's attention: the product stores no such page yet, so its bytes are
//               reckoned and its times left out.
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
#include "client/lab/kv_codec.h"
#include "client/worker/kv_sequence.h"
#include "kernels/page_layout.h"

namespace pagoda::lab {

struct AblationRow {
  std::string name;  // stable: JSON and command lines use it
  KvOptions kv;
  std::string codec;           // of kv_codec.h, beyond kv.window_tokens; empty: the product
  bool shared_prefix = false;  // the first half comes from a prefix cache
};

struct AblationPlan {
  int64_t window_tokens = 128;
  int64_t q8_tokens = 1024;
  std::vector<int32_t> k_lo_layers = {};  // of the profile; empty: no rows that need one
  bool shared_prefix = true;              // there is a cache
  bool composite = true;                  // the laboratory can read heads of this width
  std::vector<int64_t> grid_windows = {0, 128, 512, 1024, 2048};
};
// raw16 is always first. No two rows read alike: of the grid, windows that are the plan's own are
// left out, and all where less than two features would go together.
std::vector<AblationRow> AblationRows(const AblationPlan& plan);

// Of a sequence whose window is raw16 and all else of `codec`, without headers and padding.
double ReckonedBytesPerToken(const kernels::PageShape& shape, const KvCodec& codec,
                             int64_t window_tokens, int64_t token_count);

}  // namespace pagoda::lab
