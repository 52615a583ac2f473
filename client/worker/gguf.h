// A GGUF model file, mapped read-only: its metadata and its tensor table. It gives raw tensor
// bytes; turning them into floats is dequantize.h, their meaning is llama_config.h.
//
// Every count, length, offset and alignment is checked against the file's size before it is used,
// so a file from anywhere is safe to open. The file must not be cut short while it is mapped: the
// kernel then answers reads beyond its end with SIGBUS. Replacing it (rename over it) is harmless.
//
// Threads    constant after construction: any thread may read.
// Ownership  spans and views point into the file and live as long as the GgufFile (FromBytes: as
//            long as the bytes, which the caller keeps).
// Errors     NOT_FOUND         no such file; a metadata key that is absent
//            INVALID_ARGUMENT  not a GGUF, absurd counts, malformed fields; a key of another type
//            DATA_LOSS         the file ends before what it announces: a cut download
//            UNIMPLEMENTED     version 1, big-endian, or a tensor type that this worker cannot read
//            UNAVAILABLE       the file is there but cannot be read or mapped
// Limits     65,536 tensors, 65,536 metadata keys, 4 dimensions, strings of 16 MiB, names of 1024
//            bytes, 64 Mi array elements (and never more than the file can hold); no nested arrays
// Source     the GGUF specification, versions 2 and 3
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "client/worker/tensor_type.h"
#include "storage/base/bytes.h"

namespace pagoda {

// Types of metadata values, numbered as in the file.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

struct GgufValue {
  GgufType type = GgufType::kUint8;          // kArray: see element_type
  GgufType element_type = GgufType::kUint8;  // arrays only
  ByteSpan bytes;                          // numbers: the value, or the elements one after another
  std::vector<absl::string_view> strings;  // kString: one; arrays of strings: all of them
};

struct GgufTensor {
  std::string name;
  std::vector<uint64_t> dims;  // dims[0] is the contiguous one (ggml's order), 1 to 4 of them
  TensorType type = TensorType::kF32;
  uint64_t element_count = 0;
  ByteSpan data;  // aligned to the file's alignment in a mapped file
};

class GgufFile {
 public:
  static constexpr uint64_t kTensorCountMax = 65536;
  static constexpr uint64_t kKeyCountMax = 65536;
  static constexpr uint64_t kStringBytesMax = uint64_t{16} << 20;
  static constexpr uint64_t kNameBytesMax = 1024;
  static constexpr uint64_t kArrayCountMax = uint64_t{64} << 20;

  // Maps the file at `path`.
  static absl::StatusOr<GgufFile> Open(const std::string& path);
  // Parses `bytes`, which the caller keeps alive. `name` stands in messages instead of a path.
  static absl::StatusOr<GgufFile> FromBytes(ByteSpan bytes, absl::string_view name = "bytes");

  // The whole file: for hashing.
  ByteSpan bytes() const { return bytes_; }
  uint32_t version() const { return version_; }

  const absl::flat_hash_map<std::string, GgufValue>& metadata() const { return metadata_; }
  bool Has(absl::string_view key) const { return metadata_.contains(key); }

  // Any integer type whose value fits is accepted; floats from float32 and float64.
  absl::StatusOr<uint64_t> GetUint(absl::string_view key) const;
  absl::StatusOr<double> GetFloat(absl::string_view key) const;
  absl::StatusOr<bool> GetBool(absl::string_view key) const;
  absl::StatusOr<absl::string_view> GetString(absl::string_view key) const;
  absl::StatusOr<absl::Span<const absl::string_view>> GetStrings(absl::string_view key) const;
  // An array of int32 or uint32 values below 2^31.
  absl::StatusOr<std::vector<int32_t>> GetInts(absl::string_view key) const;

  // In the order of the file.
  const std::vector<GgufTensor>& tensors() const { return tensors_; }
  // nullptr when there is none of that name.
  const GgufTensor* FindTensor(absl::string_view name) const;

 private:
  friend class GgufParser;

  absl::StatusOr<const GgufValue*> Find(absl::string_view key) const;

  std::shared_ptr<const void> mapping_;  // unmaps when the last copy goes; empty for FromBytes
  ByteSpan bytes_;
  uint32_t version_ = 0;
  absl::flat_hash_map<std::string, GgufValue> metadata_;
  std::vector<GgufTensor> tensors_;
  absl::flat_hash_map<std::string, size_t> tensor_index_;
};

}  // namespace pagoda
