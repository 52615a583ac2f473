// Reading and writing little-endian fields in byte buffers. The only place that knows byte order.
//
// ByteWriter appends to a string. ByteReader never reads past its span: a short read sets failed()
// and yields zeros, so that a parser checks once, at the end of a group of fields.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace pagoda {

static_assert(std::endian::native == std::endian::little,
              "page bytes are little-endian and used in place");

using ByteSpan = absl::Span<const std::byte>;
using MutableByteSpan = absl::Span<std::byte>;

inline ByteSpan AsBytes(absl::string_view text) {
  return ByteSpan(reinterpret_cast<const std::byte*>(text.data()), text.size());
}
inline absl::string_view AsText(ByteSpan bytes) {
  return absl::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size());
}

constexpr int64_t AlignUp(int64_t value, int64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

class ByteWriter {
 public:
  template <typename T>
  requires std::is_trivially_copyable_v<T> &&(!std::is_pointer_v<T>)void Put(const T& value) {
    text_.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  void PutBytes(const void* data, size_t size) {
    text_.append(static_cast<const char*>(data), size);
  }
  // u32 length, then the bytes.
  void PutString(absl::string_view text) {
    Put(static_cast<uint32_t>(text.size()));
    PutBytes(text.data(), text.size());
  }
  void PadTo(size_t size) { text_.resize(size); }
  size_t size() const { return text_.size(); }
  const std::string& text() const { return text_; }
  std::string Take() { return std::move(text_); }

 private:
  std::string text_;
};

class ByteReader {
 public:
  explicit ByteReader(ByteSpan bytes) : bytes_(bytes) {}

  template <typename T>
  requires std::is_trivially_copyable_v<T> T Get() {
    T value{};
    GetBytes(&value, sizeof(value));
    return value;
  }
  void GetBytes(void* target, size_t size) {
    if (failed_ || size > bytes_.size() - offset_) {
      failed_ = true;
      if (size > 0) std::memset(target, 0, size);
      return;
    }
    if (size > 0) std::memcpy(target, bytes_.data() + offset_, size);
    offset_ += size;
  }
  // u32 length, then the bytes; the view lives as long as the input.
  absl::string_view GetString() {
    const auto size = Get<uint32_t>();
    if (failed_ || size > bytes_.size() - offset_) {
      failed_ = true;
      return {};
    }
    const absl::string_view text = AsText(bytes_.subspan(offset_, size));
    offset_ += size;
    return text;
  }
  void Skip(size_t size) {
    if (failed_ || size > bytes_.size() - offset_) {
      failed_ = true;
      return;
    }
    offset_ += size;
  }
  size_t offset() const { return offset_; }
  size_t remaining() const { return bytes_.size() - offset_; }
  bool failed() const { return failed_; }

 private:
  ByteSpan bytes_;
  size_t offset_ = 0;
  bool failed_ = false;
};

}  // namespace pagoda
