// How the words of a GEMM's line are read, which a grouped GEMM's line has too.
#pragma once

#include <string_view>

#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/spec_reader.h"

namespace ingot {

// Reads a line with the words of a GEMM and those that `more` takes, which `form` names.
void read_gemm_words(const SpecReader& reader, GemmSpec& spec, std::string_view form,
                     const SpecReader::TakeOption& more);

}  // namespace ingot
