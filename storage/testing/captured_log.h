// What is logged while this object lives, for tests that ask for a line. It is printed again at
// the end, so that a failing test shows it.
#pragma once

#include <gtest/gtest.h>

#include <cstdio>
#include <string>

namespace pagoda {

class CapturedLog {
 public:
  CapturedLog() { ::testing::internal::CaptureStderr(); }
  ~CapturedLog() {
    Take();
    std::fputs(text_.c_str(), stderr);
  }
  CapturedLog(const CapturedLog&) = delete;
  CapturedLog& operator=(const CapturedLog&) = delete;

  // A line with this event and this text has been written.
  bool Has(const std::string& event, const std::string& text = "") {
    Take();
    ::testing::internal::CaptureStderr();
    for (size_t begin = 0; begin < text_.size();) {
      const size_t end = text_.find('\n', begin);
      const std::string line = text_.substr(begin, end - begin);
      if (line.find(" " + event) != std::string::npos && line.find(text) != std::string::npos) {
        return true;
      }
      if (end == std::string::npos) break;
      begin = end + 1;
    }
    return false;
  }

 private:
  void Take() { text_ += ::testing::internal::GetCapturedStderr(); }
  std::string text_;
};

}  // namespace pagoda
