// The layer profile of a model: in which layers pages keep the lo plane of K when they come down to
// q4. A short YAML file that `pagoda eval profile` writes (client/lab chooses the layers) and that
// the daemon and the worker obey:
//
//   model: "Smollm2 135M 8k Lc100K Mix1 Ep2"    for people
//   identity: eb5a19d4...                        64 hexadecimal digits, as `pagoda models` shows it
//   layers: 30                                   of the model
//   k_lo_layers: [3, 8, 9]                       from 0, ascending: K keeps its lo plane at q4
//   bits: 4.588                                  per element, mean of K and V; for people
//
// Threads    values and pure functions, but for the file
// Errors     NOT_FOUND         no such file
//            INVALID_ARGUMENT  one line: file, key, value, what is accepted
//            Of Check(): FAILED_PRECONDITION  measured on another model
// Limits     512 layers, kKLoRunsMax runs of neighbouring ones
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "storage/base/model_spec.h"

namespace pagoda {

struct LayerProfile {
  std::string model;  // its name, for people
  Identity identity;  // of the model that it was measured on
  int32_t layer_count = 0;
  std::vector<int32_t> k_lo_layers;  // ascending, each once
  double bits = 0;

  // Whether it is of this model; the text says which identity or layer count differs.
  absl::Status Check(const Identity& model_identity, const ModelSpec& spec) const;
  bool operator==(const LayerProfile&) const = default;
};

// Strict: keys, types and ranges as above; model and bits may be absent.
absl::StatusOr<LayerProfile> ReadLayerProfile(const std::string& path);

// model, identity, layers, k_lo_layers and bits, in that order, with one comment line.
std::string LayerProfileYaml(const LayerProfile& profile);

}  // namespace pagoda
