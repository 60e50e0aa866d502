// Checks of the arguments that every operation has: pointers, single tensors (streams: stream.h). Each family checks
// its own tensors, the same for both backends, in its own folder (gemm/check_gemm.h, cast/cast_operations.h, ...) by
// overloads of one function,
//
//   void check(const Spec& spec, const Tensors& tensors, Device device);
//
// All of them throw an Error{invalid_argument} that names the argument and says what it is and what it should be.
#pragma once

#include <cstddef>

#include "ingot/runtime/core/tensor.h"

namespace ingot {

// Checks the device, sizes, row stride and pointer of one tensor, whatever its dtype: for code that is made of several
// operations, such as a layer.
void check_memory(const char* what, const Tensor& tensor, Device device);

// Do two checked tensors share memory?
bool overlap(const Tensor& a, const Tensor& b);

// Checks the pointers of a copy: they may be null only if there are no bytes to move. A fill passes its pointer twice.
void check_pointers(const char* operation, const void* to, const void* from, std::size_t bytes);

}  // namespace ingot
