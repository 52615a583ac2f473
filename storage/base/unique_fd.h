// A file descriptor that is closed with its owner.
#pragma once

#include <unistd.h>

#include <utility>

namespace pagoda {

class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.Release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    Close();
    fd_ = other.Release();
    return *this;
  }
  ~UniqueFd() { Close(); }

  int get() const { return fd_; }  // -1 for none
  bool valid() const { return fd_ >= 0; }
  int Release() { return std::exchange(fd_, -1); }

 private:
  void Close() {
    if (fd_ >= 0) ::close(Release());
  }

  int fd_ = -1;
};

}  // namespace pagoda
