// What the operators of torch.ops.ingot share: where they run, how they take their arguments and give their results,
// and how they are registered. Each family of operators has a file of its own.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "context.h"
#include "ingot/runtime/error.h"
#include "torch_abi/torch_library.h"
#include "torch_abi/torch_names.h"
#include "torch_ops/torch_plan_table.h"

namespace ingot::python {

// A call's arguments: tensors, then integers. The tensors are owned from the call's first line on, so that PyTorch's
// references are given back whatever throws.
class TorchArguments {
 public:
  TorchArguments(const TorchValue* stack, std::span<TorchTensor> tensors) : stack_(stack), tensors_(tensors) {
    for (std::size_t at = 0; at < tensors.size(); ++at) {
      tensors[at] = TorchTensor(std::bit_cast<TorchHandle>(stack[at]));
    }
  }

  // The tensor at `at`, and all from `at` on. A TorchRun finds the layer's name by these tensors: make it before one of
  // them is moved out.
  TorchTensor& operator[](std::size_t at) { return tensors_[at]; }
  std::span<TorchTensor> from(std::size_t at) { return tensors_.subspan(at); }
  std::int64_t integer(std::size_t at) const { return static_cast<std::int64_t>(stack_[at]); }

  // The call's plan, by its number.
  template <class Plan>
  const Plan& plan(const TorchPlanTable<Plan>& plans, std::int64_t number) {
    const auto& entry = plans.at(number);
    called_ = &entry;
    return *entry.plan;
  }
  // Null: the call has no plan.
  const TorchCalled* called() const { return called_; }
  std::vector<std::string> names() const { return names_of(*called_, tensors_); }
  // A message with the layers' names.
  std::string named(std::string_view message) const;

 private:
  const TorchValue* stack_;
  std::span<TorchTensor> tensors_;
  const TorchCalled* called_ = nullptr;
};

void give(TorchValue* stack, std::initializer_list<TorchTensor*> results);

// The product of all sizes but the last.
std::int64_t tokens_of(const TorchTensor& tensor);

// ---- registration --------------------------------------------------------------------------------------------------

// An operator's name, arguments and results, as PyTorch writes them.
template <std::size_t kSize>
struct TorchSchema {
  // NOLINTNEXTLINE(google-explicit-constructor): a literal becomes one
  consteval TorchSchema(const char (&of)[kSize]) { std::copy_n(of, kSize, text); }

  constexpr std::string_view view() const { return {text, kSize - 1}; }
  constexpr std::size_t tensors() const {
    const std::string_view arguments = view().substr(0, view().find("->"));
    std::size_t count = 0;
    for (std::size_t at = 0; (at = arguments.find("Tensor", at)) != std::string_view::npos; ++at) ++count;
    return count;
  }

  char text[kSize]{};
};

// PyTorch turns a std::exception into a RuntimeError; by the prefix Python makes an ingot.Error of it again, and one of
// memory a torch.OutOfMemoryError too.
inline std::string prefix_of(const Error& error) {
  return error.code() == ErrorCode::out_of_memory ? "ingot: out of memory: " : "ingot: ";
}

struct TorchOperator {
  std::string_view schema;
  TorchKernel kernel;

  std::string name() const { return std::string(schema.substr(0, schema.find('('))); }
};

// Takes a call's arguments, and leaves its results on the stack.
using TorchRunner = void (*)(TorchArguments& arguments, TorchValue* stack);

template <TorchRunner kRun, std::size_t kTensors>
void torch_kernel(TorchValue* stack, std::uint64_t /*arguments*/, std::uint64_t /*results*/) {
  std::array<TorchTensor, kTensors> tensors;
  TorchArguments arguments(stack, tensors);
  try {
    kRun(arguments, stack);
  } catch (const Error& error) {
    throw std::runtime_error(prefix_of(error) + arguments.named(error.what()));
  } catch (const std::bad_alloc&) {
    throw std::runtime_error("ingot: out of memory: the host has none for the tensors of a call: use fewer tokens");
  }
}

template <TorchRunner kRun, TorchSchema kSchema>
constexpr TorchOperator kTorchOperator{.schema = kSchema.view(), .kernel = torch_kernel<kRun, kSchema.tensors()>};

std::span<const TorchOperator> float8_operators();         // torch_float8_operators.cpp
std::span<const TorchOperator> norm_linear_operators();    // torch_norm_operators.cpp
std::span<const TorchOperator> mlp_operators();            // torch_mlp_operators.cpp
std::span<const TorchOperator> gated_linear_operators();   // torch_gated_operators.cpp
std::span<const TorchOperator> shared_linear_operators();  // torch_shared_operators.cpp
std::span<const TorchOperator> split_linear_operators();   // torch_split_operators.cpp
std::span<const TorchOperator> weight_only_operators();    // torch_weight_only_operators.cpp
std::span<const TorchOperator> frozen_linear_operators();  // torch_frozen_operators.cpp

}  // namespace ingot::python
