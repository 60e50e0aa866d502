// The part of quantize_mx and float_quantize in what kernel_spec.h declares for every spec.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/codegen/quantize/quantize_spec.h"

namespace ingot {

std::string print_spec(const MxQuantizeSpec& spec);
std::string print_spec(const FloatQuantizeSpec& spec);

void validate_spec(const MxQuantizeSpec& spec);
void validate_spec(const FloatQuantizeSpec& spec);

// `words` are those of `line`, which errors show; the first is the kernel's name.
MxQuantizeSpec parse_mx_quantize(std::string_view line, std::span<const std::string> words);
FloatQuantizeSpec parse_float_quantize(std::string_view line, std::span<const std::string> words);

std::vector<MxQuantizeSpec> all_valid_mx_quantizes();
std::vector<FloatQuantizeSpec> all_valid_float_quantizes();

}  // namespace ingot
