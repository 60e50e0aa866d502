// The sizes of a Llama-like decoder: presets, or those of a checkpoint's config.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace generate {

// How Llama 3.1 stretches the rotary embedding: frequencies that turn less than low_frequency_factor times within
// original_positions are divided by `factor`, those that turn more than high_frequency_factor times stay, and those
// between are interpolated.
struct RopeScaling {
  double factor = 8;
  double low_frequency_factor = 1;
  double high_frequency_factor = 4;
  double original_positions = 8192;
  bool operator==(const RopeScaling&) const = default;
};

struct ModelShape {
  std::int64_t layers = 0;
  std::int64_t hidden = 0;        // width of the residual stream
  std::int64_t intermediate = 0;  // of the gated MLP
  std::int64_t heads = 0;         // of queries
  std::int64_t kv_heads = 0;      // of keys and values
  std::int64_t head_dims = 0;
  std::int64_t vocabulary = 0;
  double norm_eps = 1e-5;
  double rope_theta = 10000;
  std::optional<RopeScaling> rope_scaling{};

  std::int64_t query_rows() const { return heads * head_dims; }
  std::int64_t qkv_rows() const { return (heads + 2 * kv_heads) * head_dims; }
  bool operator==(const ModelShape&) const = default;
};

struct Preset {
  std::string_view name;
  ModelShape shape;
};
// tiny (for tests on a CPU), llama2-7b, llama3-8b.
const std::vector<Preset>& presets();
const Preset& preset(std::string_view name);

// Throws ingot::Error{invalid_argument} that names `what` if the operations do not support the sizes.
void check(const ModelShape& shape, const std::string& what);

// Reads the config.json of a "llama" model in Hugging Face's format. Throws ingot::Error{not_found} if there is no
// file, ingot::Error{io_failed} if it is damaged, and ingot::Error{invalid_argument} for a model of another kind.
ModelShape read_config(const std::filesystem::path& file);
void write_config(const std::filesystem::path& file, const ModelShape& shape);

}  // namespace generate
