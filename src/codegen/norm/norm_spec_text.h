// The norms' part of what kernel_spec.h declares for every spec.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/codegen/norm/norm_spec.h"

namespace ingot {

std::string print_spec(const NormSpec& spec);
std::string print_spec(const NormBackwardSpec& spec);

void validate_spec(const NormSpec& spec);
void validate_spec(const NormBackwardSpec& spec);

// `words` are those of `line`, which errors show; the first is the kernel's name.
NormSpec parse_norm(std::string_view line, std::span<const std::string> words);
NormBackwardSpec parse_norm_backward(std::string_view line, std::span<const std::string> words);

std::vector<NormSpec> all_valid_norms();
std::vector<NormBackwardSpec> all_valid_norm_backwards();

}  // namespace ingot
