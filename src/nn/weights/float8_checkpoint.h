// FP8 weights of linear layers as public checkpoints store them and inference engines read them. Of a layer "wq.", the
// prefix of its tensors' names, a file has
//
//   wq.weight         the codes: F8_E4M3 or F8_E5M2 [N, K]
//   wq.weight_scale   or wq.weight_scale_inv: the scale_inv, value = code * factor. F32, BF16, F16 or F8_E8M0:
//                     [], [1] or [1, 1] for the tensor; [N] or [N, 1] for rows; [ceil(N / 128), ceil(K / 128)] for
//                     blocks; [N, ceil(K / 128)] for groups of a row
//   wq.input_scale    or wq.activation_scale: if activations have a static scale: their factor, value = code * factor
//
// Both names mean the same factor, by which codes are dequantized: weight_scale_inv (DeepSeek) is not its inverse.
// Ingot's own scales (CastSpec, Cast::scale) are the other way round, code = encode(value * scale).
//
//   const auto checkpoint = SafetensorsCheckpoint::open("DeepSeek-V3");
//   const Float8WeightState state = load_float8_weight(checkpoint, "model.layers.0.self_attn.o_proj.");
//   const Float8View codes = weight_from_state(plan, backend, state, region, stream);
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/linear_plan.h"
#include "ingot/nn/weights/safetensors.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/stream.h"

namespace ingot {

// A weight in FP8 on the host.
struct Float8WeightState {
  Dtype dtype = Dtype::e4m3fn;           // or e5m2
  ScaleGranularity scale = kTensorwise;  // or kRowwise, kBlocks, kRowGroups
  std::int64_t out_features = 0;         // N
  std::int64_t in_features = 0;          // K
  std::vector<std::byte> codes{};        // [N, K], dense rows
  std::vector<float> scale_inv{};        // scale_count(scale, N, K), row by row; value = code * factor
  // Of static activation scales: the value of an input's code is code * input_scale_inv.
  std::optional<float> input_scale_inv{};
};

// How the scale_inv are called in a file.
enum class ScaleName : std::uint8_t { weight_scale, weight_scale_inv };

// Loads the weight of that name. Throws Error{not_found} if there is no such weight; Error{invalid_argument} for a
// weight that is not in FP8, codes without scale_inv or with two sets of them, and scale_inv whose shape or dtype fits
// none of the layouts above; Error{io_failed}.
//
// One factor may also be that of a weight of one block, row or group, whose activations are then cast as other layers'
// are. `of_one` says so, as a config.json does; by default it is a block's if it is a weight_scale_inv of [1, 1], which
// is how block scales are stored, and else the tensor's.
INGOT_API Float8WeightState load_float8_weight(const SafetensorsCheckpoint& checkpoint, const std::string& name,
                                               std::optional<ScaleGranularity> of_one = std::nullopt);

// The scale_inv of the same values for another granularity: those of a larger part are repeated for the smaller parts
// that it consists of, such as one factor of the whole tensor for each row. nullopt where a part would have several.
INGOT_API std::optional<std::vector<float>> scale_inv_for(const Float8WeightState& state, ScaleGranularity scale);

// Throws Error{invalid_argument} if bytes, scale_inv and sizes do not fit each other.
INGOT_API void check_float8_weight(const std::string& subject, const Float8WeightState& state);

// What write_safetensors() takes for this weight, for files that hold more than weights in FP8. It views the state, and
// stores scale_inv as F32. Throws as check_float8_weight() does.
INGOT_API std::vector<TensorToStore> tensors_to_store(const std::string& name, const Float8WeightState& state,
                                                      ScaleName scale_name = ScaleName::weight_scale);

// Writes a file of these weights, keyed by name, from which load_float8_weight() restores each bit.
INGOT_API void save_float8_weights(const std::filesystem::path& file,
                                   const std::map<std::string, Float8WeightState>& weights,
                                   ScaleName scale_name = ScaleName::weight_scale);

// The weight of a linear layer in and out in FP8: between the codes and scale_inv on the device that a LinearPlan's
// GEMMs read (linear_functions.h) and those on the host, which checkpoints store.
//
//   const Float8View codes = weight_from_state(plan, backend, state, region, stream);   // instead of cast_weight()
//   save_float8_weights(file, {{"layers.0.wq.", weight_state(plan, backend, codes, stream)}});

// Copies the codes of the output GEMM and their scale_inv to the host, and waits for the device. Throws
// Error{invalid_argument} if the config has no such codes, or they are not given.
INGOT_API Float8WeightState weight_state(const LinearPlan& plan, Backend& backend, const Float8View& codes,
                                         Stream& stream);

// Copies codes and scale_inv to `into`, plan.weight_memory() bytes, with the transposed codes where the plan has them,
// and returns them as views of it. Throws Error{invalid_argument} if the state contradicts itself, if its sizes or
// format are not the plan's, or if its scale_inv cannot serve one of the plan's GEMMs: scale_inv of rows serve
// grad_input only where they are folded (rowwise_folded()), those of a tensor serve every recipe, and those of blocks
// need blocks. Not within a capture.
INGOT_API Float8View weight_from_state(const LinearPlan& plan, Backend& backend, const Float8WeightState& state,
                                       const MemoryRegion& into, Stream& stream);

}  // namespace ingot
