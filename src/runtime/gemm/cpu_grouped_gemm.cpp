// Grouped GEMMs: what is asked of their tensors, and the reference, which is a GEMM for each expert.
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/cast/cast_tensors.h"
#include "ingot/runtime/core/check_experts.h"
#include "ingot/runtime/core/check_scales.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

#include "expert_slots.cuh"

namespace ingot {
namespace {

const char* name_of(const ExpertEnds& ends) { return ends.capacity ? "grouped_gemm counts" : "grouped_gemm ends"; }

[[noreturn]] void refuse_ends(const ExpertEnds& ends, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, name_of(ends), message);
}

// Rows of b's scale_inv that each expert has, where they are of blocks or groups.
std::int64_t scale_rows(const GemmSpec& gemm, std::int64_t n) { return divided_up(n, std::int64_t{gemm.scale_b.rows}); }

}  // namespace

bool is_by_group_of_each(const GemmSpec& gemm, const GroupedGemmTensors& tensors) {
  const std::int64_t experts = tensors.ends.experts;
  const Tensor& scale_inv = tensors.scale_inv_b;
  if (!has_group_scale_inv(gemm) || experts == 1) return false;
  return scale_inv.rows == experts * scale_count(kRowGroups, 1, tensors.b.cols) &&
         scale_inv.cols == scale_rows(gemm, tensors.b.rows / experts);
}

namespace {

constexpr const char* kOneOrEach = "one for each expert, or one for all of them";

Range check_scale_inv_a(const GemmSpec& gemm, const GroupedGemmTensors& tensors, Device device) {
  constexpr const char* kWhat = "grouped_gemm scale_inv_a";
  if (!is_fp8(gemm.a)) return check_absent(kWhat, tensors.scale_inv_a, "a high-precision operand has no scale_inv");
  const std::int64_t experts = tensors.ends.experts;
  if (gemm.scale_a == kTensorwise && tensors.scale_inv_a.cols != 1) {
    return check_vector(kWhat, tensors.scale_inv_a, Dtype::f32, experts, device, kOneOrEach);
  }
  const ScaledMatrix matrix{.whole = kOneOrEach, .row = "one for each of a's M rows", .in_row = "along K", .of = ""};
  return check_scale_inv(kWhat, tensors.scale_inv_a, gemm.scale_a, tensors.a.rows, tensors.a.cols, device, matrix,
                         "group of K");
}

// Each expert's rows begin with a new block.
Range check_scale_inv_b(const GemmSpec& gemm, const GroupedGemmTensors& tensors, std::int64_t n, Device device) {
  constexpr const char* kWhat = "grouped_gemm scale_inv_b";
  const std::int64_t experts = tensors.ends.experts;
  if (!is_fp8(gemm.b)) return check_absent(kWhat, tensors.scale_inv_b, "a high-precision operand has no scale_inv");
  if (gemm.scale_b == kTensorwise) {
    return check_vector(kWhat, tensors.scale_inv_b, Dtype::f32, experts, device, "one for each expert");
  }
  if (is_by_group_of_each(gemm, tensors)) return check_matrix(kWhat, tensors.scale_inv_b, Dtype::f32, device);
  const ScaledMatrix matrix{
      .whole = "", .row = "one for each of b's experts * N rows", .in_row = "along K", .of = " of each expert"};
  return check_scale_inv(kWhat, tensors.scale_inv_b, gemm.scale_b, experts * scale_rows(gemm, n) * gemm.scale_b.rows,
                         tensors.b.cols, device, matrix, "group of K");
}

// Along K, those of groups are in the order of the operand.
Range check_scale_inv_of_slots(const char* what, const Tensor& scale_inv, const Tensor& operand, Device device) {
  const ScaledMatrix matrix{.whole = "", .row = "", .in_row = "along K", .of = ""};
  return check_scale_inv(what, scale_inv, kRowGroups, operand.rows, operand.cols, device, matrix, "slot");
}

// Along K: those of all columns together, or of each expert's. `row` names "one for each row" in messages.
Range check_scale_inv_along_k(const char* what, const Tensor& scale_inv, Dtype operand, ScaleGranularity scale,
                              std::int64_t experts, std::int64_t rows, Device device, const char* row) {
  if (!is_fp8(operand)) return check_absent(what, scale_inv, "a high-precision operand has no scale_inv");
  const std::int64_t of_all = scale == kRowwise ? rows : 1;
  const std::int64_t count = scale_inv.cols == of_all ? of_all : experts * of_all;
  return check_vector(what, scale_inv, Dtype::f32, count, device, scale == kRowwise ? row : kOneOrEach);
}

// Along K, with scale_inv of groups.
void check_slots(const GroupedGemmTensors& tensors) {
  const Tensor& a = tensors.a;
  const std::int64_t experts = tensors.ends.experts;
  if (a.cols % ExpertSlots::kRows == 0 && a.cols / ExpertSlots::kRows > experts) return;
  refuse("grouped_gemm a", a,
         fmt::format("its columns must be slots of {}, as a cast of the rows of {} writes them, {} at least",
                     ExpertSlots::kRows, count_of(experts, "expert"), experts + 1));
}

void check_same_k(const GroupedGemmTensors& tensors) {
  if (tensors.b.cols == tensors.a.cols) return;
  refuse("grouped_gemm b", tensors.b,
         fmt::format("its K is {}, but that of a, which is {}, is {}", tensors.b.cols, describe(tensors.a),
                     tensors.a.cols));
}

// What is read and written besides a, b and the ends.
struct GroupedRanges {
  Range scale_inv_a, scale_inv_b, bias, out, c;
};

Range check_bias(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, std::int64_t n, Device device) {
  constexpr const char* kWhat = "grouped_gemm bias";
  if (!spec.gemm.bias) return check_absent(kWhat, tensors.bias, "the spec has no bias");
  return check_vector(kWhat, tensors.bias, bias_dtype(spec.gemm), tensors.ends.experts * n, device,
                      "one for each of the N columns of each expert");
}

// Whoever writes an element of c that is the output itself has read it.
Range check_c(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Device device) {
  constexpr const char* kWhat = "grouped_gemm c";
  if (!spec.gemm.epilogue.c) return check_absent(kWhat, tensors.c, "the spec adds no c");
  const Range c = check_matrix(kWhat, tensors.c, *spec.gemm.epilogue.c, tensors.out.rows, tensors.out.cols, device,
                               "the shape of out");
  return in_place(tensors.c, tensors.out) ? Range{kWhat, &tensors.c, 0} : c;
}

GroupedRanges check_along_k(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Device device) {
  const auto& [a, b, ends, scale_inv_a, scale_inv_b, bias, out, c, beta] = tensors;
  if (ends.capacity) refuse_ends(ends, "have a capacity, but along K experts follow each other: leave it out");
  check_same_k(tensors);
  if (has_group_scale_inv(spec.gemm)) check_slots(tensors);
  const Range written = check_matrix("grouped_gemm out", out, spec.gemm.out, ends.experts * a.rows, b.rows, device,
                                     "M of a for each expert, and N of b");
  constexpr const char* kOfA = "one for each of a's M rows, of each expert or of all together";
  constexpr const char* kOfB = "one for each of b's N rows, of each expert or of all together";
  const auto check_scale_inv_of = [&](const char* what, const Tensor& scale_inv, const Tensor& operand,
                                      ScaleGranularity scale, const char* row) {
    if (has_group_scale_inv(spec.gemm)) return check_scale_inv_of_slots(what, scale_inv, operand, device);
    return check_scale_inv_along_k(what, scale_inv, operand.dtype, scale, ends.experts, operand.rows, device, row);
  };
  return {.scale_inv_a = check_scale_inv_of("grouped_gemm scale_inv_a", scale_inv_a, a, spec.gemm.scale_a, kOfA),
          .scale_inv_b = check_scale_inv_of("grouped_gemm scale_inv_b", scale_inv_b, b, spec.gemm.scale_b, kOfB),
          .bias = check_bias(spec, tensors, b.rows, device),
          .out = written,
          .c = check_c(spec, tensors, device)};
}

GroupedRanges check_along_rows(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Device device) {
  check_capacity("grouped_gemm a", tensors.a, tensors.ends);
  check_same_k(tensors);
  if (tensors.b.rows % tensors.ends.experts != 0) {
    refuse("grouped_gemm b", tensors.b,
           fmt::format("its rows must be those of {} experts, N for each of them", tensors.ends.experts));
  }
  const std::int64_t n = tensors.b.rows / tensors.ends.experts;
  const Range out = check_matrix("grouped_gemm out", tensors.out, spec.gemm.out, tensors.a.rows, n, device,
                                 "M of a, and b's rows divided by the number of experts");
  return {.scale_inv_a = check_scale_inv_a(spec.gemm, tensors, device),
          .scale_inv_b = check_scale_inv_b(spec.gemm, tensors, n, device),
          .bias = check_bias(spec, tensors, n, device),
          .out = out,
          .c = check_c(spec, tensors, device)};
}

}  // namespace

void check(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Device device) {
  validate_spec(spec);
  const Range a = check_matrix("grouped_gemm a", tensors.a, spec.gemm.a, device);
  const Range b = check_matrix("grouped_gemm b", tensors.b, spec.gemm.b, device);
  check_ends(name_of(tensors.ends), tensors.ends, device);
  const GroupedRanges others =
      spec.along_k ? check_along_k(spec, tensors, device) : check_along_rows(spec, tensors, device);
  const Tensor ends = bytes_of(tensors.ends);
  const char* const what = name_of(tensors.ends);
  const std::array inputs{
      a, b, others.scale_inv_a, others.scale_inv_b, Range{what, &ends, byte_span(ends, what)}, others.bias, others.c};
  check_overlaps(inputs, {&others.out, 1});
  if (device.type == DeviceType::cpu) check_expert_values(spec, tensors);
}

void check_expert_values(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors) {
  const Tensor& a = tensors.a;
  ExpertLines lines{.lines = a.rows, .line = "row", .of = "a"};
  if (spec.along_k) lines = {.lines = a.cols, .line = "column", .of = "a"};
  if (spec.along_k && has_group_scale_inv(spec.gemm)) {
    const std::int64_t most = ExpertSlots::most_rows(a.cols / ExpertSlots::kRows, tensors.ends.experts);
    lines = {.lines = most, .line = "row", .of = "a, in slots,"};
  }
  check_end_values(name_of(tensors.ends), tensors.ends, lines);
}

}  // namespace ingot

namespace ingot::cpu {
namespace {

Tensor rows_of(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  Tensor part = tensor;
  part.data = static_cast<std::byte*>(tensor.data) + begin * tensor.row_stride * size_of(tensor.dtype);
  part.rows = end - begin;
  return part;
}

// The scale_inv of some rows of an operand; of groups, in either order.
Tensor scale_inv_of(const Tensor& all, ScaleGranularity scale, std::int64_t begin, std::int64_t end, std::int64_t k) {
  const ScaleInvStrides strides = scale_inv_strides(all, scale, k);
  Tensor part = all;
  part.data = static_cast<float*>(all.data) + begin * strides.row;
  part.cols = (end - begin) * strides.row;
  return part;
}

Tensor columns_of(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  Tensor part = tensor;
  part.data = static_cast<std::byte*>(tensor.data) + begin * size_of(tensor.dtype);
  part.cols = end - begin;
  return part;
}

// An expert's scale_inv of b; `rows`: of blocks or groups.
Tensor scale_inv_b_of(const GemmSpec& gemm, const GroupedGemmTensors& tensors, std::int64_t expert, std::int64_t rows,
                      std::int64_t k) {
  const Tensor& all = tensors.scale_inv_b;
  if (is_by_group_of_each(gemm, tensors)) {
    const std::int64_t groups = all.rows / tensors.ends.experts;
    return rows_of(all, expert * groups, (expert + 1) * groups);
  }
  const ScaleGranularity scale = gemm.scale_b == kTensorwise ? kRowwise : gemm.scale_b;
  return scale_inv_of(all, scale, expert * rows, (expert + 1) * rows, k);
}

// The scale_inv of some slots of an operand, by group, in `memory`.
Tensor scale_inv_of_slots(const Tensor& all, const Tensor& operand, std::int64_t first, std::int64_t slots,
                          std::vector<float>& memory) {
  const ScaleInvStrides strides = scale_inv_strides(all, kRowGroups, operand.cols);
  memory.clear();
  for (std::int64_t slot = first; slot < first + slots; ++slot) {
    for (std::int64_t r = 0; r < operand.rows; ++r) {
      memory.push_back(static_cast<const float*>(all.data)[r * strides.row + slot * strides.group]);
    }
  }
  return matrix(memory.data(), Dtype::f32, slots, operand.rows, operand.device);
}

// An expert's scale_inv of one for each expert or of those along K, of an operand with so many rows; or those of all.
Tensor scale_inv_of_expert(const Tensor& all, ScaleGranularity scale, std::int64_t expert, std::int64_t rows) {
  const std::int64_t count = scale == kRowwise ? rows : 1;
  Tensor part = all;
  part.data = static_cast<float*>(all.data) + (all.cols == count ? 0 : expert * count);
  part.cols = count;
  return part;
}

// Along K, with scale_inv of groups.
void grouped_gemm_of_slots(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, ThreadPool& pool) {
  const MatmulSize size = gemm_size(spec, tensors);
  std::vector<float> of_a, of_b;
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < tensors.ends.experts; ++e) {
    const std::int64_t end = tensors.ends.data[e];
    const std::int64_t first = ExpertSlots::first(begin, e);
    const std::int64_t slots = ExpertSlots::of_rows(end - begin);
    const auto columns = [&](const Tensor& operand) {
      return columns_of(operand, first * ExpertSlots::kRows, (first + slots) * ExpertSlots::kRows);
    };
    GemmTensors expert{.a = columns(tensors.a),
                       .b = columns(tensors.b),
                       .scale_inv_a = scale_inv_of_slots(tensors.scale_inv_a, tensors.a, first, slots, of_a),
                       .scale_inv_b = scale_inv_of_slots(tensors.scale_inv_b, tensors.b, first, slots, of_b),
                       .out = rows_of(tensors.out, e * size.m, (e + 1) * size.m),
                       .beta = tensors.beta};
    if (spec.gemm.epilogue.c) expert.c = rows_of(tensors.c, e * size.m, (e + 1) * size.m);
    gemm(spec.gemm, expert, pool);
    begin = end;
  }
}

void grouped_gemm_along_k(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, ThreadPool& pool) {
  const MatmulSize size = gemm_size(spec, tensors);
  if (size.m == 0 || size.n == 0) return;
  if (has_group_scale_inv(spec.gemm)) return grouped_gemm_of_slots(spec, tensors, pool);
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < tensors.ends.experts; ++e) {
    const std::int64_t end = tensors.ends.data[e];
    GemmSpec of = spec.gemm;
    GemmTensors expert{.a = columns_of(tensors.a, begin, end),
                       .b = columns_of(tensors.b, begin, end),
                       .out = rows_of(tensors.out, e * size.m, (e + 1) * size.m),
                       .beta = tensors.beta};
    if (of.epilogue.c) expert.c = rows_of(tensors.c, e * size.m, (e + 1) * size.m);
    float zero = 0;
    if (is_fp8(of.a) && begin == end) {
      of.scale_a = of.scale_b = kTensorwise;
      expert.scale_inv_a = expert.scale_inv_b = vector(&zero, Dtype::f32, 1, tensors.a.device);  // not a NaN's product
    } else if (is_fp8(of.a)) {
      expert.scale_inv_a = scale_inv_of_expert(tensors.scale_inv_a, of.scale_a, e, size.m);
      expert.scale_inv_b = scale_inv_of_expert(tensors.scale_inv_b, of.scale_b, e, size.n);
    }
    gemm(of, expert, pool);
    begin = end;
  }
}

}  // namespace

void grouped_gemm(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, ThreadPool& pool) {
  if (spec.along_k) return grouped_gemm_along_k(spec, tensors, pool);
  const GemmSpec& of = spec.gemm;
  const MatmulSize size = gemm_size(spec, tensors);
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < tensors.ends.experts; ++e) {
    if (tensors.ends.capacity) begin = e * *tensors.ends.capacity;
    const std::int64_t end = tensors.ends.data[e] + (tensors.ends.capacity ? begin : 0);
    GemmTensors expert{.a = rows_of(tensors.a, begin, end),
                       .b = rows_of(tensors.b, e * size.n, (e + 1) * size.n),
                       .out = rows_of(tensors.out, begin, end)};
    if (of.bias) expert.bias = columns_of(tensors.bias, e * size.n, (e + 1) * size.n);
    if (is_fp8(of.a)) {
      const std::int64_t rows = of.scale_b == kTensorwise ? 1 : scale_rows(of, size.n);
      expert.scale_inv_a = of.scale_a == kTensorwise
                               ? scale_inv_of_expert(tensors.scale_inv_a, kTensorwise, e, size.m)
                               : scale_inv_of(tensors.scale_inv_a, of.scale_a, begin, end, size.k);
      expert.scale_inv_b = scale_inv_b_of(of, tensors, e, rows, size.k);
    }
    if (begin != end && size.n != 0) gemm(of, expert, pool);
    begin = end;
  }
}

}  // namespace ingot::cpu
