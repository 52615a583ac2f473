// IsOk() and StatusIs(code) for absl::Status and absl::StatusOr; Debian's abseil has none.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pagoda {

inline const absl::Status& StatusOf(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& StatusOf(const absl::StatusOr<T>& value) {
  return value.status();
}

MATCHER(IsOk, "is OK") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).ok();
}
MATCHER_P(StatusIs, code, "has status code " + absl::StatusCodeToString(code)) {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code;
}
// The message contains `text`: for errors that must name a cause or a remedy.
MATCHER_P2(StatusIs, code, text, "has code " + absl::StatusCodeToString(code) + " and says so") {
  *result_listener << StatusOf(arg).ToString();
  return StatusOf(arg).code() == code &&
         absl::string_view(StatusOf(arg).message()).find(text) != absl::string_view::npos;
}

#define PAGODA_ASSERT_OK(expression) ASSERT_THAT((expression), ::pagoda::IsOk())
#define PAGODA_EXPECT_OK(expression) EXPECT_THAT((expression), ::pagoda::IsOk())

}  // namespace pagoda
