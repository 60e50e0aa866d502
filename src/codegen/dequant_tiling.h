// Tilings of the dequant-matmul kernels: their text, and which of them a kernel can be made of.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "ingot/codegen/dequant_spec.h"

namespace ingot {

std::string_view name(DequantKernel kernel);  // "sm90"
std::optional<DequantKernel> parse_dequant_kernel(std::string_view text);

// What follows the kernel's name in a spec: of sm90 "wgmma:64x128x128:6:1:1" (instruction, tokens x rows x depth,
// stages, split, k_warps), of mma the same without the instruction.
std::string print(DequantKernel kernel, const DequantTiling& tiling);
std::optional<DequantTiling> parse_dequant_tiling(DequantKernel kernel, std::string_view text);

// Factors of groups of K: 1x128, 1x64, 1x32, 128x128.
bool has_group_factors(const DequantMatmulSpec& spec);

// Why the spec's kernel, which is not `automatic`, cannot be made of its tiling, in words; empty if it can.
std::string dequant_tiling_fault(const DequantMatmulSpec& spec, const DequantTiling& tiling);

}  // namespace ingot
