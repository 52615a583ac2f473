// Host memory that a device may register, for tests: mapped, so that it begins at a page.
#pragma once

#include <sys/mman.h>

#include <cstdint>
#include <cstring>

#include "storage/base/bytes.h"
#include "storage/base/check.h"

namespace pagoda {

class HostArena {
 public:
  explicit HostArena(int64_t bytes) : bytes_(AlignUp(bytes, 4096)) {
    void* data = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    PAGODA_CHECK(data != MAP_FAILED);
    data_ = static_cast<std::byte*>(data);
  }
  ~HostArena() { munmap(data_, static_cast<size_t>(bytes_)); }
  HostArena(const HostArena&) = delete;
  HostArena& operator=(const HostArena&) = delete;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  uint64_t* words() const { return reinterpret_cast<uint64_t*>(data_); }
  void Fill(int64_t offset, int64_t bytes, uint8_t value) const {
    std::memset(data_ + offset, value, static_cast<size_t>(bytes));
  }
  bool Is(int64_t offset, int64_t bytes, uint8_t value) const {
    for (int64_t i = offset; i < offset + bytes; ++i) {
      if (data_[i] != std::byte{value}) return false;
    }
    return true;
  }

 private:
  const int64_t bytes_;
  std::byte* data_ = nullptr;
};

}  // namespace pagoda
