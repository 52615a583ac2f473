// What is logged while this object lives, for tests that ask for a line. It is printed again at
// the end, so that a failing test shows it.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "storage/base/check.h"

namespace pagoda {

class CapturedLog {
 public:
  CapturedLog() : file_(std::tmpfile()), stderr_(::dup(STDERR_FILENO)) {
    PAGODA_CHECK(file_ != nullptr && stderr_ >= 0);
    std::fflush(stderr);
    PAGODA_CHECK(::dup2(::fileno(file_), STDERR_FILENO) == STDERR_FILENO);
  }
  ~CapturedLog() {
    std::fflush(stderr);
    ::dup2(stderr_, STDERR_FILENO);
    ::close(stderr_);
    std::fputs(Text().c_str(), stderr);
    std::fclose(file_);
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  // A line with this event and this text has been written, or is within two seconds: what a test
  // sees of the store may be there before the line about it.
  bool Has(const std::string& event, const std::string& text = "") const {
    for (int i = 0; i < 200; ++i) {
      if (HasNow(event, text)) return true;
      absl::SleepFor(absl::Milliseconds(10));
    }
    return false;
  }

 private:
  bool HasNow(const std::string& event, const std::string& text) const {
    const std::string log = Text();
    for (size_t begin = 0; begin < log.size();) {
      const size_t end = log.find('\n', begin);
      const std::string line = log.substr(begin, end - begin);
      if (line.find(" " + event) != std::string::npos && line.find(text) != std::string::npos) {
        return true;
      }
      if (end == std::string::npos) break;
      begin = end + 1;
    }
    return false;
  }
  std::string Text() const {
    struct stat info {};
    PAGODA_CHECK(::fstat(::fileno(file_), &info) == 0);
    std::string text(static_cast<size_t>(info.st_size), '\0');
    const ssize_t count = ::pread(::fileno(file_), text.data(), text.size(), 0);
    text.resize(count > 0 ? static_cast<size_t>(count) : 0);
    return text;
  }

  FILE* const file_;
  const int stderr_;  // where it went before
};

}  // namespace pagoda
