// torch.ops.ingot.grouped_linear: the rows of many experts, one expert after the other or each expert in its own room,
// each multiplied by the FP8 weight of its expert. Inputs in high precision are cast on the way, with the scales that
// those of the weights ask for. torch.ops.ingot.grouped_gemm: without casts, along rows or along K.
#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/gemm/grouped_gemm_spec.h"
#include "ingot/codegen/types/matmul_size.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/util/error.h"
#include "torch_abi/torch_memory.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {
namespace {

using Sizes = std::span<const std::int64_t>;

[[noreturn]] void refuse_grouped(const char* what, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, what, why);
}

std::string words(Sizes sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
  return "(" + text + ")";
}

bool are(Sizes sizes, std::initializer_list<std::int64_t> expected) { return std::ranges::equal(sizes, expected); }

// (M) or (experts, capacity), and these after them.
std::vector<std::int64_t> with_rows(Sizes input, std::initializer_list<std::int64_t> after) {
  std::vector<std::int64_t> sizes(input.begin(), input.end() - 1);
  sizes.insert(sizes.end(), after);
  return sizes;
}

std::int64_t groups_of(std::int64_t count) { return divided_up(count, 128); }

// A tensor of the input's device whose elements are one after the other.
void check_dense(const TorchTensor& tensor, const char* what, Device device) {
  if (tensor.device() != device) refuse_grouped(what, "is on another device than the input: move one with .to()");
  if (!tensor.is_contiguous()) refuse_grouped(what, "is not contiguous: call .contiguous()");
}

Tensor floats_of(const TorchTensor& tensor, const char* what, Device device) {
  check_dense(tensor, what, device);
  if (tensor.dtype() != Dtype::f32) refuse_grouped(what, "must be float32: convert it with .to()");
  return vector(tensor.data(), Dtype::f32, tensor.elements(), device);
}

// What messages call an operand and its scale_inv.
struct OperandNames {
  const char* codes;
  const char* scale_inv;
};

// weight: FP8 codes (experts, N, K).
struct ExpertWeights {
  ExpertWeights(const TorchTensor& tensor, const TorchTensor& of_scale_inv, const OperandNames& of, Device device)
      : names(of) {
    const std::optional<Dtype> dtype = tensor.float8_dtype();
    if (!dtype) refuse_grouped(names.codes, "is not FP8: cast it first");
    const Sizes sizes = tensor.sizes();
    if (sizes.size() != 3) refuse_grouped(names.codes, "has the shape " + words(sizes) + ", expected (experts, N, K)");
    check_dense(tensor, names.codes, device);
    experts = sizes[0];
    n = sizes[1];
    k = sizes[2];
    codes = matrix(tensor.data(), *dtype, experts * n, k, device);
    scale_inv = floats_of(of_scale_inv, names.scale_inv, device);
    scale = scale_of(of_scale_inv.sizes());
  }

  // What shares a scale_inv, by their shape.
  ScaleGranularity scale_of(Sizes sizes) const {
    if (are(sizes, {experts}) || are(sizes, {experts, 1}) || are(sizes, {experts, 1, 1})) return kTensorwise;
    if (are(sizes, {experts, n}) || are(sizes, {experts, n, 1})) return kRowwise;
    if (are(sizes, {experts, groups_of(n), groups_of(k)})) return kBlocks;
    if (are(sizes, {experts, n, groups_of(k)})) return kRowGroups;
    const auto of = [&](std::int64_t rows, std::int64_t columns) { return words(std::array{experts, rows, columns}); };
    refuse_grouped(names.scale_inv, "has the shape " + words(sizes) + ", expected (" + std::to_string(experts) +
                                        ",): one for each expert; " + words(std::array{experts, n}) +
                                        ": for each row; " + of(groups_of(n), groups_of(k)) +
                                        ": for blocks of 128 x 128; or " + of(n, groups_of(k)) +
                                        ": for groups of 128 of a row");
  }

  OperandNames names;
  std::int64_t experts = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  Tensor codes{};
  Tensor scale_inv{};
  ScaleGranularity scale{};
};

// The scales of an input for such weights.
ScaleGranularity scale_of_input(ScaleGranularity of_weight) { return of_weight.cols == 0 ? kRowwise : kRowGroups; }

// Codes [M, K] and their scale_inv: those that were given, or what a cast makes of values in high precision.
struct GroupedInput {
  GroupedInput(TorchArgumentsOf<kGroupedLinear>& all, std::int64_t rows, const ExpertWeights& weight, Device device,
               const TorchRun& run) {
    const TorchTensor& tensor = all.tensor<"input">();
    const TorchTensor& given = all.tensor<"input_scale_inv">();
    constexpr const char* kScaleInv = "grouped_linear input_scale_inv";
    scale = scale_of_input(weight.scale);
    if (const std::optional<Dtype> dtype = tensor.float8_dtype()) {
      if (!given.given()) refuse_grouped(kScaleInv, "is missing: the input is FP8 codes, which have one");
      check_dense(tensor, "grouped_linear input", device);
      codes = matrix(tensor.data(), *dtype, rows, weight.k, device);
      scale_inv = floats_of(given, kScaleInv, device);
      scale = scale_of(given.sizes(), tensor.sizes(), weight);
      return;
    }
    if (given.given()) refuse_grouped(kScaleInv, "is given, but the input is no FP8 codes");
    static const std::string kSubject = "grouped_linear";
    values = matrix_of(tensor, {kSubject, "input"});
    const Tensor& of = values.view;
    const std::int64_t count = scale_count(scale, of.rows, of.cols);
    made_codes = TorchRegion(static_cast<std::size_t>(of.rows * of.cols), device);
    made_scale_inv = TorchRegion(static_cast<std::size_t>(count) * sizeof(float), device);
    codes = matrix(made_codes.region().data, Dtype::e4m3fn, of.rows, of.cols, device);
    scale_inv = vector(made_scale_inv.region().data, Dtype::f32, count, device);
    const CastSpec cast{.in = of.dtype, .out = Dtype::e4m3fn, .scale = scale};
    run.backend().cast(cast, {.input = of, .codes = codes, .scale_inv = scale_inv}, run.stream());
  }

  // What shares a scale_inv of given codes, by their shape.
  ScaleGranularity scale_of(Sizes sizes, Sizes input, const ExpertWeights& weight) const {
    if (scale == kRowGroups) {
      const std::vector<std::int64_t> groups = with_rows(input, {groups_of(weight.k)});
      if (std::ranges::equal(sizes, groups)) return kRowGroups;
      refuse_grouped("grouped_linear input_scale_inv",
                     "has the shape " + words(sizes) + ", expected " + words(groups) +
                         ": for groups of 128 of a row, as the weights have blocks or groups");
    }
    const std::vector<std::int64_t> rows = with_rows(input, {});
    if (std::ranges::equal(sizes, rows) || std::ranges::equal(sizes, with_rows(input, {1}))) return kRowwise;
    if (are(sizes, {}) || are(sizes, {1}) || are(sizes, {1, 1})) return kTensorwise;
    refuse_grouped("grouped_linear input_scale_inv",
                   "has the shape " + words(sizes) + ", expected one element or " + words(rows) + ": for each row");
  }

  ScaleGranularity scale{};
  Tensor codes{};
  Tensor scale_inv{};
  TorchMatrix values{};
  TorchRegion made_codes{}, made_scale_inv{};
};

// room: the capacity of a masked input.
ExpertEnds ends_of(const TorchTensor& tensor, const char* what, std::int64_t experts, std::optional<std::int64_t> room,
                   Device device) {
  check_dense(tensor, what, device);
  if (!tensor.is_int32()) refuse_grouped(what, "must be int32: convert it with .to()");
  if (tensor.elements() != experts) {
    refuse_grouped(what, "has " + std::to_string(tensor.elements()) + " elements, expected one for each of " +
                             std::to_string(experts) + " experts");
  }
  return {
      .data = static_cast<const std::int32_t*>(tensor.data()), .experts = experts, .device = device, .capacity = room};
}

constexpr std::array kOutputs{Dtype::f32, Dtype::bf16, Dtype::f16};  // by the numbers that the operators take

// Returns the rows of each expert times its weight, (M, N), or (experts, capacity, N). Rows that no expert has have any
// values.
void grouped_linear(TorchArgumentsOf<kGroupedLinear>& all) {
  const TorchTensor& tensor = all.tensor<"input">();
  const auto output = static_cast<std::size_t>(all.integer<"output">());
  if (output >= kOutputs.size()) refuse_grouped("grouped_linear output", "is no number of a dtype");
  const std::optional<Device> device = tensor.device();
  if (!device) refuse_grouped("grouped_linear input", "is neither on the CPU nor on a CUDA device");
  const Sizes sizes = tensor.sizes();
  const bool masked = sizes.size() == 3;
  if (sizes.size() != 2 && !masked) {
    refuse_grouped("grouped_linear input",
                   "has the shape " + words(sizes) + ", expected (M, K) or (experts, capacity, K)");
  }
  const ExpertWeights weight(all.tensor<"weight">(), all.tensor<"weight_scale_inv">(),
                             {"grouped_linear weight", "grouped_linear weight_scale_inv"}, *device);
  if (sizes.back() != weight.k) {
    refuse_grouped("grouped_linear input",
                   "has the shape " + words(sizes) + ", but the weights' K is " + std::to_string(weight.k));
  }
  if (masked && sizes[0] != weight.experts) {
    refuse_grouped("grouped_linear input", "has the shape " + words(sizes) + ", but there are weights of " +
                                               std::to_string(weight.experts) + " experts");
  }
  const ExpertEnds ends = ends_of(all.tensor<"ends">(), masked ? "grouped_linear counts" : "grouped_linear ends",
                                  weight.experts, masked ? std::optional(sizes[1]) : std::nullopt, *device);
  const std::int64_t rows = masked ? sizes[0] * sizes[1] : sizes[0];
  const TorchRun run(*device, all, rows);
  const GroupedInput input(all, rows, weight, *device, run);
  TorchTensor product = TorchTensor::empty(with_rows(sizes, {weight.n}), torch_dtype(kOutputs[output]), *device);
  const GroupedGemmSpec spec{.gemm = {.a = input.codes.dtype,
                                      .b = weight.codes.dtype,
                                      .out = kOutputs[output],
                                      .scale_a = input.scale,
                                      .scale_b = weight.scale,
                                      .fast_accumulation = weight.scale.cols == 0}};
  run.backend().grouped_gemm(spec,
                             {.a = input.codes,
                              .b = weight.codes,
                              .ends = ends,
                              .scale_inv_a = input.scale_inv,
                              .scale_inv_b = weight.scale_inv,
                              .out = matrix(product.data(), kOutputs[output], rows, weight.n, *device)},
                             run.stream());
  all.result<"product">() = std::move(product);
}

// FP8 codes or values of 16 bits, by rows. Those of experts, (experts, N, K), are one matrix.
Tensor operand_of(const TorchTensor& tensor, const char* what, bool of_experts, Device device) {
  const std::optional<Dtype> float8 = tensor.float8_dtype();
  const std::optional<Dtype> dtype = float8 ? float8 : tensor.dtype();
  if (!dtype || *dtype == Dtype::f32) refuse_grouped(what, "is neither FP8 nor of 16 bits: cast it first");
  const Sizes sizes = tensor.sizes();
  if (sizes.size() != (of_experts ? 3 : 2)) {
    refuse_grouped(
        what, "has the shape " + words(sizes) + ", expected " + (of_experts ? "(experts, N, K)" : "two dimensions"));
  }
  check_dense(tensor, what, device);
  return matrix(tensor.data(), *dtype, of_experts ? sizes[0] * sizes[1] : sizes[0], sizes.back(), device);
}

// Those of codes; values of 16 bits have none.
Tensor scale_inv_of(const Tensor& operand, const TorchTensor& given, const char* what, Device device) {
  if (!is_fp8(operand.dtype)) {
    if (given.given()) refuse_grouped(what, "is given, but values of 16 bits have none");
    return {};
  }
  if (!given.given()) refuse_grouped(what, "is missing: FP8 codes have one");
  return floats_of(given, what, device);
}

// The backend checks how many scale_inv there are, and that shapes fit each other.
void grouped_gemm(TorchArgumentsOf<kGroupedGemm>& all) {
  const auto output = static_cast<std::size_t>(all.integer<"output">());
  if (output >= kOutputs.size()) refuse_grouped("grouped_gemm output", "is no number of a dtype");
  const TorchTensor& of_b = all.tensor<"b">();
  const std::optional<Device> device = all.tensor<"a">().device();
  if (!device) refuse_grouped("grouped_gemm a", "is neither on the CPU nor on a CUDA device");
  const Tensor a = operand_of(all.tensor<"a">(), "grouped_gemm a", false, *device);
  const ExpertEnds ends =
      ends_of(all.tensor<"ends">(), "grouped_gemm ends", all.tensor<"ends">().elements(), std::nullopt, *device);
  const bool along_k = of_b.sizes().size() == 2;
  const bool scaled = is_fp8(a.dtype);
  ScaleGranularity scale = scaled ? kRowwise : kTensorwise;
  GroupedGemmTensors tensors{};
  tensors.a = a;
  tensors.ends = ends;
  tensors.scale_inv_a = scale_inv_of(a, all.tensor<"scale_inv_a">(), "grouped_gemm scale_inv_a", *device);
  std::vector<std::int64_t> sizes;
  if (along_k || !scaled) {
    tensors.b = operand_of(of_b, "grouped_gemm b", !along_k, *device);
    tensors.scale_inv_b = scale_inv_of(tensors.b, all.tensor<"scale_inv_b">(), "grouped_gemm scale_inv_b", *device);
    sizes = along_k ? std::vector{ends.experts, a.rows, tensors.b.rows} : std::vector{a.rows, of_b.sizes()[1]};
  } else {
    const ExpertWeights weight(of_b, all.tensor<"scale_inv_b">(), {"grouped_gemm b", "grouped_gemm scale_inv_b"},
                               *device);
    tensors.b = weight.codes;
    tensors.scale_inv_b = weight.scale_inv;
    scale = weight.scale;
    sizes = {a.rows, weight.n};
  }
  const TorchRun run(*device, all, a.rows);
  TorchTensor product = TorchTensor::empty(sizes, torch_dtype(kOutputs[output]), *device);
  const std::int64_t rows = along_k ? ends.experts * a.rows : a.rows;
  tensors.out = matrix(product.data(), kOutputs[output], rows, sizes.back(), *device);
  const GroupedGemmSpec spec{.gemm = {.a = a.dtype,
                                      .b = tensors.b.dtype,
                                      .out = kOutputs[output],
                                      .scale_a = along_k || !scaled ? scale : scale_of_input(scale),
                                      .scale_b = scale,
                                      .fast_accumulation = all.integer<"fast_accumulation">() != 0},
                             .along_k = along_k};
  run.backend().grouped_gemm(spec, tensors, run.stream());
  all.result<"product">() = std::move(product);
}

constexpr std::array kGroupedOperators{kTorchOperator<kGroupedLinear, grouped_linear>,
                                       kTorchOperator<kGroupedGemm, grouped_gemm>};

const TorchFamily kGroupedFamily(kGroupedOperators, [](nanobind::module_&) {});

}  // namespace
}  // namespace ingot::python
