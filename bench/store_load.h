// Measures how long a compiled kernel takes from disk to memory, its checksum verified: from a store, from another
// user's store that is only read, and from a bundle; compared with a plain read of the store's file. All files are in
// the page cache. Every load is compared with what was stored.
#pragma once

#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ingot/runtime/jit/compiler.h"
#include "ingot/runtime/jit/kernel_file.h"
#include "spread.h"

namespace ingot::bench {

struct LoadCase {
  std::string spec;
  Pass pass = Pass::main;
  std::int64_t bytes = 0;  // about the size of its file
};

// About 20, 60 and 130 KB.
std::vector<LoadCase> load_cases();

struct LoadCost {
  std::string from;     // "store"
  std::string kernel;   // the source's name
  std::string made_by;  // "nvrtc 13.0 ...", or "synthetic bytes" where there is no NVRTC
  std::int64_t file_bytes = 0;
  Spread us{};
  std::optional<double> limit_us{};  // of the median
  std::string fault{};               // why the result is wrong; there is then no time
};

inline constexpr double kStoreLimitUs = 300;
inline constexpr double kBundleLimitUs = 100;

// Why a load is wrong, or empty.
std::string load_fault(const std::optional<CompiledKernel>& loaded, const CompiledKernel& stored);

// Makes the store and the bundle in a new folder inside `folder`, and removes them. Without a compiler, the kernels are
// random bytes. Each case is loaded `loads` times from each place, a few at a time from each. Throws Error{io_failed}.
std::vector<LoadCost> measure_loads(const Compiler* compiler, const std::filesystem::path& folder, int loads);

std::string to_text(std::span<const LoadCost> costs);
nlohmann::ordered_json to_json(std::span<const LoadCost> costs);

}  // namespace ingot::bench
