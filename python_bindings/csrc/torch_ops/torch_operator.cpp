#include "torch_ops/torch_operator.h"

namespace ingot::python {

std::string TorchArguments::named(std::string_view message) const {
  if (called_ == nullptr || message.find(kPlaceholder) == std::string_view::npos) return std::string(message);
  return with_names(message, names());
}

void give(TorchValue* stack, std::initializer_list<TorchTensor*> results) {
  for (TorchTensor* result : results) *stack++ = reinterpret_cast<TorchValue>(result->release());
}

std::int64_t tokens_of(const TorchTensor& tensor) {
  std::int64_t tokens = 1;
  const std::span<const std::int64_t> sizes = tensor.sizes();
  for (const std::int64_t size : sizes.first(sizes.empty() ? 0 : sizes.size() - 1)) tokens *= size;
  return tokens;
}

}  // namespace ingot::python
