// Turns a spec into the translation unit that NVRTC compiles: one #include of a template header and one line that names
// an instantiation, kKernel. Nothing else is ever text.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ingot/api.h"
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

// A CUDA C++ translation unit. `text` must define `constexpr auto kKernel`, a pointer to the kernel, and may #include
// any file of templates/ by its path there ("cast/cast_tiles.cuh"), and nothing else.
struct Source {
  std::string name;  // shown in messages, never part of a key
  std::string text;
  bool operator==(const Source&) const = default;
};

inline constexpr std::string_view kKernelName = "kKernel";

// The passes that a spec takes, or may take, in the order of their launches.
INGOT_API std::span<const Pass> passes(const KernelSpec& spec);
INGOT_API std::span<const Pass> passes_with(const ExtraPasses& extra);
INGOT_API bool has_pass(const KernelSpec& spec, Pass pass);

// The suffix of a pass in a kernel's name, after the spec: "" for the main pass, " (first pass)".
INGOT_API const char* suffix(Pass pass);

// The source of one pass of a spec. Its first line is a comment with the words of the spec that the kernel depends on,
// and no others. So specs that differ only in parameters of the kernel (a GEMM's layouts, scales and bias), and specs
// that share a pass (the partial maxima of every tensorwise cast of bf16), have the same text, and with it one entry in
// the cache and in the store. Throws Error{invalid_spec}.
INGOT_API Source generate(const KernelSpec& spec, Pass pass = Pass::main);

}  // namespace ingot
