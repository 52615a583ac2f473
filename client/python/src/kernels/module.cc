// pagoda_kv._kernels: codecs and attention of kernels/ as functions. src/pagoda_kv/_kernels.pyi
// says what they take, src/pagoda_kv/kernels.py what they mean.
#include <nanobind/nanobind.h>

#include "attention_binding.h"
#include "errors.h"
#include "page_binding.h"

NB_MODULE(_kernels, module) {
  pagoda::python::RegisterErrors(module);
  pagoda::python::BindPages(module);
  pagoda::python::BindAttention(module);
}
