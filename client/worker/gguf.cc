#include "client/worker/gguf.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_format.h"
#include "client/worker/gguf_parser.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr const char* kRemedy = "run deploy/quickstart.sh, or name another with --model FILE";

// A number of any of GGUF's scalar types, widened. Integers keep all their bits.
struct Number {
  bool is_float = false;
  bool is_negative = false;
  uint64_t magnitude = 0;
  double real = 0;
};

template <typename T>
T Load(const std::byte* source) {
  T value;
  std::memcpy(&value, source, sizeof(value));
  return value;
}

Number FromSigned(int64_t value) {
  const bool negative = value < 0;
  const auto bits = static_cast<uint64_t>(value);
  return Number{false, negative, negative ? ~bits + 1 : bits, static_cast<double>(value)};
}
Number FromUnsigned(uint64_t value) {
  return Number{false, false, value, static_cast<double>(value)};
}
Number FromReal(double value) { return Number{true, value < 0, 0, value}; }

// REQUIRES: `type` is a scalar number type and `source` holds one.
Number LoadNumber(GgufType type, const std::byte* source) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kBool:
      return FromUnsigned(Load<uint8_t>(source));
    case GgufType::kInt8:
      return FromSigned(Load<int8_t>(source));
    case GgufType::kUint16:
      return FromUnsigned(Load<uint16_t>(source));
    case GgufType::kInt16:
      return FromSigned(Load<int16_t>(source));
    case GgufType::kUint32:
      return FromUnsigned(Load<uint32_t>(source));
    case GgufType::kInt32:
      return FromSigned(Load<int32_t>(source));
    case GgufType::kUint64:
      return FromUnsigned(Load<uint64_t>(source));
    case GgufType::kInt64:
      return FromSigned(Load<int64_t>(source));
    case GgufType::kFloat32:
      return FromReal(Load<float>(source));
    case GgufType::kFloat64:
      return FromReal(Load<double>(source));
    case GgufType::kString:
    case GgufType::kArray:
      break;
  }
  return {};
}

bool IsNumber(GgufType type) {
  return type != GgufType::kString && type != GgufType::kArray && type != GgufType::kBool;
}

absl::Status WrongType(absl::string_view key, absl::string_view expected, const GgufValue& value) {
  return absl::InvalidArgumentError(absl::StrFormat("metadata key %s is %s, expected %s", key,
                                                    GgufTypeName(value.type), expected));
}

// Maps `descriptor` whole; the mapping outlives the descriptor.
absl::StatusOr<ByteSpan> MapFile(int descriptor, const std::string& path) {
  struct stat info {};
  if (fstat(descriptor, &info) != 0) {
    return absl::UnavailableError(absl::StrFormat("%s: %s", path, std::strerror(errno)));
  }
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is not a regular file", path));
  }
  const auto size = static_cast<size_t>(info.st_size);
  if (size == 0) {
    return absl::DataLossError(absl::StrFormat("%s is empty: remove it and %s", path, kRemedy));
  }
  void* address = mmap(nullptr, size, PROT_READ, MAP_PRIVATE, descriptor, 0);
  if (address == MAP_FAILED) {
    return absl::UnavailableError(
        absl::StrFormat("%s: cannot map %d bytes: %s", path, size, std::strerror(errno)));
  }
  return ByteSpan(static_cast<const std::byte*>(address), size);
}

}  // namespace

absl::StatusOr<GgufFile> GgufFile::Open(const std::string& path) {
  const int descriptor = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor < 0 && errno == ENOENT) {
    return absl::NotFoundError(absl::StrFormat("no model file at %s: %s", path, kRemedy));
  }
  if (descriptor < 0) {
    return absl::UnavailableError(absl::StrFormat("%s: %s", path, std::strerror(errno)));
  }
  absl::StatusOr<ByteSpan> mapped = MapFile(descriptor, path);
  close(descriptor);
  PAGODA_RETURN_IF_ERROR(mapped.status());
  const size_t size = mapped->size();
  std::shared_ptr<const void> mapping(
      mapped->data(), [size](const void* address) { munmap(const_cast<void*>(address), size); });
  PAGODA_ASSIGN_OR_RETURN(GgufFile file, FromBytes(*mapped, path));
  file.mapping_ = std::move(mapping);
  return file;
}

absl::StatusOr<GgufFile> GgufFile::FromBytes(ByteSpan bytes, absl::string_view name) {
  GgufFile file;
  GgufParser parser(bytes, name);
  PAGODA_RETURN_IF_ERROR(parser.Parse(&file));
  return file;
}

absl::StatusOr<const GgufValue*> GgufFile::Find(absl::string_view key) const {
  const auto it = metadata_.find(key);
  if (it == metadata_.end()) {
    return absl::NotFoundError(absl::StrFormat("metadata key %s is absent", key));
  }
  return &it->second;
}

absl::StatusOr<uint64_t> GgufFile::GetUint(absl::string_view key) const {
  PAGODA_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (!IsNumber(value->type)) return WrongType(key, "a non-negative integer", *value);
  const Number number = LoadNumber(value->type, value->bytes.data());
  if (number.is_float) return WrongType(key, "a non-negative integer", *value);
  if (number.is_negative) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "metadata key %s is -%d, expected a non-negative integer", key, number.magnitude));
  }
  return number.magnitude;
}

absl::StatusOr<double> GgufFile::GetFloat(absl::string_view key) const {
  PAGODA_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (!IsNumber(value->type)) return WrongType(key, "a float", *value);
  const Number number = LoadNumber(value->type, value->bytes.data());
  if (!number.is_float) return WrongType(key, "a float", *value);
  return number.real;
}

absl::StatusOr<bool> GgufFile::GetBool(absl::string_view key) const {
  PAGODA_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kBool) return WrongType(key, "a bool", *value);
  return Load<uint8_t>(value->bytes.data()) != 0;
}

absl::StatusOr<absl::string_view> GgufFile::GetString(absl::string_view key) const {
  PAGODA_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kString) return WrongType(key, "a string", *value);
  return value->strings.front();
}

absl::StatusOr<absl::Span<const absl::string_view>> GgufFile::GetStrings(
    absl::string_view key) const {
  PAGODA_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  if (value->type != GgufType::kArray || value->element_type != GgufType::kString) {
    return WrongType(key, "an array of strings", *value);
  }
  return absl::MakeConstSpan(value->strings);
}

absl::StatusOr<std::vector<int32_t>> GgufFile::GetInts(absl::string_view key) const {
  PAGODA_ASSIGN_OR_RETURN(const GgufValue* value, Find(key));
  const bool is_int32 = value->element_type == GgufType::kInt32;
  if (value->type != GgufType::kArray || (!is_int32 && value->element_type != GgufType::kUint32)) {
    return WrongType(key, "an array of int32", *value);
  }
  std::vector<int32_t> numbers(value->bytes.size() / sizeof(int32_t));
  for (size_t i = 0; i < numbers.size(); ++i) {
    numbers[i] = Load<int32_t>(value->bytes.data() + i * sizeof(int32_t));
    if (!is_int32 && numbers[i] < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("metadata key %s: element %d does not fit into int32", key, i));
    }
  }
  return numbers;
}

const GgufTensor* GgufFile::FindTensor(absl::string_view name) const {
  const auto it = tensor_index_.find(name);
  return it == tensor_index_.end() ? nullptr : &tensors_[it->second];
}

}  // namespace pagoda
