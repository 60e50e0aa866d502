#include "torch_ops/torch_operator.h"

#include <bit>

namespace ingot::python {

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

}  // namespace ingot::python
