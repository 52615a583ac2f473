// A block of memory at a multiple of 4096 bytes: segments of pages, scratch of kernels. Zeroed, or
// (Uninitialized) for bytes that are all written before they are read.
// Daemons use slabs instead; this is for workers' tails, scratch and tests.
//
// Ownership  frees its memory; moves, never copies.
#pragma once

#include <cstdlib>
#include <cstring>
#include <memory>

#include "storage/base/bytes.h"
#include "storage/base/check.h"

namespace pagoda::kernels {

class AlignedBuffer {
 public:
  static constexpr int64_t kAlignBytes = 4096;

  AlignedBuffer() = default;
  explicit AlignedBuffer(int64_t size_bytes)
      : bytes_(Allocate(AlignUp(size_bytes, kAlignBytes))), size_(size_bytes) {
    if (size_bytes > 0) std::memset(bytes_.get(), 0, AlignUp(size_bytes, kAlignBytes));
  }
  static AlignedBuffer Uninitialized(int64_t size_bytes) {
    AlignedBuffer buffer;
    buffer.bytes_.reset(Allocate(AlignUp(size_bytes, kAlignBytes)));
    buffer.size_ = size_bytes;
    return buffer;
  }

  std::byte* data() { return bytes_.get(); }
  const std::byte* data() const { return bytes_.get(); }
  int64_t size() const { return size_; }
  ByteSpan span() const { return ByteSpan(bytes_.get(), static_cast<size_t>(size_)); }
  MutableByteSpan mutable_span() {
    return MutableByteSpan(bytes_.get(), static_cast<size_t>(size_));
  }

 private:
  struct Free {
    void operator()(std::byte* bytes) const { std::free(bytes); }
  };
  static std::byte* Allocate(int64_t size_bytes) {
    if (size_bytes == 0) return nullptr;
    void* bytes = std::aligned_alloc(kAlignBytes, static_cast<size_t>(size_bytes));
    PAGODA_CHECK(bytes != nullptr);
    return static_cast<std::byte*>(bytes);
  }

  std::unique_ptr<std::byte, Free> bytes_;
  int64_t size_ = 0;
};

}  // namespace pagoda::kernels
