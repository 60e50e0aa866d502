// Machine code as text, by NVIDIA's disassembler.
#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>

namespace ingot::tools {

// The SASS of a cubin, as nvdisasm prints it. `cuda_root`: ContextOptions::cuda_root. Throws Error{not_found} where
// there is no nvdisasm, and Error{io_failed} if it cannot be run or fails.
std::string disassemble(std::span<const std::byte> cubin, const std::filesystem::path& cuda_root);

}  // namespace ingot::tools
