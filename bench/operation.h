// One call of the library as a value: its tensors by name, and how to make it on any backend. The same operation runs
// on the GPU that is measured and on the CPU reference that it is checked against.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/runtime/backend.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/stream.h"

namespace ingot::bench {

struct Operand {
  enum class Role : std::uint8_t { input, output };

  std::string name;
  Role role = Role::input;
  Dtype dtype = Dtype::bf16;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  // An f32 input that is this everywhere (a given scale; otherwise inputs are random), or an output that starts from it
  // (a maximum that is raised).
  std::optional<float> value{};
};

// A default Tensor for a name that the operation does not have.
class Tensors {
 public:
  void set(const std::string& name, const Tensor& tensor) { by_name_[name] = tensor; }
  Tensor operator[](std::string_view name) const {
    const auto found = by_name_.find(name);
    return found == by_name_.end() ? Tensor{} : found->second;
  }

 private:
  std::map<std::string, Tensor, std::less<>> by_name_;
};

struct Operation {
  std::vector<Operand> operands;
  bool exact = true;  // the reference's bits; without, fast math (agreement.h)
  std::function<void(Backend& backend, const Tensors& tensors, Stream& stream)> call;
};

// Bytes of all operands of one call.
std::size_t working_set(const Operation& operation);
std::size_t byte_count(const Operand& operand);

// The operands in a backend's memory; inputs and outputs are what the caller makes them.
class Placed {
 public:
  Placed(Operation operation, Backend& backend);

  void enqueue(Stream& stream) const { operation_.call(*backend_, tensors_, stream); }
  const Operation& operation() const { return operation_; }
  const Tensors& tensors() const { return tensors_; }
  Backend& backend() const { return *backend_; }

 private:
  Operation operation_;
  Backend* backend_;
  std::vector<Buffer> memory_;
  Tensors tensors_;
};

}  // namespace ingot::bench
