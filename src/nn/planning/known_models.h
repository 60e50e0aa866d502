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

// A model's layers are those of one block, fused as usual (query, key and value; gate and up), and the head.
struct KnownModel {
  std::string_view name;  // "llama3-8b"
  std::int64_t hidden;
  std::int64_t key_value;  // heads of keys times their size
  std::int64_t intermediate;
  std::int64_t vocabulary;
};

struct ModelLayer {
  std::string name;  // "gate_up"
  std::int64_t in_features = 0;
  std::int64_t out_features = 0;
};

INGOT_API std::span<const KnownModel> known_models();
// Throws Error{invalid_argument} that lists the names; `subject` is what it speaks of, such as an option.
INGOT_API const KnownModel& known_model(std::string_view name, const std::string& subject = "model");
INGOT_API std::vector<ModelLayer> layers_of(const KnownModel& model);

}  // namespace ingot
