// The part of pack_weight and dequant_matmul in what kernel_spec.h declares for every spec.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/codegen/dequant/dequant_spec.h"

namespace ingot {

std::string print_spec(const PackWeightSpec& spec);
std::string print_spec(const DequantMatmulSpec& spec);

void validate_spec(const PackWeightSpec& spec);
void validate_spec(const DequantMatmulSpec& spec);

// `words` are those of `line`, which errors show; the first is the kernel's name.
PackWeightSpec parse_pack_weight(std::string_view line, std::span<const std::string> words);
DequantMatmulSpec parse_dequant_matmul(std::string_view line, std::span<const std::string> words);

std::vector<PackWeightSpec> all_valid_pack_weights();
// Without an expression, a bias, batch_invariant and a tiling, once for each kernel that takes it.
std::vector<DequantMatmulSpec> all_valid_dequant_matmuls();

}  // namespace ingot
