// Tilings of the dequant_matmul kernels: their text, and which of them a kernel can be built with.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ingot/codegen/dequant/dequant_spec.h"

namespace ingot {

std::string_view name(DequantKernel kernel);  // "sm90"
std::optional<DequantKernel> parse_dequant_kernel(std::string_view text);

// The text that follows the kernel's name in a spec. For mma: "16x64x128:3:1:2" (tokens x rows x depth, stages, split,
// k_warps). For sm90: "mma:16x128x128:8:2:1" or "wgmma:64x256x128:4:1:1:waves2:multicast2:blocks2", which begins with
// the instruction and ends with the fields that are not 1, and with ":streamk" where tiles are cut along K.
std::string print(DequantKernel kernel, const DequantTiling& tiling);
std::optional<DequantTiling> parse_dequant_tiling(DequantKernel kernel, std::string_view text);

// Is there a scale_inv for each group of K: 1x128, 1x64, 1x32, 128x128?
bool has_group_factors(const DequantMatmulSpec& spec);

// Why the spec's kernel, which must not be `automatic`, cannot be built with this tiling, for messages; empty if it
// can.
std::string dequant_tiling_fault(const DequantMatmulSpec& spec, const DequantTiling& tiling);

}  // namespace ingot
