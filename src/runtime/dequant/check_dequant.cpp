#include "ingot/runtime/dequant/dequant_operations.h"

#include <fmt/format.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>

#include "ingot/codegen/types/experts.h"
#include "ingot/runtime/core/check_experts.h"
#include "ingot/runtime/core/check_scales.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/pointwise/check_pointwise.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr std::int64_t kPackedAlignment = 16;

struct PackedSize {
  Dtype weight;
  std::int64_t n, k;
  std::optional<std::int64_t> experts{};
};

Range check_packed(const char* what, const Tensor& packed, const PackedSize& size, Device device) {
  const std::int64_t of_each = packed_weight_bytes(size.weight, size.n, size.k);
  constexpr std::int64_t kMost = std::numeric_limits<std::int64_t>::max();
  const std::int64_t bytes = of_each > kMost / kMostExperts ? kMost : of_each * size.experts.value_or(1);
  const auto expected = [&] {
    return fmt::format("the bytes of {}{}[{}, {}] in version {} of the packed layouts",
                       size.experts ? fmt::format("{} experts' ", *size.experts) : std::string(), name(size.weight),
                       size.n, size.k, kPackedLayoutVersion);
  };
  if (packed.dtype == Dtype::u8 && packed.rows == 1 && packed.data != nullptr && packed.cols != bytes) {
    refuse(what, packed,
           fmt::format("it must be [1, {}]: {}; it was packed for other sizes, of another dtype, or by another version",
                       bytes, expected()));
  }
  const bool fits = packed.rows == 1 && packed.cols == bytes;  // else a message is needed
  const Range range = check_vector(what, packed, Dtype::u8, bytes, device, fits ? "" : expected().c_str());
  if (reinterpret_cast<std::uintptr_t>(packed.data) % kPackedAlignment != 0) {
    refuse(what, packed,
           fmt::format("its data pointer {} is misaligned: a packed weight must start at a multiple of {} bytes",
                       fmt::ptr(packed.data), kPackedAlignment));
  }
  return range;
}

constexpr ScaledMatrix kScaledWeight{
    .whole = "one for the whole weight", .row = "one for each of the weight's N rows", .in_row = "along K", .of = ""};

constexpr ScaledMatrix kScaledWeights{.whole = "one for each expert",
                                      .row = "one for each of the experts' N rows",
                                      .in_row = "along K",
                                      .of = " of each expert"};

const char* name_of(const ExpertEnds& ends) { return ends.capacity ? "dequant_matmul counts" : "dequant_matmul ends"; }

constexpr PointwiseInputNames kInputs{"dequant_matmul inputs[0]", "dequant_matmul inputs[1]",
                                      "dequant_matmul inputs[2]", "dequant_matmul inputs[3]"};
constexpr const char* kShape = "M of x, N of the weight";

// Of a call without experts, an empty range.
Range check_experts_of(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, const Tensor& memory,
                       Device device) {
  const char* const what = name_of(tensors.ends);
  if (!spec.experts) {
    if (tensors.ends.data == nullptr) return {what, &memory};
    throw Error(ErrorCode::invalid_argument, what,
                "are given, but the spec has no experts: name experts in the spec, or leave the ends out");
  }
  check_ends(what, tensors.ends, device);
  check_capacity("dequant_matmul x", tensors.x, tensors.ends);
  return {what, &memory, byte_span(memory, what)};
}

// N of each expert's codes.
std::int64_t rows_of_each(const Tensor& codes, std::optional<std::int64_t> experts) {
  if (!experts) return codes.rows;
  if (codes.rows % *experts == 0) return codes.rows / *experts;
  refuse("dequant_matmul weight", codes,
         fmt::format("its rows must be those of {} experts, N for each of them", *experts));
}

Range check_scale_inv_of(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors,
                         std::optional<std::int64_t> experts, Device device) {
  constexpr const char* kWhat = "dequant_matmul scale_inv";
  const std::int64_t n = tensors.out.cols;
  const std::int64_t k = tensors.x.cols;
  if (!experts) {
    return check_scales(kWhat, tensors.scale_inv, spec.scale_inv, spec.scale, n, k, device, kScaledWeight);
  }
  const std::int64_t count = *experts * scale_count(spec.scale, n, k);
  const bool fits = tensors.scale_inv.rows == 1 && tensors.scale_inv.cols == count;  // else a message is needed
  return check_vector(kWhat, tensors.scale_inv, spec.scale_inv, count, device,
                      fits ? "" : scales_in_words(spec.scale, kScaledWeights).c_str());
}

Range check_bias(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors,
                 std::optional<std::int64_t> experts, Device device) {
  constexpr const char* kWhat = "dequant_matmul bias";
  if (!spec.bias) return check_absent(kWhat, tensors.bias, "the spec has no bias");
  return check_vector(kWhat, tensors.bias, spec.x, tensors.out.cols * experts.value_or(1), device,
                      experts ? "one for each of the N columns, of each expert" : "one for each of the N columns");
}

}  // namespace

void check(const PackWeightSpec& spec, const PackWeightTensors& tensors, Device device) {
  validate_spec(spec);
  const Range codes = check_matrix("pack_weight codes", tensors.codes, spec.weight, device);
  const Range packed = check_packed("pack_weight packed", tensors.packed,
                                    {.weight = spec.weight, .n = tensors.codes.rows, .k = tensors.codes.cols}, device);
  const Range& input = spec.unpack ? packed : codes;
  const Range& output = spec.unpack ? codes : packed;
  check_overlaps({&input, 1}, {&output, 1});
}

void check(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Device device) {
  validate_spec(spec);
  const Range x = check_matrix("dequant_matmul x", tensors.x, spec.x, device);
  const std::int64_t m = tensors.x.rows;
  const std::int64_t k = tensors.x.cols;
  const bool packed = is_packed(spec.layout);
  if (!packed && tensors.weight.dtype == Dtype::u8) {
    refuse("dequant_matmul weight", tensors.weight,
           fmt::format("the spec says row_major, codes {}[N, K]; a packed weight's layout is packed or packed_f16",
                       name(spec.weight)));
  }
  const Tensor memory = bytes_of(tensors.ends);
  const Range ends = check_experts_of(spec, tensors, memory, device);
  const std::optional<std::int64_t> experts = spec.experts ? std::optional(tensors.ends.experts) : std::nullopt;
  // A packed weight takes N from the output.
  const Range out = packed ? check_matrix("dequant_matmul out", tensors.out, spec.out, device)
                           : check_matrix("dequant_matmul out", tensors.out, spec.out, m,
                                          rows_of_each(tensors.weight, experts), device, kShape);
  if (tensors.out.rows != m) {
    refuse("dequant_matmul out", tensors.out, fmt::format("it must have {}, as x has", count_of(m, "row")));
  }
  const std::int64_t n = tensors.out.cols;
  const Range weight = packed ? check_packed("dequant_matmul weight", tensors.weight,
                                             {.weight = spec.weight, .n = n, .k = k, .experts = experts}, device)
                              : check_matrix("dequant_matmul weight", tensors.weight, spec.weight, device);
  if (!packed && tensors.weight.cols != k) {
    refuse("dequant_matmul weight", tensors.weight,
           fmt::format("its K is {}, but that of x, which is {}, is {}", tensors.weight.cols, describe(tensors.x), k));
  }
  Range inputs[5 + kMaxPointwiseInputs] = {x, weight, check_scale_inv_of(spec, tensors, experts, device),
                                           check_bias(spec, tensors, experts, device), ends};
  check_pointwise_inputs(spec.pointwise, tensors.inputs, kInputs,
                         {.dtype = spec.x,
                          .rows = m,
                          .cols = n,
                          .matrix = kShape,
                          .columns = "one for each of the N columns",
                          .rows_of = "one for each of the M rows"},
                         device, std::span(inputs).subspan<5>());
  check_overlaps(inputs, {&out, 1});
  if (device.type == DeviceType::cpu) check_expert_values(spec, tensors);
}

void check_expert_values(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors) {
  if (!spec.experts) return;
  check_end_values(name_of(tensors.ends), tensors.ends, {.lines = tensors.x.rows, .line = "row", .of = "x"});
}

}  // namespace ingot
