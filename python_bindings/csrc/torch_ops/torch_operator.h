// What the operators of torch.ops.ingot share: how they take their arguments and give their results, by the names of
// the table (torch_schemas.h), and how they are registered. Each family of operators has its own file.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <new>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "context.h"
#include "ingot/runtime/util/error.h"
#include "torch_abi/torch_library.h"
#include "torch_abi/torch_names.h"
#include "torch_ops/torch_plan_table.h"
#include "torch_ops/torch_schemas.h"

namespace ingot::python {

// ---- a call's arguments and results --------------------------------------------------------------------------------

// The tensors are owned from the call's first line on, so that PyTorch's references are given back whatever throws.
class TorchArguments {
 public:
  // The call's plan, by its number.
  template <class Plan>
  const Plan& plan(const TorchPlanTable<Plan>& plans, std::int64_t number) {
    const auto& entry = plans.at(number);
    called_ = &entry;
    return *entry.plan;
  }
  // Null: the call has no plan.
  const TorchCalled* called() const { return called_; }
  // The layers' names, which are found by the call's tensors: ask before one of them is moved out.
  std::vector<std::string> names() const { return names_of(*called_, tensors_); }
  // A message with the layers' names.
  std::string named(std::string_view message) const;

 protected:
  explicit TorchArguments(std::span<TorchTensor> tensors) : tensors_(tensors) {}
  void take(const TorchValue* stack, std::span<const TorchKind> kinds);
  static void give(TorchValue* stack, std::span<TorchTensor> results);

 private:
  std::span<TorchTensor> tensors_;  // without a handle: integers, and tensors that are not given
  const TorchCalled* called_ = nullptr;
};

// A literal as a template's argument.
template <std::size_t kSize>
struct TorchName {
  // NOLINTNEXTLINE(google-explicit-constructor): a literal becomes one
  consteval TorchName(const char (&of)[kSize]) { std::copy_n(of, kSize, text); }
  constexpr std::string_view view() const { return {text, kSize - 1}; }

  char text[kSize]{};
};

// Those of one operator's call. A name or a kind that its schema lacks does not compile.
template <const TorchSchema& kSchema>
class TorchArgumentsOf : public TorchArguments {
 public:
  static constexpr std::size_t kCount = kSchema.count_with_in_place();
  static constexpr std::size_t kResults = TorchSchema::count_in(kSchema.results);

  TorchArgumentsOf(const TorchValue* stack, std::size_t count) : TorchArguments(tensors_), stack_(stack) {
    static constexpr auto kKinds = [] {
      std::array<TorchKind, kCount> kinds{};
      for (std::size_t at = 0; at < kCount; ++at) kinds[at] = kSchema.kind(at);
      return kinds;
    }();
    take(stack, std::span(kKinds).first(count));
  }

  // Without a handle: it is not given.
  template <TorchName kName>
  TorchTensor& tensor() {
    constexpr std::size_t kAt = kSchema.place_of_argument(kName.view());
    static_assert(kAt < kCount && kSchema.kind(kAt) != TorchKind::integer, "no tensor of this name");
    return tensors_[kAt];
  }
  template <TorchName kName>
  std::int64_t integer() const {
    constexpr std::size_t kAt = kSchema.place_of_argument(kName.view());
    static_assert(kAt < kCount && kSchema.kind(kAt) == TorchKind::integer, "no integer of this name");
    return static_cast<std::int64_t>(stack_[kAt]);
  }
  template <TorchName kName>
  TorchTensor& result() {
    constexpr std::size_t kAt = kSchema.place_of_result(kName.view());
    static_assert(kAt < kResults, "no result of this name");
    return results_[kAt];
  }
  void give_results(TorchValue* stack) { give(stack, results_); }

 private:
  std::array<TorchTensor, kCount> tensors_{};
  std::array<TorchTensor, kResults> results_{};
  const TorchValue* stack_;
};

// The product of all sizes but the last.
std::int64_t tokens_of(const TorchTensor& tensor);

// ---- registration --------------------------------------------------------------------------------------------------

// PyTorch turns a std::exception into a RuntimeError; by the prefix Python makes an ingot.Error of it again, and one of
// memory a torch.OutOfMemoryError too.
inline std::string prefix_of(const Error& error) {
  return error.code() == ErrorCode::out_of_memory ? "ingot: out of memory: " : "ingot: ";
}

template <const TorchSchema& kSchema>
using TorchRunner = void (*)(TorchArgumentsOf<kSchema>& call);

template <const TorchSchema& kSchema, TorchRunner<kSchema> kRun, std::size_t kCount>
void torch_kernel(TorchValue* stack, std::uint64_t /*arguments*/, std::uint64_t /*results*/) {
  TorchArgumentsOf<kSchema> call(stack, kCount);
  try {
    kRun(call);
    call.give_results(stack);
  } catch (const Error& error) {
    throw std::runtime_error(prefix_of(error) + call.named(error.what()));
  } catch (const std::bad_alloc&) {
    throw std::runtime_error("ingot: out of memory: the host has none for the tensors of a call: use fewer tokens");
  }
}

struct TorchOperator {
  const TorchSchema* schema;
  TorchKernel kernel;
  TorchKernel in_place;  // null: there is no such overload
};

template <const TorchSchema& kSchema, TorchRunner<kSchema> kRun>
constexpr TorchOperator kTorchOperator{
    .schema = &kSchema,
    .kernel = torch_kernel<kSchema, kRun, kSchema.count()>,
    .in_place = kSchema.in_place.empty() ? nullptr : torch_kernel<kSchema, kRun, kSchema.count_with_in_place()>};

// The operators of a family, and what the Python module has of their plans. A constant of each family's file, which
// registers it.
class TorchFamily {
 public:
  using Bind = void (*)(nanobind::module_& module);

  TorchFamily(std::span<const TorchOperator> of, Bind plans) : operators_(of), bind_(plans) {
    const TorchFamily** place = &first_;  // by name, whatever the order in which files are linked
    while (*place != nullptr && (*place)->name() < name()) place = &(*place)->next_;
    next_ = *place;
    *place = this;
  }
  TorchFamily(const TorchFamily&) = delete;
  TorchFamily& operator=(const TorchFamily&) = delete;

  template <class Function>
  static void for_each(const Function& function) {
    for (const TorchFamily* each = first_; each != nullptr; each = each->next_) function(*each);
  }
  std::span<const TorchOperator> operators() const { return operators_; }
  void bind(nanobind::module_& module) const { bind_(module); }

 private:
  std::string_view name() const { return operators_.front().schema->name; }

  static inline const TorchFamily* first_ = nullptr;

  std::span<const TorchOperator> operators_;
  Bind bind_;
  mutable const TorchFamily* next_ = nullptr;
};

}  // namespace ingot::python
