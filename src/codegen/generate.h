// From a spec to the translation unit that NVRTC compiles: one #include of a template header and one line that names an
// instantiation, kKernel. Nothing else is ever text.
#pragma once

#include <string>
#include <string_view>

#include "ingot/codegen/kernel_spec.h"

namespace ingot {

// A CUDA C++ translation unit. `text` must define `constexpr auto kKernel = &some_kernel;`, and may #include any file
// of templates/ by its name there ("cast.cuh").
struct Source {
  std::string name;  // shown in messages, never part of a key
  std::string text;
  bool operator==(const Source&) const = default;
};

inline constexpr std::string_view kKernelName = "kKernel";

// The launch that a tensorwise cast makes first (its partial maxima), and the cast proper, are different kernels of one
// spec. A spec has main_kernel always and first_pass only where first_pass(spec) says so.
enum class Pass : std::uint8_t { first, main };

// Does this spec take two launches? (cast: every one but rowwise codes alone; amax tensorwise; column_sum)
bool has_first_pass(const KernelSpec& spec);

// Throws Error{invalid_spec}.
Source generate(const KernelSpec& spec, Pass pass = Pass::main);

}  // namespace ingot
