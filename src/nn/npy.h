// NumPy's .npy files of two dimensions (version 1.0 of the format; numpy.lib.format has its description).
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>

#include "ingot/codegen/types/dtype.h"

namespace ingot {

// A dense matrix [rows, cols], row-major: f32 as '<f4', an FP8 dtype as its codes, '|u1'; bf16 and f16 as '<u2', their
// bits. Replaces the file. Throws Error{io_failed}, of which nothing is left behind but a file cut short.
void write_npy(const std::filesystem::path& file, Dtype dtype, std::int64_t rows, std::int64_t cols,
               std::span<const std::byte> elements);

}  // namespace ingot
