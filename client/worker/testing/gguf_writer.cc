#include "client/worker/testing/gguf_writer.h"

#include <utility>

namespace pagoda {
namespace {

void PutText(absl::string_view text, ByteWriter* out) {
  out->Put(static_cast<uint64_t>(text.size()));
  out->PutBytes(text.data(), text.size());
}

}  // namespace

void GgufWriter::SetRaw(absl::string_view key, uint32_t type, absl::string_view value_bytes) {
  ByteWriter out;
  PutText(key, &out);
  out.Put(type);
  out.PutBytes(value_bytes.data(), value_bytes.size());
  keys_ += out.text();
  ++key_count_;
}

void GgufWriter::SetUint32(absl::string_view key, uint32_t value) {
  ByteWriter out;
  out.Put(value);
  SetRaw(key, static_cast<uint32_t>(GgufType::kUint32), out.text());
}

void GgufWriter::SetFloat(absl::string_view key, float value) {
  ByteWriter out;
  out.Put(value);
  SetRaw(key, static_cast<uint32_t>(GgufType::kFloat32), out.text());
}

void GgufWriter::SetBool(absl::string_view key, bool value) {
  ByteWriter out;
  out.Put(static_cast<uint8_t>(value));
  SetRaw(key, static_cast<uint32_t>(GgufType::kBool), out.text());
}

void GgufWriter::SetString(absl::string_view key, absl::string_view value) {
  ByteWriter out;
  PutText(value, &out);
  SetRaw(key, static_cast<uint32_t>(GgufType::kString), out.text());
}

void GgufWriter::SetStrings(absl::string_view key, absl::Span<const std::string> values) {
  ByteWriter out;
  out.Put(static_cast<uint32_t>(GgufType::kString));
  out.Put(static_cast<uint64_t>(values.size()));
  for (const std::string& value : values) PutText(value, &out);
  SetRaw(key, static_cast<uint32_t>(GgufType::kArray), out.text());
}

void GgufWriter::SetInts(absl::string_view key, absl::Span<const int32_t> values) {
  ByteWriter out;
  out.Put(static_cast<uint32_t>(GgufType::kInt32));
  out.Put(static_cast<uint64_t>(values.size()));
  for (const int32_t value : values) out.Put(value);
  SetRaw(key, static_cast<uint32_t>(GgufType::kArray), out.text());
}

void GgufWriter::AddTensor(absl::string_view name, absl::Span<const uint64_t> dims, uint32_t type,
                           std::string data) {
  tensors_.push_back({std::string(name), {dims.begin(), dims.end()}, type, std::move(data)});
}

std::string GgufWriter::Finish() const {
  ByteWriter out;
  out.PutBytes("GGUF", 4);
  out.Put(uint32_t{3});
  out.Put(static_cast<uint64_t>(tensors_.size()));
  out.Put(key_count_);
  out.PutBytes(keys_.data(), keys_.size());
  int64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    PutText(tensor.name, &out);
    out.Put(static_cast<uint32_t>(tensor.dims.size()));
    for (const uint64_t dim : tensor.dims) out.Put(dim);
    out.Put(tensor.type);
    out.Put(static_cast<uint64_t>(offset));
    offset = AlignUp(offset + static_cast<int64_t>(tensor.data.size()), alignment_);
  }
  for (const Tensor& tensor : tensors_) {
    out.PadTo(AlignUp(static_cast<int64_t>(out.size()), alignment_));
    out.PutBytes(tensor.data.data(), tensor.data.size());
  }
  return out.Take();
}

}  // namespace pagoda
