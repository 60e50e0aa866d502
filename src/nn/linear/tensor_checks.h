// Helpers with which the layers check the tensors that they are given. A message is formatted only if a rule is broken.
#pragma once

#include <fmt/format.h>

#include <string>

#include "ingot/runtime/core/check.h"
#include "ingot/runtime/core/tensor.h"
#include "ingot/runtime/util/error.h"

namespace ingot {

// Is this more than a default Tensor?
inline bool is_given(const Tensor& tensor) { return tensor.data != nullptr || tensor.rows != 0 || tensor.cols != 0; }

struct NamedTensor {
  const char* name;
  const Tensor* tensor;
};

[[noreturn]] inline void refuse_argument(const char* subject, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, subject, message);
}

}  // namespace ingot
