#include "client/worker/gguf_parser.h"

#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "storage/base/status_macros.h"

namespace pagoda {
namespace {

constexpr absl::string_view kMagic = "GGUF";
constexpr uint32_t kTypeCount = 13;
constexpr uint64_t kAlignmentMax = uint64_t{1} << 20;

constexpr std::array<const char*, kTypeCount> kTypeNames = {
    "uint8", "int8",   "uint16", "int16",  "uint32", "int32",  "float32",
    "bool",  "string", "array",  "uint64", "int64",  "float64"};
// Zero for string and array, which have no fixed size.
constexpr std::array<uint8_t, kTypeCount> kTypeBytes = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};

}  // namespace

absl::string_view GgufTypeName(GgufType type) {
  const auto number = static_cast<uint32_t>(type);
  return number < kTypeCount ? kTypeNames[number] : "unknown";
}

absl::Status GgufParser::Truncated(absl::string_view what) const {
  return absl::DataLossError(absl::StrFormat(
      "%s: file has %d bytes, %s; the download was cut: remove it and run deploy/quickstart.sh",
      name_, bytes_.size(), what));
}

absl::Status GgufParser::Malformed(absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrFormat("%s: %s", name_, what));
}

absl::StatusOr<ByteSpan> GgufParser::Take(absl::string_view what, uint64_t count, uint64_t unit) {
  // Divide, do not multiply: count * unit may overflow.
  if (count > remaining() / unit) return Truncated(absl::StrCat(what, " ends beyond it"));
  const ByteSpan taken = bytes_.subspan(offset_, count * unit);
  offset_ += taken.size();
  return taken;
}

absl::StatusOr<uint32_t> GgufParser::ReadUint32(absl::string_view what) {
  PAGODA_ASSIGN_OR_RETURN(const ByteSpan raw, Take(what, 1, sizeof(uint32_t)));
  uint32_t value;
  std::memcpy(&value, raw.data(), sizeof(value));
  return value;
}

absl::StatusOr<uint64_t> GgufParser::ReadUint64(absl::string_view what) {
  PAGODA_ASSIGN_OR_RETURN(const ByteSpan raw, Take(what, 1, sizeof(uint64_t)));
  uint64_t value;
  std::memcpy(&value, raw.data(), sizeof(value));
  return value;
}

absl::StatusOr<absl::string_view> GgufParser::ReadString(absl::string_view what,
                                                         uint64_t size_max) {
  PAGODA_ASSIGN_OR_RETURN(const uint64_t size, ReadUint64(what));
  if (size > size_max) {
    return Malformed(absl::StrFormat("%s has %d bytes, at most %d", what, size, size_max));
  }
  PAGODA_ASSIGN_OR_RETURN(const ByteSpan raw, Take(what, size, 1));
  return AsText(raw);
}

absl::Status GgufParser::Parse(GgufFile* file) {
  file->bytes_ = bytes_;
  PAGODA_RETURN_IF_ERROR(ParseHeader(file));
  for (uint64_t i = 0; i < key_count_; ++i) PAGODA_RETURN_IF_ERROR(ParseKey(i, file));
  PAGODA_RETURN_IF_ERROR(FindAlignment(*file));
  for (uint64_t i = 0; i < tensor_count_; ++i) PAGODA_RETURN_IF_ERROR(ParseTensor(i, file));
  return PlaceTensors(file);
}

absl::Status GgufParser::ParseHeader(GgufFile* file) {
  const absl::string_view magic = AsText(bytes_.subspan(0, kMagic.size()));
  if (magic != kMagic.substr(0, magic.size())) {
    return Malformed("not a GGUF file: it does not begin with \"GGUF\"");
  }
  if (magic.size() < kMagic.size()) return Truncated("the header takes 24");
  offset_ = kMagic.size();
  PAGODA_ASSIGN_OR_RETURN(const uint32_t version, ReadUint32("the header"));
  if ((version & 0xffff) == 0 && version != 0) {
    return absl::UnimplementedError(
        absl::StrFormat("%s: a big-endian GGUF; convert it to little-endian", name_));
  }
  if (version != 2 && version != 3) {
    return absl::UnimplementedError(
        absl::StrFormat("%s: GGUF version %d, this worker reads 2 and 3", name_, version));
  }
  file->version_ = version;
  PAGODA_ASSIGN_OR_RETURN(tensor_count_, ReadUint64("the header"));
  PAGODA_ASSIGN_OR_RETURN(key_count_, ReadUint64("the header"));
  if (tensor_count_ > GgufFile::kTensorCountMax) {
    return Malformed(
        absl::StrFormat("%d tensors, at most %d", tensor_count_, GgufFile::kTensorCountMax));
  }
  if (key_count_ > GgufFile::kKeyCountMax) {
    return Malformed(
        absl::StrFormat("%d metadata keys, at most %d", key_count_, GgufFile::kKeyCountMax));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseKey(uint64_t index, GgufFile* file) {
  PAGODA_ASSIGN_OR_RETURN(
      const absl::string_view key,
      ReadString(absl::StrCat("the name of metadata key ", index), GgufFile::kNameBytesMax));
  GgufValue value;
  PAGODA_RETURN_IF_ERROR(ParseValue(key, &value));
  if (!file->metadata_.emplace(key, std::move(value)).second) {
    return Malformed(absl::StrFormat("metadata key %s appears twice", key));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::ParseValue(absl::string_view key, GgufValue* value) {
  const std::string what = absl::StrCat("metadata key ", key);
  PAGODA_ASSIGN_OR_RETURN(const uint32_t type, ReadUint32(what));
  if (type >= kTypeCount) return Malformed(absl::StrFormat("%s has type %d", what, type));
  value->type = static_cast<GgufType>(type);
  if (value->type == GgufType::kArray) return ParseArray(key, value);
  if (value->type == GgufType::kString) {
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view text,
                            ReadString(what, GgufFile::kStringBytesMax));
    value->strings.push_back(text);
    return absl::OkStatus();
  }
  PAGODA_ASSIGN_OR_RETURN(value->bytes, Take(what, 1, kTypeBytes[type]));
  return absl::OkStatus();
}

absl::Status GgufParser::ParseArray(absl::string_view key, GgufValue* value) {
  const std::string what = absl::StrCat("metadata key ", key);
  PAGODA_ASSIGN_OR_RETURN(const uint32_t type, ReadUint32(what));
  PAGODA_ASSIGN_OR_RETURN(const uint64_t count, ReadUint64(what));
  if (type >= kTypeCount)
    return Malformed(absl::StrFormat("%s has elements of type %d", what, type));
  value->element_type = static_cast<GgufType>(type);
  if (value->element_type == GgufType::kArray) {
    return Malformed(absl::StrFormat("%s is an array of arrays", what));
  }
  if (count > GgufFile::kArrayCountMax) {
    return Malformed(
        absl::StrFormat("%s has %d elements, at most %d", what, count, GgufFile::kArrayCountMax));
  }
  if (value->element_type != GgufType::kString) {
    PAGODA_ASSIGN_OR_RETURN(value->bytes, Take(what, count, kTypeBytes[type]));
    return absl::OkStatus();
  }
  // Every string takes its length word at least: this bounds the reservation by the file.
  if (count > remaining() / sizeof(uint64_t)) {
    return Truncated(absl::StrCat(what, " ends beyond it"));
  }
  value->strings.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    PAGODA_ASSIGN_OR_RETURN(const absl::string_view text,
                            ReadString(what, GgufFile::kStringBytesMax));
    value->strings.push_back(text);
  }
  return absl::OkStatus();
}

absl::Status GgufParser::FindAlignment(const GgufFile& file) {
  if (!file.Has("general.alignment")) return absl::OkStatus();
  const absl::StatusOr<uint64_t> alignment = file.GetUint("general.alignment");
  if (!alignment.ok()) return Malformed(std::string(alignment.status().message()));
  if (!std::has_single_bit(*alignment) || *alignment < 8 || *alignment > kAlignmentMax) {
    return Malformed(
        absl::StrFormat("general.alignment is %d, expected a power of two from 8 to %d", *alignment,
                        kAlignmentMax));
  }
  alignment_ = *alignment;
  return absl::OkStatus();
}

absl::Status GgufParser::ParseTensor(uint64_t index, GgufFile* file) {
  PAGODA_ASSIGN_OR_RETURN(
      const absl::string_view name,
      ReadString(absl::StrCat("the name of tensor ", index), GgufFile::kNameBytesMax));
  GgufTensor tensor;
  tensor.name = std::string(name);
  const std::string what = absl::StrCat("the description of tensor ", name);
  PAGODA_ASSIGN_OR_RETURN(const uint32_t dim_count, ReadUint32(what));
  if (dim_count < 1 || dim_count > 4) {
    return Malformed(
        absl::StrFormat("tensor %s has %d dimensions, expected 1 to 4", name, dim_count));
  }
  for (uint32_t i = 0; i < dim_count; ++i) {
    PAGODA_ASSIGN_OR_RETURN(const uint64_t dim, ReadUint64(what));
    tensor.dims.push_back(dim);
  }
  PAGODA_ASSIGN_OR_RETURN(const uint32_t type, ReadUint32(what));
  TensorPlace place;
  PAGODA_ASSIGN_OR_RETURN(place.offset, ReadUint64(what));
  const std::optional<TensorTypeTraits> traits = FindTensorType(type);
  if (!traits.has_value()) {
    return absl::UnimplementedError(
        absl::StrFormat("%s: tensor %s has type %s (%d); this worker reads %s", name_, name,
                        TensorTypeName(type), type, SupportedTensorTypes()));
  }
  tensor.type = traits->type;
  tensor.element_count = 1;
  for (const uint64_t dim : tensor.dims) {
    if (dim == 0 || tensor.element_count > std::numeric_limits<int64_t>::max() / dim) {
      return Malformed(absl::StrFormat("tensor %s has a dimension of %d", name, dim));
    }
    tensor.element_count *= dim;
  }
  PAGODA_RETURN_IF_ERROR(CheckDims(tensor, &place));
  if (!file->tensor_index_.emplace(name, file->tensors_.size()).second) {
    return Malformed(absl::StrFormat("tensor %s appears twice", name));
  }
  places_.push_back(place);
  file->tensors_.push_back(std::move(tensor));
  return absl::OkStatus();
}

absl::Status GgufParser::CheckDims(const GgufTensor& tensor, TensorPlace* place) const {
  const TensorTypeTraits traits = TraitsOf(tensor.type);
  if (tensor.dims[0] % traits.block_elements != 0) {
    return Malformed(absl::StrFormat("tensor %s: rows of %d elements are not whole %s blocks of %d",
                                     tensor.name, tensor.dims[0], traits.name,
                                     traits.block_elements));
  }
  const uint64_t block_count = tensor.element_count / traits.block_elements;
  if (block_count >
      static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / traits.block_bytes) {
    return Malformed(
        absl::StrFormat("tensor %s has %d elements", tensor.name, tensor.element_count));
  }
  place->size_bytes = block_count * traits.block_bytes;
  if (place->offset % alignment_ != 0) {
    return Malformed(absl::StrFormat("tensor %s lies at offset %d, not a multiple of %d",
                                     tensor.name, place->offset, alignment_));
  }
  return absl::OkStatus();
}

absl::Status GgufParser::PlaceTensors(GgufFile* file) const {
  const uint64_t data_start = (offset_ + alignment_ - 1) / alignment_ * alignment_;
  for (size_t i = 0; i < places_.size(); ++i) {
    const TensorPlace& place = places_[i];
    GgufTensor& tensor = file->tensors_[i];
    // Offsets above 2^62 would overflow the sum below, and no file is that long.
    if (place.offset > uint64_t{1} << 62) {
      return Malformed(absl::StrFormat("tensor %s lies at offset %d", tensor.name, place.offset));
    }
    const uint64_t begin = data_start + place.offset;
    if (begin > bytes_.size() || place.size_bytes > bytes_.size() - begin) {
      return Truncated(
          absl::StrFormat("tensor %s ends at %d", tensor.name, begin + place.size_bytes));
    }
    tensor.data = bytes_.subspan(begin, place.size_bytes);
  }
  return absl::OkStatus();
}

}  // namespace pagoda
