// What a kernel computes, as plain values. A spec is the key of the cache, prints as one readable line that names the
// kernel in messages and in `ingot show`, and is read back from that line. (A profiler shows the C++ name.)
//
//   amax bf16 scale=tensor
//   amax f32 scale=row+col rounded=bf16 list
//   cast bf16->e4m3fn scale=row+col out=codes,transposed pow2
//   cast bf16->e4m3fn scale=tensor out=codes,transposed list
//   cast bf16->e4m3fn scale=row+col out=codes,transposed stacked
//   cast bf16->e4m3fn scale=row+col out=codes,transposed gathered
//   cast bf16->e5m2 of=grad*(sigmoid(x)+...) scale=tensor out=codes,transposed,result,sum:f32
//   gemm e4m3fn*e5m2->bf16 nt scale=tensor,tensor bias fast
//   gemm e5m2*e5m2->bf16 nt scale=row,row fast kernel=sm90:128x256:2x1:4:cooperative
//   gemm e4m3fn*e4m3fn->bf16 nt scale=row,row bias c=bf16 epilogue=silu(x)*gate also=preactivation,amax
//   gemm e4m3fnuz*e5m2fnuz->bf16 nt scale=row,tensor kernel=mma:64x64
//   gemm e4m3fn*e4m3fn->bf16 tt scale=row,row fast kernel=sm90:128x128:2x1:6:pingpong staged=a
//   gemm bf16*e4m3fn->bf16 nt scale=tensor,row
//   gemm bf16*bf16->bf16 nt kernel=cublaslt:3
//   gemm_pair first="bf16*bf16->bf16 nn kernel=sm90:128x128:1x1:6:pingpong" second="bf16*bf16->bf16 tn kernel=..."
//   grouped_gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast
//   grouped_gemm e4m3fn*e4m3fn->f32 nt scale=row,row c=f32 fast along=k
//   column_sum bf16->f32
//   combine bf16
//   relayout transposed
//   elementwise bf16 of=silu(x)*gate
//   elementwise bf16 of=grad*up second=grad*x
//   elementwise bf16 of=grad*w[row] row_sum=grad*x maxima
//   cast_stats bf16->e4m3fn scale=1x128 transposed
//   norm rms bf16->e4m3fn affine scale=row out=codes,stats
//   norm_backward rms bf16 affine sums=f32
//   amax_history reduce=max finite
//   amax_scales e4m3fn pow2
//   quantize_mx bf16->e2m1fn
//   float_quantize bf16 e3m2
//   pack_weight e4m3fn
//   dequant_matmul bf16*e4m3fn->bf16 packed scale=row bias epilogue=silu(x) kernel=sm90:mma:16x128x128:8:2:1
//   dequant_matmul bf16*e2m1fn->bf16 packed scale=1x32 factors=e8m0fnu experts
#pragma once

#include <cstddef>
#include <iosfwd>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>
#include <vector>
#include "ingot/api.h"
#include "ingot/codegen/cast/amax_spec.h"
#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/cast/cast_stats_spec.h"
#include "ingot/codegen/cast/column_sum_spec.h"
#include "ingot/codegen/cast/combine_spec.h"
#include "ingot/codegen/cast/elementwise_spec.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/gemm/grouped_gemm_spec.h"
#include "ingot/codegen/norm/norm_spec.h"
#include "ingot/codegen/quantize/quantize_spec.h"

namespace ingot {

// A list of types, to write something once for all of them.
template <class... Types>
struct TypeList {};

namespace detail {
template <class List>
struct VariantOf;
template <class... Types>
struct VariantOf<TypeList<Types...>> {
  using type = std::variant<Types...>;
};
}  // namespace detail

template <class List>
using VariantOf = typename detail::VariantOf<List>::type;

template <class Type, class... Types>
constexpr bool contains(TypeList<Types...>) {
  return (std::is_same_v<Type, Types> || ...);
}

// Calls function.template operator()<Type>() for each type, in their order.
template <class Function, class... Types>
void for_each_type(TypeList<Types...>, Function&& function) {
  (function.template operator()<Types>(), ...);
}

// Every kernel operation. Its spec's header declares what the library does with any spec: kWord and operator==,
// print_spec(), validate_spec(), hash_spec(), read_spec(), list_valid(), extra_passes() and template_instance(). What
// is missing does not compile.
using KernelSpecs =
    TypeList<AmaxSpec, CastSpec, GemmSpec, GemmPairSpec, GroupedGemmSpec, ColumnSumSpec, RelayoutSpec, ElementwiseSpec,
             CastStatsSpec, NormSpec, NormBackwardSpec, AmaxHistorySpec, AmaxScalesSpec, CombineSpec, MxQuantizeSpec,
             FloatQuantizeSpec, PackWeightSpec, DequantMatmulSpec>;
using KernelSpec = VariantOf<KernelSpecs>;

INGOT_API std::size_t hash_value(const KernelSpec& spec);
// The same value, without a copy of the spec.
template <class Spec>
requires(contains<Spec>(KernelSpecs{})) std::size_t hash_value(const Spec& spec) {
  return static_cast<std::size_t>(hash_spec(spec));
}

// Throws Error{invalid_spec} with a sentence that names the field and what is allowed. A spec that passes has a kernel.
INGOT_API void validate(const KernelSpec& spec);

// One line, in canonical field order; parse(print(s)) == s.
INGOT_API std::string print(const KernelSpec& spec);
// Throws Error{invalid_spec} that quotes the word that is wrong. The result is validated.
INGOT_API KernelSpec parse(std::string_view line);

INGOT_API std::ostream& operator<<(std::ostream& stream, const KernelSpec& spec);

// Valid specs of one operation, in a fixed order. They are not all: there are endlessly many expressions, and the
// comment of an operation's list_valid() says what else it leaves out.
template <class Spec>
std::vector<Spec> valid_specs() {
  std::vector<Spec> specs;
  list_valid(specs);
  return specs;
}

// The valid specs of all operations, in a fixed order: tests compile and run all of them. Pairs of GEMMs, grouped
// GEMMs, combine and the operations of quantize_spec.h and dequant_spec.h are left out, as they have their own tests.
INGOT_API std::vector<KernelSpec> all_valid_specs();

}  // namespace ingot
