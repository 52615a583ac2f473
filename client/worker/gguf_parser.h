// Walks the bytes of a GGUF file once and fills a GgufFile. An implementation detail of gguf.cc,
// apart because the walk and the typed access are two ideas. Nothing is read before its bounds are
// checked.
//
//   magic "GGUF" | u32 version | u64 tensors | u64 keys
//   keys     each: string name | u32 type | value        string: u64 length, bytes
//   tensors  each: string name | u32 dims | u64[dims] | u32 type | u64 offset
//   padding to the alignment ("general.alignment", 32) | tensor data; offsets count from here
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "client/worker/gguf.h"
#include "storage/base/bytes.h"

namespace pagoda {

// "uint8", "array", ...; "unknown" beyond the table.
absl::string_view GgufTypeName(GgufType type);

class GgufParser {
 public:
  // `name` names the file in messages; both must outlive the parser.
  GgufParser(ByteSpan bytes, absl::string_view name) : bytes_(bytes), name_(name) {}

  // Errors as in gguf.h; `file` is unspecified after an error.
  absl::Status Parse(GgufFile* file);

 private:
  struct TensorPlace {
    uint64_t offset = 0;  // from the start of the tensor data
    uint64_t size_bytes = 0;
  };

  absl::Status ParseHeader(GgufFile* file);
  absl::Status ParseKey(uint64_t index, GgufFile* file);
  absl::Status ParseValue(absl::string_view key, GgufValue* value);
  absl::Status ParseArray(absl::string_view key, GgufValue* value);
  absl::Status ParseTensor(uint64_t index, GgufFile* file);
  absl::Status CheckDims(const GgufTensor& tensor, TensorPlace* place) const;
  absl::Status FindAlignment(const GgufFile& file);
  absl::Status PlaceTensors(GgufFile* file) const;

  absl::StatusOr<uint32_t> ReadUint32(absl::string_view what);
  absl::StatusOr<uint64_t> ReadUint64(absl::string_view what);
  absl::StatusOr<absl::string_view> ReadString(absl::string_view what, uint64_t size_max);
  // `count` elements of `unit` bytes each; takes them from the input.
  absl::StatusOr<ByteSpan> Take(absl::string_view what, uint64_t count, uint64_t unit);

  uint64_t remaining() const { return bytes_.size() - offset_; }
  absl::Status Truncated(absl::string_view what) const;
  absl::Status Malformed(absl::string_view what) const;

  const ByteSpan bytes_;
  const absl::string_view name_;
  uint64_t offset_ = 0;
  uint64_t tensor_count_ = 0;
  uint64_t key_count_ = 0;
  uint64_t alignment_ = 32;
  std::vector<TensorPlace> places_;
};

}  // namespace pagoda
