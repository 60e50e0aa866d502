// What the operators of torch.ops.ingot share: where they run, how they take their arguments and give their results,
// and how they are registered. Each family of operators has a file of its own.
#pragma once

#include <bit>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <span>
#include <stdexcept>
#include <string>

#include "context.h"
#include "ingot/runtime/error.h"
#include "torch_library.h"

namespace ingot::python {

// The argument at this place of the stack; the operator must take each once.
inline TorchTensor tensor_of(TorchValue value) { return TorchTensor(std::bit_cast<TorchHandle>(value)); }

void give(TorchValue* stack, std::initializer_list<TorchTensor*> results);

// The product of all sizes but the last.
std::int64_t tokens_of(const TorchTensor& tensor);

// ---- registration --------------------------------------------------------------------------------------------------

struct TorchOperator {
  const char* name;
  const char* schema;
  TorchKernel kernel;
};

// PyTorch turns a std::exception into a RuntimeError; by the prefix Python makes an ingot.Error of it again, and one of
// memory a torch.OutOfMemoryError too.
inline std::string prefix_of(const Error& error) {
  return error.code() == ErrorCode::out_of_memory ? "ingot: out of memory: " : "ingot: ";
}

template <void (*kRun)(TorchValue*)>
void torch_kernel(TorchValue* stack, std::uint64_t /*arguments*/, std::uint64_t /*results*/) {
  try {
    kRun(stack);
  } catch (const Error& error) {
    throw std::runtime_error(prefix_of(error) + error.what());
  } catch (const std::bad_alloc&) {
    throw std::runtime_error("ingot: out of memory: the host has none for the tensors of a call: use fewer tokens");
  }
}

std::span<const TorchOperator> float8_operators();         // torch_float8_operators.cpp
std::span<const TorchOperator> norm_linear_operators();    // torch_norm_operators.cpp
std::span<const TorchOperator> mlp_operators();            // torch_mlp_operators.cpp
std::span<const TorchOperator> gated_linear_operators();   // torch_gated_operators.cpp
std::span<const TorchOperator> shared_linear_operators();  // torch_shared_operators.cpp
std::span<const TorchOperator> split_linear_operators();   // torch_split_operators.cpp
std::span<const TorchOperator> weight_only_operators();    // torch_weight_only_operators.cpp
std::span<const TorchOperator> frozen_linear_operators();  // torch_frozen_operators.cpp

}  // namespace ingot::python
