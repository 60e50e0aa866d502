// A decoder's weights by their public names: drawn at random, or read from safetensors.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "ingot/nn/weights/safetensors.h"
#include "machine.h"
#include "model_shape.h"
#include "op_runner.h"

namespace generate {

// A tensor as a checkpoint names it: a matrix [rows, cols], or, with rows = 0, a vector of cols elements. Random
// weights are drawn from N(mean, deviation^2).
struct NamedTensor {
  std::string name;
  std::int64_t rows;
  std::int64_t cols;
  double mean;
  double deviation;
};

NamedTensor embedding_tensor(const ModelShape& shape);
NamedTensor head_tensor(const ModelShape& shape);
NamedTensor final_norm_tensor(const ModelShape& shape);
// One layer's tensors. Those of one member are stacked into one matrix, so that one matmul computes them all.
struct LayerTensors {
  NamedTensor input_norm;
  std::vector<NamedTensor> qkv;
  NamedTensor output;
  NamedTensor mlp_norm;
  std::vector<NamedTensor> gate_up;
  NamedTensor down;
};
LayerTensors layer_tensors(const ModelShape& shape, std::int64_t layer);
std::vector<NamedTensor> all_tensors(const ModelShape& shape);

class WeightSource {
 public:
  // Random weights.
  WeightSource(Machine& machine, OpRunner& ops, std::uint64_t seed) : machine_(&machine), ops_(&ops), seed_(seed) {}
  // The weights of a file or folder. Throws what ingot::SafetensorsCheckpoint::open() throws.
  WeightSource(Machine& machine, OpRunner& ops, const std::filesystem::path& path)
      : machine_(&machine), ops_(&ops), checkpoint_(ingot::SafetensorsCheckpoint::open(path)) {}

  // Checks that all tensors are there, with these shapes and in bf16, f16 or f32. Throws ingot::Error{not_found,
  // invalid_argument}.
  void check(const ModelShape& shape) const;
  // One tensor, or several one below the other, as a matrix of bf16 on the device.
  ingot::OwnedTensor load(const NamedTensor& tensor) { return load(std::vector<NamedTensor>{tensor}); }
  ingot::OwnedTensor load(const std::vector<NamedTensor>& tensors);

 private:
  ingot::SafetensorsCheckpoint::Found find(const NamedTensor& tensor) const;
  void read(const NamedTensor& tensor, std::byte* target);

  Machine* machine_;
  OpRunner* ops_;
  std::uint64_t seed_ = 0;
  std::optional<ingot::SafetensorsCheckpoint> checkpoint_{};
};

// Writes all weights into a folder that `--weights` can read: model.safetensors (bf16) and config.json.
void save_weights(const std::filesystem::path& folder, WeightSource& source, const ModelShape& shape, Machine& machine);

}  // namespace generate
