// The layers of a model, for `ingot warm`: of a known one, or read from a JSON file.
//
//   {"training": [{"name": "qkv", "in_features": 4096, "out_features": 6144, "bias": false, "kind": "linear"}, ...],
//    "decoding": [{"name": "qkv", "in_features": 4096, "out_features": 6144, "bias": false, "f32_output": false}, ...]}
//
// kind: linear (the default), rms_norm_linear, layer_norm_linear, or an MLP, whose out_features are its hidden ones:
// gated_mlp, layer_norm_mlp, rms_norm_gated_mlp; or experts, gated MLPs, with "experts" and "chosen", how many there
// are and how many each token has. Experts decode too. Without "decoding", the linear layers and experts that train
// also decode.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "ingot/nn/planning/layer_runs.h"

namespace ingot::tools {

struct ModelLayers {
  std::vector<TrainedLayer> training{};
  std::vector<DecodedLayer> decoding{};
};

// Throws Error{invalid_argument} that lists the known models.
ModelLayers known_model_layers(const std::string& name);

// Throws Error{not_found, io_failed, invalid_argument}, which names the field that is wrong.
ModelLayers read_layers(const std::filesystem::path& file);

void add(ModelLayers& all, ModelLayers more);

}  // namespace ingot::tools
