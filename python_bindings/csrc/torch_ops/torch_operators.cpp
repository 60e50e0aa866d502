// The operators torch.ops.ingot.* for the CPU and for CUDA, of all families: how they take
// their arguments, how they are registered, and what the Python module has of them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/vector.h>

#include <bit>
#include <mutex>
#include <string>
#include <vector>

#include "context.h"
#include "module.h"
#include "torch_abi/torch_library.h"
#include "torch_abi/torch_streams.h"
#include "torch_ops/torch_operator.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

void accept(std::int32_t code, const std::string& what) {
  if (code != 0) throw Error(ErrorCode::invalid_argument, what, "PyTorch refused the operator: are there two Ingots?");
}

void implement(TorchLibraryOpaque* library, const std::string& name, TorchKernel kernel) {
  const TorchFunctions& torch = torch_functions();
  const bool versioned = torch.implement_versioned != nullptr;
  accept(versioned ? torch.implement_versioned(library, name.c_str(), kernel, torch.version())
                   : torch.implement(library, name.c_str(), kernel),
         name);
}

// Each overload of each operator, as function(schema, in place?, kernel).
template <class Function>
void for_each_overload(const Function& function) {
  TorchFamily::for_each([&](const TorchFamily& family) {
    for (const TorchOperator& each : family.operators()) {
      function(*each.schema, false, each.kernel);
      if (each.in_place != nullptr) function(*each.schema, true, each.in_place);
    }
  });
}

void register_all() {
  const TorchFunctions& torch = torch_functions();
  TorchLibraryOpaque* library = nullptr;  // as long as the process: an operator is never taken back
  accept(torch.library_fragment("ingot", __FILE__, __LINE__, &library), "torch.ops.ingot");
  for_each_overload([&](const TorchSchema& schema, bool in_place, TorchKernel) {
    accept(torch.define(library, schema.text(in_place).c_str()), schema.name_of_overload(in_place));
  });
  for (const char* key : {"CPU", "CUDA"}) {
    accept(torch.library_kernels("ingot", key, __FILE__, __LINE__, &library), key);
    for_each_overload([&](const TorchSchema& schema, bool in_place, TorchKernel kernel) {
      implement(library, schema.name_of_overload(in_place), kernel);
    });
  }
}

void register_once() {
  static std::once_flag once;
  std::call_once(once, register_all);
}

}  // namespace

void TorchArguments::take(const TorchValue* stack, std::span<const TorchKind> kinds) {
  for (std::size_t at = 0; at < kinds.size(); ++at) {
    if (kinds[at] == TorchKind::tensor) {
      tensors_[at] = TorchTensor(std::bit_cast<TorchHandle>(stack[at]));
    } else if (kinds[at] == TorchKind::optional_tensor && stack[at] != 0) {
      tensors_[at] = TorchTensor(std::bit_cast<TorchHandle>(take_optional(stack[at])));
    }
  }
}

void TorchArguments::give(TorchValue* stack, std::span<TorchTensor> results) {
  for (TorchTensor& result : results) {
    if (result.handle() == nullptr) result = TorchTensor::none();
    *stack++ = std::bit_cast<TorchValue>(result.release());
  }
}

std::string TorchArguments::named(std::string_view message) const {
  if (called_ == nullptr || message.find(kPlaceholder) == std::string_view::npos) return std::string(message);
  return with_names(message, names());
}

std::int64_t tokens_of(const TorchTensor& tensor) {
  std::int64_t tokens = 1;
  const std::span<const std::int64_t> sizes = tensor.sizes();
  for (const std::int64_t size : sizes.first(sizes.empty() ? 0 : sizes.size() - 1)) tokens *= size;
  return tokens;
}

void bind_torch(nb::module_& module) {
  module.def("torch_register", &register_once);
  // INGOT_CHECK_EXPERTS, for the indices that Python turns into those of rows.
  module.def("torch_checks_experts", [] { return ContextOptions::from_environment().check_experts; });
  module.def("torch_stream_count", [] { return shared_context(Device{}).torch_streams().count(); });
  // The addresses of the blocks of a stream's allocator on the CPU.
  module.def(
      "torch_allocator_addresses",
      [](const std::vector<std::size_t>& sizes) {
        TorchAllocator allocator(Device{});
        std::vector<std::uintptr_t> addresses;
        addresses.reserve(sizes.size());
        for (const std::size_t bytes : sizes) {
          addresses.push_back(reinterpret_cast<std::uintptr_t>(allocator.allocate(bytes, nullptr)));
        }
        return addresses;
      },
      "sizes"_a);
  // How many bytes an allocator keeps after it has given and got back a block of each size.
  module.def(
      "torch_allocator_keeps",
      [](const std::vector<std::size_t>& sizes) {
        TorchAllocator allocator(Device{});
        std::vector<std::size_t> kept;
        kept.reserve(sizes.size());
        for (const std::size_t bytes : sizes) {
          allocator.release(allocator.allocate(bytes, nullptr), bytes, nullptr);
          kept.push_back(allocator.kept_bytes());
        }
        return kept;
      },
      "sizes"_a);
  module.attr("torch_tokens_per_unit") = TorchSavedSize::kTokensPerUnit;
  module.attr("torch_many_tokens") = TorchStreams::kManyTokens;
  // What stands in the place of layers' names in plans' texts.
  module.attr("torch_placeholders") = nb::make_tuple(placeholder(0), placeholder(1), placeholder(2));
  // The table, as PyTorch was given it.
  module.def("torch_schemas", [] {
    std::vector<std::string> texts;
    for (const TorchSchema* each : kTorchSchemas) {
      texts.push_back(each->text(false));
      if (!each->in_place.empty()) texts.push_back(each->text(true));
    }
    return texts;
  });
  nb::dict bits;
  for (const TorchBit& each : kTorchBits) bits[each.name.data()] = each.bit;
  module.attr("torch_bits") = bits;
  TorchFamily::for_each([&](const TorchFamily& family) { family.bind(module); });
}

}  // namespace ingot::python
