// Writes GGUF version 3 files into a string: for tests that need a model of any shape, or a broken
// file. Nothing is validated; a test may write whatever it wants to see refused.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/worker/gguf.h"
#include "client/worker/tensor_type.h"
#include "storage/base/bytes.h"

namespace pagoda {

class GgufWriter {
 public:
  void SetUint32(absl::string_view key, uint32_t value);
  void SetFloat(absl::string_view key, float value);
  void SetBool(absl::string_view key, bool value);
  void SetString(absl::string_view key, absl::string_view value);
  void SetStrings(absl::string_view key, absl::Span<const std::string> values);
  void SetInts(absl::string_view key, absl::Span<const int32_t> values);
  // Any type and any bytes: for malformed values.
  void SetRaw(absl::string_view key, uint32_t type, absl::string_view value_bytes);

  // `type` is a number so that types that nobody knows can be written too.
  void AddTensor(absl::string_view name, absl::Span<const uint64_t> dims, uint32_t type,
                 std::string data);
  void AddTensor(absl::string_view name, absl::Span<const uint64_t> dims, TensorType type,
                 std::string data) {
    AddTensor(name, dims, static_cast<uint32_t>(type), std::move(data));
  }

  // Padding between the parts; write "general.alignment" yourself when it is not 32.
  void set_alignment(uint32_t alignment) { alignment_ = alignment; }

  std::string Finish() const;

 private:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> dims;
    uint32_t type;
    std::string data;
  };

  uint32_t alignment_ = 32;
  uint64_t key_count_ = 0;
  std::string keys_;  // encoded
  std::vector<Tensor> tensors_;
};

}  // namespace pagoda
