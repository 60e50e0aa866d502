// Writes matrices as NumPy's .npy files (version 1.0 of the format, described in numpy.lib.format).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "ingot/codegen/types/dtype.h"

namespace ingot {

// Writes a dense, row-major matrix [rows, cols], and replaces an existing file: f32 as '<f4', an FP8 dtype as its
// codes, '|u1', bf16 and f16 as their bits, '<u2'. Throws Error{io_failed}, and then leaves at most a truncated file
// behind.
void write_npy(const std::filesystem::path& file, Dtype dtype, std::int64_t rows, std::int64_t cols,
               std::span<const std::byte> elements);

}  // namespace ingot
