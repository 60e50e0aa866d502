// What is asked of one tensor of an operation. Every rule is a condition on integers and pointers; a message is made
// only where one is broken, because these checks are on the path of every launch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "ingot/runtime/tensor.h"

namespace ingot {

[[noreturn]] void refuse(const char* what, const Tensor& tensor, const std::string& message);

// The bytes between the first and the last element.
struct Range {
  const char* what;
  const Tensor* tensor;
  std::size_t bytes = 0;

  const std::byte* begin() const { return static_cast<const std::byte*>(tensor->data); }
  const std::byte* end() const { return begin() + bytes; }
};

Range check_matrix(const char* what, const Tensor& tensor, Dtype dtype, Device device);

// `because` says where the sizes come from.
Range check_matrix(const char* what, const Tensor& tensor, Dtype dtype, std::int64_t rows, std::int64_t cols,
                   Device device, const char* because);
void check_shape(const char* what, const Tensor& tensor, std::int64_t rows, std::int64_t cols, const char* because);

// One row of n elements; where n is 0, a default Tensor will do.
Range check_vector(const char* what, const Tensor& tensor, Dtype dtype, std::int64_t n, Device device,
                   const char* because);

// A default Tensor.
Range check_absent(const char* what, const Tensor& tensor, const char* because);

bool overlap(const Range& a, const Range& b);

// Is the output this matrix itself? An operation that reads each element where it writes it may work in place.
bool in_place(const Tensor& input, const Tensor& output);

// No output shares memory with an input or with another output.
void check_overlaps(std::span<const Range> inputs, std::span<const Range> outputs);

}  // namespace ingot
