// From a spec to the translation unit that NVRTC compiles: one #include of a template header and one line that names an
// instantiation, kKernel. Nothing else is ever text.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "ingot/codegen/kernel_spec.h"

namespace ingot {

// A CUDA C++ translation unit. `text` must define `constexpr auto kKernel = &some_kernel;`, and may #include any file
// of templates/ by its name there ("cast/cast_tiles.cuh").
struct Source {
  std::string name;  // shown in messages, never part of a key
  std::string text;
  bool operator==(const Source&) const = default;
};

inline constexpr std::string_view kKernelName = "kKernel";

// The kernels of one spec, in the order of their launches. first: what the main pass builds on, such as the maxima that
// a tensorwise cast needs before it, or the codes of CastSchedule::rows_then_tiles. main: every spec has it. finish:
// what the main pass left in parts, such as column sums. whole: in place of first and main, for matrices that are small
// enough (templates/cast/cast_whole.cuh).
enum class Pass : std::uint8_t { first, main, finish, whole };

// How a cast runs. rows: a row in its threads' registers, in one launch (templates/cast/cast_rows.cuh). row_groups:
// likewise with 1 x 128 groups (templates/cast/cast_row_groups.cuh). rows_then_tiles: the codes by rows, which finds
// the maxima for the transposed codes, of the same scales; then those in tiles (templates/cast/cast_tiles.cuh). tiles:
// all in tiles, after a pass for those maxima that no tile sees whole.
enum class CastSchedule : std::uint8_t { rows, row_groups, rows_then_tiles, tiles };
CastSchedule cast_schedule(const CastSpec& spec);

// The maxima that a cast in tiles needs beforehand, and the kernel that finds them: none, amax_partials (one per
// block), amax_rows, or amax_tiles (raises maxima that must be cleared first).
struct FirstPass {
  enum class Kind : std::uint8_t { none, partials, rows, tiles };
  bool tensor = false;
  bool rows = false;
  bool columns = false;
  Kind kind() const;
};
FirstPass first_pass(const CastSpec& spec);

// Which passes a spec takes, or may take. (first: a cast with dynamic tensorwise scales, or in tiles with dynamic
// rowwise or columnwise ones, or by rows and then in tiles; amax tensorwise; column_sum; cast_stats. finish: a cast
// with column sums, norm_backward with gradients of gamma and beta. whole: a cast that has a first pass and is not of a
// list.)
std::span<const Pass> passes(const KernelSpec& spec);
bool has_pass(const KernelSpec& spec, Pass pass);

// What a pass's kernel is called behind its spec: "" for the main one, " (first pass)".
const char* suffix(Pass pass);

// Throws Error{invalid_spec}.
Source generate(const KernelSpec& spec, Pass pass = Pass::main);

}  // namespace ingot
