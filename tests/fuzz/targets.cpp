#include "fuzz/targets.h"

#include <array>
#include <stdexcept>
#include <string>

#include "ingot/runtime/util/error.h"

namespace ingot::fuzz {

std::span<const Target> targets() {
  static constexpr std::array kTargets{
      Target{.name = "kernel_file", .run = kernel_file, .corpus = "kernel_file"},
      Target{.name = "sealed_kernel_file", .run = sealed_kernel_file, .corpus = "sealed_kernel_file"},
      Target{.name = "bundle", .run = bundle, .corpus = "bundle"},
      Target{.name = "sealed_bundle", .run = sealed_bundle, .corpus = "sealed_bundle"},
      Target{.name = "recording", .run = recording, .corpus = "recording"},
      Target{.name = "tuning_record", .run = tuning_record, .corpus = "tuning_record"},
      Target{.name = "sealed_tuning_record", .run = sealed_tuning_record, .corpus = "sealed_tuning_record"},
      Target{.name = "spec_line", .run = spec_line, .corpus = "spec_line"},
      Target{.name = "pointwise", .run = pointwise, .corpus = "pointwise"},
      Target{.name = "safetensors", .run = safetensors, .corpus = "safetensors"},
      Target{.name = "safetensors_header", .run = safetensors_header, .corpus = "safetensors_header"},
      Target{.name = "safetensors_index", .run = safetensors_index, .corpus = "safetensors_index"},
      Target{.name = "delayed_scaling", .run = delayed_scaling, .corpus = "delayed_scaling"},
      Target{.name = "sealed_delayed_scaling", .run = sealed_delayed_scaling, .corpus = "sealed_delayed_scaling"},
      Target{.name = "warm_layers", .run = warm_layers, .corpus = "warm_layers"},
      Target{.name = "model_shape", .run = model_shape, .corpus = "model_shape"},
#ifdef INGOT_FUZZ_EXAMPLES
      Target{.name = "model_config", .run = model_config, .corpus = "model_config"},
      Target{.name = "checkpoint", .run = checkpoint, .corpus = "checkpoint"},
      Target{.name = "sealed_checkpoint", .run = sealed_checkpoint, .corpus = "sealed_checkpoint"},
#endif
  };
  return kTargets;
}

void require(bool condition, const char* what) {
  if (!condition) throw std::logic_error(what);
}

bool accepts(const std::function<void()>& parse) {
  try {
    parse();
    return true;
  } catch (const Error& error) {
    require(!std::string(error.what()).empty(), "an error without a message");
    return false;
  }
}

}  // namespace ingot::fuzz
