// Layers with FP8, FP6 or FP4 weights (nn/weight_only.h) in safetensors files, beside anything else that is kept there.
// A layer whose name is "layers.0.wq." (any text, or none; it stands in front of all its names) has
//
//   weight         packed: U8 [packed_weight_bytes()]; row by row: F8_E4M3 (or what the dtype is called) [N, K], and of
//                  less than a byte U8 [N, bytes of a row]
//   weight_scale   the factors, value = code * factor: F32 [1], [N, 1], [N, ceil(K / g)] or [ceil(N / 128),
//                  ceil(K / 128)]; of mx F8_E8M0 [N, ceil(K / 32)]
//   __metadata__   ingot.layout: "packed", "packed_f16" or "row_major"; ingot.layout_version (of the packed ones):
//                  kPackedLayoutVersion;
//                  ingot.dtype: "e4m3fn" ...; ingot.n, ingot.k; ingot.scale: "tensor", "row", "1x128" ... or "mx"; and
//                  for the file "format": "pt"
//
// So FP8 weights that are not packed are what other programs read as codes and scales.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "ingot/nn/safetensors.h"
#include "ingot/nn/weight_only.h"

namespace ingot {

// Writes a file of these layers, by their names. Throws as write_safetensors() does, and Error{invalid_argument} for a
// state whose bytes are not those of its sizes.
void save_weight_only(const std::filesystem::path& file, const std::map<std::string, WeightOnlyState>& layers);

// The layer of that name. Its batch_invariant and epilogue are the caller's to set, ahead of from_state(). Throws
// Error{not_found} where the file has no such tensors, Error{invalid_argument} for packed weights of another version,
// and for metadata that is missing, not understood, or not what the tensors are; Error{io_failed}.
WeightOnlyState load_weight_only(const SafetensorsFile& file, const std::string& name = {});

}  // namespace ingot
