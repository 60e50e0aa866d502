// Saves layers with FP8, FP6 or FP4 weights (weight_only.h) in safetensors files, and loads them. A file may hold
// other tensors too. The layer's name, such as "layers.0.wq." (any text, also empty), is the prefix of all its names:
//
//   weight         packed: U8 [packed_weight_bytes()]. row_major: the dtype's own type, such as F8_E4M3 [N, K]; dtypes
//                  smaller than a byte: U8 [N, bytes of a row]
//   weight_scale   the factors, value = code * factor: F32 [1], [N, 1], [N, ceil(K / g)] or [ceil(N / 128),
//                  ceil(K / 128)]; for mx F8_E8M0 [N, ceil(K / 32)]
//   __metadata__   ingot.layout: "packed", "packed_f16" or "row_major"; ingot.layout_version (packed layouts only):
//                  kPackedLayoutVersion; ingot.dtype: "e4m3fn" ...; ingot.n, ingot.k; ingot.scale: "tensor", "row",
//                  "1x128" ... or "mx"; and, once per file, "format": "pt"
//
// So other programs can read FP8 weights in row_major layout as codes and scales.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "ingot/api.h"
#include "ingot/nn/weights/safetensors.h"
#include "ingot/nn/weights/weight_only.h"

namespace ingot {

// Writes a file of these layers, keyed by name. Throws as write_safetensors() does, and Error{invalid_argument} for a
// state whose bytes do not match its sizes.
INGOT_API void save_weight_only(const std::filesystem::path& file,
                                const std::map<std::string, WeightOnlyState>& layers);

// Loads the layer of that name. batch_invariant and epilogue are not stored: set them before from_state(). Throws
// Error{not_found} if the file has no such tensors; Error{invalid_argument} for packed weights of another version, and
// for metadata that is missing, malformed or contradicts the tensors; Error{io_failed}.
INGOT_API WeightOnlyState load_weight_only(const SafetensorsFile& file, const std::string& name = {});

}  // namespace ingot
