// The functions attention and merge_states, and the choices of threads and instruction sets.
#pragma once

#include <nanobind/nanobind.h>

namespace pagoda::python {

void BindAttention(nanobind::module_& module);

}  // namespace pagoda::python
