#include "torch_abi/torch_names.h"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <map>
#include <mutex>
#include <utility>

#include "ingot/runtime/util/fork_mutex.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;

// Names by the memory that calls have left: a compiled graph's later operators of a layer have no weight. Equal layers
// may share what one call left; then the latest is taken first, because backward runs in the reverse order.
class NotedNames {
 public:
  void note(std::uintptr_t address, std::int64_t plan, const std::vector<std::string>& names, bool shared) {
    const std::lock_guard lock(mutex_);
    if (names_.size() >= kMost) names_.clear();
    std::vector<std::vector<std::string>>& of_plan = names_[{address, plan}];
    if (!shared) of_plan.clear();
    if (of_plan.size() == kMostOfOne) of_plan.erase(of_plan.begin());
    of_plan.push_back(names);
  }
  // Empty: none is noted.
  std::vector<std::string> take(std::uintptr_t address, std::int64_t plan) {
    const std::lock_guard lock(mutex_);
    const auto found = names_.find({address, plan});
    if (found == names_.end()) return {};
    std::vector<std::string> latest = found->second.back();
    if (found->second.size() > 1) found->second.pop_back();
    return latest;
  }
  void clear() {
    const std::lock_guard lock(mutex_);
    names_.clear();
  }

 private:
  static constexpr std::size_t kMost = 65536;
  static constexpr std::size_t kMostOfOne = 16;

  ForkMutex mutex_;
  std::map<std::pair<std::uintptr_t, std::int64_t>, std::vector<std::vector<std::string>>> names_{};
};

NotedNames& noted_names() {
  static auto* const names = new NotedNames;  // never destroyed: other threads may call until the very end
  return *names;
}

std::uintptr_t address_of(const TorchTensor& tensor) {
  void* data = nullptr;
  if (tensor.handle() == nullptr || torch_functions().data(tensor.handle(), &data) != 0) return 0;
  return reinterpret_cast<std::uintptr_t>(data);
}

std::vector<std::string> names_of_weights(const std::vector<std::uintptr_t>& addresses, std::size_t layers) {
  const nb::gil_scoped_acquire lock;
  try {
    return nb::cast<std::vector<std::string>>(
        nb::module_::import_("ingot.torch._names").attr("names_of_weights")(addresses, layers));
  } catch (nb::python_error&) {
    return {};  // a message without a name is better than another message
  }
}

}  // namespace

std::string with_names(std::string_view text, std::span<const std::string> names) {
  std::string made;
  for (std::size_t at = 0; at < text.size();) {
    const bool is_placeholder =
        text.substr(at).starts_with(kPlaceholder) && at + 3 < text.size() && text[at + 3] == '}';
    const std::size_t place =
        is_placeholder ? static_cast<std::size_t>(static_cast<unsigned char>(text[at + 2]) - '0') : names.size();
    const bool is_named = place < names.size();
    if (is_named) {
      made += names[place];
    } else {
      made += text[at];
    }
    at += is_named ? 4 : 1;
  }
  return made;
}

std::string sizes_text(std::int64_t in_features, std::int64_t out_features) {
  return "unnamed, " + std::to_string(in_features) + " -> " + std::to_string(out_features);
}

std::vector<std::string> names_of(const TorchCalled& called, std::span<const TorchTensor> tensors) {
  if (!called.names.empty()) return called.names;
  const std::size_t layers = called.sizes->size();
  std::vector<std::uintptr_t> addresses;
  for (const TorchTensor& each : tensors) {
    if (const std::uintptr_t address = address_of(each)) addresses.push_back(address);
  }
  std::vector<std::string> names = names_of_weights(addresses, layers);
  for (std::size_t at = addresses.size(); names.empty() && at-- > 0;) {
    names = noted_names().take(addresses[at], called.number);
  }
  for (std::size_t at = names.size(); at < layers; ++at) names.push_back((*called.sizes)[at]);
  return names;
}

void note_names(const TorchCalled& called, const TorchTensor& left, const std::vector<std::string>& names,
                bool shared) {
  if (!called.names.empty()) return;
  if (const std::uintptr_t address = address_of(left)) noted_names().note(address, called.number, names, shared);
}

void forget_noted_names() { noted_names().clear(); }

void NamedObserver::cast(const CastEvent& event, Stream& stream) {
  const std::string layer = with_names(event.layer, names_);
  CastEvent named = event;
  named.layer = layer;
  to_->cast(named, stream);
}

void NamedObserver::gemm(const GemmEvent& event, Stream& stream) {
  const std::string layer = with_names(event.layer, names_);
  to_->gemm({.layer = layer, .role = event.role, .spec = event.spec, .tensors = event.tensors}, stream);
}

}  // namespace ingot::python
