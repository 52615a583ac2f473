// The codecs that the laboratory compares: the product's own, prefixes of its code, and the rules
// of others. Names are stable: command lines and JSON use them.
//
// Bits       per element of K and of V, with scales, zeros and means; without page headers,
//            alignment and the window, which are the same for all
// Threads    immutable
// Errors     INVALID_ARGUMENT  an unknown name, or a head or page that the rule cannot cut:
//                              comparators need heads of a multiple of 64 channels, pages that
//                              divide 128 tokens; our own code takes any
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/lab/round_trips.h"
#include "storage/base/precision.h"

namespace pagoda::lab {

struct KvCodec {
  std::string name;
  std::string rule;  // in a few words
  double k_bits = 0;
  double v_bits = 0;
  // The product's own: its encoder makes pages of this precision and its kernels read them.
  std::optional<Precision> product;
  // All others: what they make of the rows of tile_tokens tokens, a multiple of the page.
  int64_t tile_tokens = 0;
  RoundTrip k;
  RoundTrip v;

  double mean_bits() const { return (k_bits + v_bits) / 2; }
};

// Every one, in the order of the table. `head_dim` and `page_tokens` as in kernels/page_layout.h.
std::vector<std::string> KvCodecNames();
absl::StatusOr<KvCodec> MakeKvCodec(absl::string_view name, int32_t head_dim, int32_t page_tokens);

}  // namespace pagoda::lab
