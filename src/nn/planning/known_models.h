// The linear layers of known models, by name, with the sizes of their published configs: the sets of `ingot tune --set`
// and `ingot warm --set`.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"

namespace ingot {

// The experts of each block's mixture.
struct ModelExperts {
  std::int64_t count = 0;         // 0: the model has none
  std::int64_t chosen = 0;        // by each token
  std::int64_t intermediate = 0;  // of one
  std::int64_t shared = 0;        // the intermediate size of those that all tokens go through; 0: there are none
  bool bias = false;              // with a bias in both layers, and an activation of its own
  bool mxfp4 = false;             // the published checkpoint has their weights in MXFP4
};

// Multi-head latent attention, DeepSeek's: queries, and keys with values, come from vectors of a lower rank.
struct LatentAttention {
  std::int64_t query_rank = 0;  // 0: the model has none
  std::int64_t key_value_rank = 0;
  std::int64_t heads = 0;
  std::int64_t query_size = 0;     // of a head, without positions; keys have the same
  std::int64_t position_size = 0;  // of a head's queries, and of the key that all heads share
  std::int64_t value_size = 0;     // of a head
};

// A model's layers are those of one block of each kind, fused as usual (query, key and value; gate and up), and the
// head.
struct KnownModel {
  std::string_view name;  // "llama3-8b"
  std::int64_t hidden = 0;
  std::int64_t query = 0;         // heads times their size
  std::int64_t key_value = 0;     // heads of keys times their size
  std::int64_t intermediate = 0;  // of dense MLPs; 0: there are none
  std::int64_t vocabulary = 0;
  bool attention_bias = false;
  ModelExperts experts{};
  LatentAttention latent{};  // in place of query and key_value
};

struct ModelLayer {
  std::string name;  // "gate_up"
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
  bool bias = false;
};

INGOT_API std::span<const KnownModel> known_models();
// Throws Error{invalid_argument} that lists the names; `subject` is what it speaks of, such as an option.
INGOT_API const KnownModel& known_model(std::string_view name, const std::string& subject = "model");
// The linear layers: all but the experts.
INGOT_API std::vector<ModelLayer> layers_of(const KnownModel& model);

}  // namespace ingot
