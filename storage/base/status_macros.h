// Early return of absl::Status. One PAGODA_ASSIGN_OR_RETURN per line: it names a variable by line.
#pragma once

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define PAGODA_RETURN_IF_ERROR(expression)                                                    \
  do {                                                                                        \
    if (absl::Status pagoda_status = (expression); !pagoda_status.ok()) return pagoda_status; \
  } while (false)

#define PAGODA_MACRO_CONCAT_INNER(a, b) a##b
#define PAGODA_MACRO_CONCAT(a, b) PAGODA_MACRO_CONCAT_INNER(a, b)

#define PAGODA_ASSIGN_OR_RETURN(target, expression) \
  PAGODA_ASSIGN_OR_RETURN_IMPL(PAGODA_MACRO_CONCAT(pagoda_or_, __LINE__), target, expression)
#define PAGODA_ASSIGN_OR_RETURN_IMPL(temporary, target, expression) \
  auto temporary = (expression);                                    \
  if (!temporary.ok()) return temporary.status();                   \
  target = *std::move(temporary)
