#include "ingot/runtime/gemm/gemm_operations.h"

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <span>
#include <string>

#include "ingot/runtime/core/check_scales.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/pointwise/check_pointwise.h"

namespace ingot {
namespace {

// Checks the scale_inv of a or b. `row` names "one for each row" in messages.
Range check_operand_scale_inv(const char* what, const Tensor& scale_inv, Dtype operand, ScaleGranularity scale,
                              std::int64_t rows, std::int64_t k, Device device, const char* row) {
  if (!is_fp8(operand)) return check_absent(what, scale_inv, "a high-precision operand has no scale_inv");
  const ScaledMatrix matrix{.whole = "one for the whole tensor", .row = row, .in_row = "along K", .of = ""};
  return check_scale_inv(what, scale_inv, scale, rows, k, device, matrix, "group of K");
}

constexpr PointwiseInputNames kGemmInputs{"gemm inputs[0]", "gemm inputs[1]", "gemm inputs[2]", "gemm inputs[3]"};
constexpr const char* kShape = "M of a, N of b";

void check_same_k(const GemmSpec& spec, const GemmTensors& tensors, std::int64_t k) {
  if (extent_k(tensors.b, spec.layout_b) == k) return;
  refuse("gemm b", tensors.b,
         fmt::format("its K is {} ({}), but that of a, which is {}, is {} ({})", extent_k(tensors.b, spec.layout_b),
                     spec.layout_b == Layout::k_major ? "b is [N, K]" : "b is [K, N]", describe(tensors.a), k,
                     spec.layout_a == Layout::k_major ? "a is [M, K]" : "a is [K, M]"));
}

// Checks the tensors of one GEMM other than its operands.
struct Checker {
  MatmulSize size;
  Device device;

  // A matrix of the output's shape.
  Range matrix_if(bool asked, const char* what, const Tensor& tensor, Dtype dtype, const char* why_not) const {
    return asked ? check_matrix(what, tensor, dtype, size.m, size.n, device, kShape)
                 : check_absent(what, tensor, why_not);
  }
  Range single_if(bool asked, const char* what, const Tensor& tensor, const char* why_not) const {
    return asked ? check_vector(what, tensor, Dtype::f32, 1, device, "one for the whole output")
                 : check_absent(what, tensor, why_not);
  }
};

// c as an input. If it is the output itself it has no bytes to overlap: whoever writes an element has read it.
Range check_c(const Checker& check, const GemmSpec& spec, const GemmTensors& tensors, const Range& out) {
  const auto& dtype = spec.epilogue.c;
  const Range c =
      check.matrix_if(dtype.has_value(), "gemm c", tensors.c, dtype.value_or(Dtype::f32), "the spec adds no c");
  if (in_place(tensors.c, tensors.out)) return {"gemm c", &tensors.c, 0};
  if (overlap(c, out)) {
    refuse("gemm c", tensors.c,
           fmt::format("its memory overlaps that of gemm out, which is {}; c may be the output itself, with the same "
                       "address, dtype and row stride, or its own memory",
                       describe(tensors.out)));
  }
  return c;
}

// The memory that a GEMM reads and writes.
struct GemmRanges {
  std::array<Range, 7 + kMaxPointwiseInputs> inputs;
  std::array<Range, 4> outputs;
};

// Checks all but what overlaps what.
GemmRanges ranges_of(const GemmSpec& spec, const GemmTensors& tensors, Device device) {
  validate_spec(spec);
  const Range a = check_matrix("gemm a", tensors.a, spec.a, device);
  const Range b = check_matrix("gemm b", tensors.b, spec.b, device);
  const MatmulSize size = gemm_size(spec, tensors);
  const auto [m, n, k] = size;
  check_same_k(spec, tensors, k);
  const GemmEpilogue& epilogue = spec.epilogue;
  const Checker check{size, device};
  const Range out = check.matrix_if(true, "gemm out", tensors.out, spec.out, "");
  const Range c = check_c(check, spec, tensors, out);
  constexpr const char* kHighPrecision = "the output is of high precision";
  GemmRanges ranges{};
  ranges.inputs = {
      a,
      b,
      check_operand_scale_inv("gemm scale_inv_a", tensors.scale_inv_a, spec.a, spec.scale_a, m, k, device,
                              "one for each of a's M rows"),
      check_operand_scale_inv("gemm scale_inv_b", tensors.scale_inv_b, spec.b, spec.scale_b, n, k, device,
                              "one for each of b's N rows"),
      spec.bias ? check_vector("gemm bias", tensors.bias, bias_dtype(spec), n, device, "one for each of the N columns")
                : check_absent("gemm bias", tensors.bias, "the spec has no bias"),
      check.single_if(is_fp8(spec.out), "gemm scale", tensors.scale, kHighPrecision),
      c};
  check_pointwise_inputs(epilogue.pointwise, tensors.inputs, kGemmInputs,
                         {.dtype = epilogue_dtype(spec),
                          .rows = m,
                          .cols = n,
                          .matrix = kShape,
                          .columns = "one for each of the N columns",
                          .rows_of = "one for each of the M rows"},
                         device, std::span(ranges.inputs).subspan<7>());
  ranges.outputs = {out,
                    check.matrix_if(epilogue.preactivation, "gemm preactivation", tensors.preactivation,
                                    epilogue_dtype(spec), "the spec does not ask for this output"),
                    check.single_if(epilogue.amax, "gemm amax", tensors.amax, "the spec does not ask for it"),
                    check.single_if(is_fp8(spec.out), "gemm scale_inv", tensors.scale_inv, kHighPrecision)};
  return ranges;
}

void check_apart(const GemmRanges& written, const GemmRanges& other) {
  for (const Range& output : written.outputs) {
    const auto check_one = [&](const Range& of_other) {
      if (output.bytes == 0 || of_other.bytes == 0 || !overlap(output, of_other)) return;
      refuse(output.what, *output.tensor,
             fmt::format("its memory overlaps that of {} of the other GEMM of the pair, which is {}; both may run at "
                         "the same time",
                         of_other.what, describe(*of_other.tensor)));
    };
    for (const Range& input : other.inputs) check_one(input);
    for (const Range& output_of_other : other.outputs) check_one(output_of_other);
  }
}

}  // namespace

void check(const GemmSpec& spec, const GemmTensors& tensors, Device device) {
  const GemmRanges ranges = ranges_of(spec, tensors, device);
  check_overlaps(ranges.inputs, ranges.outputs);
}

void check(const GemmWork& first, const GemmWork& second, Device device) {
  const GemmRanges one = ranges_of(first.spec, first.tensors, device);
  const GemmRanges other = ranges_of(second.spec, second.tensors, device);
  check_overlaps(one.inputs, one.outputs);
  check_overlaps(other.inputs, other.outputs);
  check_apart(one, other);
  check_apart(other, one);
}

void check(const RelayoutSpec& spec, const RelayoutTensors& tensors, Device device) {
  const Tensor& input = tensors.input;
  if (!is_fp8(input.dtype)) refuse("relayout input", input, "it must be of an FP8 dtype");
  const Range in = check_matrix("relayout input", input, input.dtype, device);
  const std::int64_t matrices = tensors.matrices;
  if (matrices < 1 || input.rows % matrices != 0) {
    refuse("relayout input", input, fmt::format("its rows are no {} matrices of one size", matrices));
  }
  const Range out = spec.transposed ? check_matrix("relayout output", tensors.output, input.dtype,
                                                   matrices * input.cols, input.rows / matrices, device,
                                                   matrices == 1 ? "the input's shape, transposed"
                                                                 : "the transpose of each matrix, one after the other")
                                    : check_matrix("relayout output", tensors.output, input.dtype, input.rows,
                                                   input.cols, device, "the input's shape");
  check_overlaps({&in, 1}, {&out, 1});
}

}  // namespace ingot
