#include "operation.h"

#include <utility>

namespace ingot::bench {

std::size_t byte_count(const Operand& operand) {
  return byte_span(matrix(nullptr, operand.dtype, operand.rows, operand.cols, Device{}), operand.name.c_str());
}

std::size_t working_set(const Operation& operation) {
  std::size_t bytes = 0;
  for (const Operand& operand : operation.operands) bytes += byte_count(operand);
  return bytes;
}

Placed::Placed(Operation operation, Backend& backend) : operation_(std::move(operation)), backend_(&backend) {
  for (const Operand& operand : operation_.operands) {
    memory_.emplace_back(backend, byte_count(operand));
    tensors_.set(operand.name,
                 matrix(memory_.back().data(), operand.dtype, operand.rows, operand.cols, backend.device()));
  }
}

}  // namespace ingot::bench
