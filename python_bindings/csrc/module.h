// Functions that add the library's operations to the Python module.
#pragma once

#include <nanobind/nanobind.h>

namespace ingot::python {

void bind_operations(nanobind::module_& module);
void bind_planning(nanobind::module_& module);
void bind_safetensors(nanobind::module_& module);    // safetensors.cpp
void bind_torch(nanobind::module_& module);          // torch_operators.cpp
void bind_torch_modules(nanobind::module_& module);  // torch_module_plans.cpp
void bind_torch_observers(nanobind::module_& module);
void bind_torch_shards(nanobind::module_& module);
void bind_weight_only(nanobind::module_& module);  // weight_only.cpp

}  // namespace ingot::python
