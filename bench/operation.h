// A call of the library as a value: its tensors by name, and a function that makes the call on any backend. So the same
// operation runs on the GPU that is measured and on the CPU reference that checks it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"

namespace ingot::bench {

struct Operand {
  enum class Role : std::uint8_t { input, output };

  std::string name;
  Role role = Role::input;
  Dtype dtype = Dtype::bf16;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  // All elements of an f32 input (a given scale; other inputs are random), or the initial value of an output (a maximum
  // that is raised).
  std::optional<float> value{};
  bool permutation = false;  // an f32 input of one row has the numbers of its columns, in disorder, as int32
  // Above 0: an f32 input of one row holds int32 ends: its columns share this many rows, each more than the last.
  std::int64_t ends_of = 0;
};

// Looks up tensors by name; a name that the operation does not have gives a default Tensor.
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
  bool exact = true;  // true: must have the reference's bits; false: fast math (agreement.h)
  std::function<void(Backend& backend, const Tensors& tensors, Stream& stream)> call;
};

// Bytes of all operands of one call, and of one operand.
std::size_t working_set(const Operation& operation);
std::size_t byte_count(const Operand& operand);

// An operation's operands in a backend's memory. The constructor allocates them; the caller fills them.
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
