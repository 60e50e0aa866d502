// Arguments that operations of every family have, checked in one place for both backends. What an operation asks of its
// own tensors is in its family's room (cast/check_cast.h, ...), as overloads of one function,
//
//   void check(const Spec& spec, const Tensors& tensors, Device device);
//
// Each throws Error{invalid_argument} that names the tensor, says what it is and what it should be.
#pragma once

#include <cstddef>

#include "ingot/runtime/tensor.h"

namespace ingot {

class Backend;
class Stream;

// One tensor of an operation that is made of several: its device, sizes, row stride and pointer.
void check_memory(const char* what, const Tensor& tensor, Device device);

// Do the bytes of two checked tensors meet?
bool overlap(const Tensor& a, const Tensor& b);

// The stream must have been made with the backend that is called.
void check_stream(const Stream& stream, const Backend& backend);

// Of a copy or a fill (which passes the same pointer twice): no null pointer unless there is nothing to move.
void check_pointers(const char* operation, const void* to, const void* from, std::size_t bytes);

}  // namespace ingot
