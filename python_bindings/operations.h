// The module's functions on arrays.
#pragma once

#include <nanobind/nanobind.h>

namespace ingot::python {

void bind_operations(nanobind::module_& module);

}  // namespace ingot::python
