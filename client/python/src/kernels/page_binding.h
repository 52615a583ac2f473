// The classes PageShape and Page, and the functions that make pages of pages.
#pragma once

#include <nanobind/nanobind.h>

namespace pagoda::python {

void BindPages(nanobind::module_& module);

}  // namespace pagoda::python
