// A growing array in blocks: elements keep their addresses, and at most one block is unused. For
// tables of millions of entries, where a std::vector holds up to twice what it needs and, while it
// grows, three times.
//
// Threads  as std::vector
// Limits   elements are default-constructed, a block at a time; it never shrinks
// Cost     operator[]: two loads
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace pagoda {

template <typename T, size_t kBlockElements = 1024>
class BlockVector {
 public:
  static_assert(std::has_single_bit(kBlockElements), "the index is split by shift and mask");

  T& operator[](size_t index) { return blocks_[index / kBlockElements][index % kBlockElements]; }
  const T& operator[](size_t index) const {
    return blocks_[index / kBlockElements][index % kBlockElements];
  }
  size_t size() const { return size_; }
  // Grows only.
  void Resize(size_t size) {
    while (blocks_.size() * kBlockElements < size) {
      blocks_.push_back(std::make_unique<T[]>(kBlockElements));
    }
    if (size > size_) size_ = size;
  }
  int64_t memory_bytes() const {
    return static_cast<int64_t>(blocks_.size() * kBlockElements * sizeof(T) +
                                blocks_.capacity() * sizeof(blocks_[0]));
  }

 private:
  std::vector<std::unique_ptr<T[]>> blocks_;
  size_t size_ = 0;
};

}  // namespace pagoda
