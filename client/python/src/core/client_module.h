// The client itself, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace pagoda::python {

void RegisterClient(nanobind::module_& module);

}  // namespace pagoda::python
