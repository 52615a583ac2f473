// What is served and to whom: LayerGroup, ModelSpec, Scope and ServerInfo for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace pagoda::python {

void RegisterModel(nanobind::module_& module);

}  // namespace pagoda::python
