// Functions that need no session: keys, checksums, copies of memory.
#pragma once

#include <nanobind/nanobind.h>

namespace pagoda::python {

void RegisterFunctions(nanobind::module_& module);

}  // namespace pagoda::python
