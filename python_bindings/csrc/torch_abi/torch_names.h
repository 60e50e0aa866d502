// What messages and observers call the layers of an operator's call. Layers that differ only in their names share a
// plan, so the plan's texts have a placeholder in the place of each name. In eager mode a plan's number stands for
// names too. That of a compiled graph does not, because equal blocks share the graph: there a layer is found by the
// memory of its weight (ingot/torch/_names.py), and only when a message or an observer asks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/nn/observe/observer.h"
#include "torch_abi/torch_library.h"

namespace ingot::python {

inline constexpr std::string_view kPlaceholder = "@{";  // then the layer's place among those of its plan, and "}"

inline std::string placeholder(std::size_t at) { return std::string(kPlaceholder) + static_cast<char>('0' + at) + "}"; }
// The text with names in the place of placeholders.
std::string with_names(std::string_view text, std::span<const std::string> names);

// What describes a layer whose name nobody knows.
std::string sizes_text(std::int64_t in_features, std::int64_t out_features);

// What a plan's number says of a call.
struct TorchCalled {
  std::int64_t number = 0;
  std::vector<std::string> names{};                 // of the plan's layers; empty: not known by the number
  const std::vector<std::string>* sizes = nullptr;  // sizes_text() of each
};

// The names of a call's layers: those of its number, or of the layers whose weights are among these tensors, or what
// describes their sizes. Takes the GIL if it has to look for them.
std::vector<std::string> names_of(const TorchCalled& called, std::span<const TorchTensor> tensors);
// From now on names_of() knows the layers of a call by this tensor, which another call has left for it. For calls that
// are observed. `shared`: other layers' calls have left it, too.
void note_names(const TorchCalled& called, const TorchTensor& left, const std::vector<std::string>& names, bool shared);
// To be called when observing begins.
void forget_noted_names();

// Passes events on with the layers' names.
class NamedObserver final : public LayerObserver {
 public:
  NamedObserver(std::shared_ptr<LayerObserver> to, std::vector<std::string> names)
      : to_(std::move(to)), names_(std::move(names)) {}

  const std::vector<std::string>& names() const { return names_; }

  void begin(std::string_view layer, std::string_view what) override { to_->begin(with_names(layer, names_), what); }
  void end() noexcept override { to_->end(); }
  bool wants_values() const override { return to_->wants_values(); }
  void cast(const CastEvent& event, Stream& stream) override;
  void gemm(const GemmEvent& event, Stream& stream) override;

 private:
  std::shared_ptr<LayerObserver> to_;
  std::vector<std::string> names_;
};

}  // namespace ingot::python
