// Maxima of absolute values; the scales that follow from them; and the update that delayed scaling does once per step:
// maxima enter their histories, and scales are computed from them.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/granularity.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

class SpecReader;
struct TemplateInstance;

// amax[i] = max |x| over the i-th extent of x[rows, cols]; NaN is kept. The result is f32.
struct AmaxSpec {
  static constexpr std::string_view kWord = "amax";
  Dtype in = Dtype::bf16;
  ScaleGranularity scale = kTensorwise;  // of a list any that casts have, otherwise tensor, row or col
  // Finds the maxima of any number of matrices in one launch (AmaxList in runtime/cast/cast_tensors.h).
  bool list = false;
  // Only of lists: the maxima of other extents too, in the same pass; and what the values, which are f32, are rounded
  // to before, as by a separate kernel.
  std::optional<ScaleGranularity> second_scale{};
  std::optional<Dtype> rounded{};
  bool operator==(const AmaxSpec&) const = default;
};

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const AmaxSpec& spec);
void validate_spec(const AmaxSpec& spec);
INGOT_API std::uint64_t hash_spec(const AmaxSpec& spec);
void read_spec(const SpecReader& reader, AmaxSpec& spec);
INGOT_API void list_valid(std::vector<AmaxSpec>& specs);
ExtraPasses extra_passes(const AmaxSpec& spec);
TemplateInstance template_instance(const AmaxSpec& spec, Pass pass);

// For casts with given scales, of maxima that the caller may have reduced over GPUs, for instance:
//   scale[i] = f32(FP8_MAX / max(f64(|amax[i]|), 1e-12)), rounded down to a power of two if pow2; NaN for NaN
// The formula is that of dynamic scales, to the bit.
struct AmaxScalesSpec {
  static constexpr std::string_view kWord = "amax_scales";
  Dtype out = Dtype::e4m3fn;
  bool pow2 = false;
  bool operator==(const AmaxScalesSpec&) const = default;
};

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const AmaxScalesSpec& spec);
void validate_spec(const AmaxScalesSpec& spec);
INGOT_API std::uint64_t hash_spec(const AmaxScalesSpec& spec);
void read_spec(const SpecReader& reader, AmaxScalesSpec& spec);
INGOT_API void list_valid(std::vector<AmaxScalesSpec>& specs);
ExtraPasses extra_passes(const AmaxScalesSpec& spec);
TemplateInstance template_instance(const AmaxScalesSpec& spec, Pass pass);

// max: a scale follows the largest amax of the history. most_recent: it follows the newest one.
enum class AmaxReduction : std::uint8_t { max, most_recent };
inline constexpr std::array kAmaxReductions{AmaxReduction::max, AmaxReduction::most_recent};

// For each of n slots, with a history of any length >= 1, the newest amax first:
//   history[i] moves by one entry and drops its oldest amax; history[i][0] = |amax[i]|; amax[i] = 0
//   finite: history[i][0] = 0 where amax[i] is Inf or NaN, so that an overflow does not reach the scales of later steps
//   largest = max of history[i], or history[i][0]; NaN if one of these is NaN
//   scale[i] = f32(FP8_MAX / max(f64(largest), 1e-12)), rounded down to a power of two where pow2[i] is not 0;
//   where largest is 0, nothing is known of the data (it was not cast, is all zeros, or overflowed where `finite`), and
//   scale[i] stays as it is
// The formula is that of dynamic scales, to the bit; each slot has its own FP8_MAX.
struct AmaxHistorySpec {
  static constexpr std::string_view kWord = "amax_history";
  AmaxReduction reduction = AmaxReduction::max;
  bool finite = false;
  bool operator==(const AmaxHistorySpec&) const = default;
};

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const AmaxHistorySpec& spec);
void validate_spec(const AmaxHistorySpec& spec);
INGOT_API std::uint64_t hash_spec(const AmaxHistorySpec& spec);
void read_spec(const SpecReader& reader, AmaxHistorySpec& spec);
INGOT_API void list_valid(std::vector<AmaxHistorySpec>& specs);
ExtraPasses extra_passes(const AmaxHistorySpec& spec);
TemplateInstance template_instance(const AmaxHistorySpec& spec, Pass pass);

}  // namespace ingot
