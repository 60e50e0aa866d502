// The building blocks of every family's checks: one tensor's dtype, shape, device and memory. They are on the path of
// every launch, so they compare integers and pointers, and format a message only when a rule is broken.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ingot/runtime/core/tensor.h"

namespace ingot {

[[noreturn]] void refuse(const char* what, const Tensor& tensor, const std::string& message);

// A checked tensor's memory, from the first to the end of the last element; `what` names it in messages.
struct Range {
  const char* what;
  const Tensor* tensor;
  std::size_t bytes = 0;

  const std::byte* begin() const { return static_cast<const std::byte*>(tensor->data); }
  const std::byte* end() const { return begin() + bytes; }
};

Range check_matrix(const char* what, const Tensor& tensor, Dtype dtype, Device device);

// `because` explains to the reader of a message where the expected sizes come from.
Range check_matrix(const char* what, const Tensor& tensor, Dtype dtype, std::int64_t rows, std::int64_t cols,
                   Device device, const char* because);
void check_shape(const char* what, const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* because);

// One row of n elements. If n is 0, a default Tensor is accepted.
Range check_vector(const char* what, const Tensor& tensor, Dtype dtype, std::int64_t n, Device device,
                   const char* because);

// The tensor must be a default Tensor: the operation has no use for it.
Range check_absent(const char* what, const Tensor& tensor, const char* because);

bool overlap(const Range& a, const Range& b);

// Is the output this matrix itself? An operation that reads each element where it writes it may work in place.
bool in_place(const Tensor& input, const Tensor& output);

// No output shares memory with an input or with another output.
void check_overlaps(std::span<const Range> inputs, std::span<const Range> outputs);

}  // namespace ingot
