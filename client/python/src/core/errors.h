// The library's statuses as Python's PagodaError, whose `code` is the name of the status code.
//
// Threads  with the GIL
#pragma once

#include <nanobind/nanobind.h>

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace pagoda::python {

void RegisterErrors(nanobind::module_& module);

// An instance, not raised; None where the status is OK.
nanobind::object ErrorOf(const absl::Status& status);

// REQUIRES: not OK.
[[noreturn]] void Raise(const absl::Status& status);

inline void RaiseIfError(const absl::Status& status) {
  if (!status.ok()) Raise(status);
}
template <typename T>
T ValueOrRaise(absl::StatusOr<T> value) {
  if (!value.ok()) Raise(value.status());
  return *std::move(value);
}

}  // namespace pagoda::python
