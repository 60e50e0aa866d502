#include "ingot/runtime/dequant/dequant_operations.h"

#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <string>

#include "ingot/runtime/core/check_scales.h"
#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/pointwise/check_pointwise.h"

namespace ingot {
namespace {

constexpr std::int64_t kPackedAlignment = 16;

struct PackedSize {
  Dtype weight;
  std::int64_t n, k;
};

Range check_packed(const char* what, const Tensor& packed, const PackedSize& size, Device device) {
  const std::int64_t bytes = packed_weight_bytes(size.weight, size.n, size.k);
  const auto expected = [&] {
    return fmt::format("the bytes of {}[{}, {}] in version {} of the packed layouts", name(size.weight), size.n, size.k,
                       kPackedLayoutVersion);
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

constexpr PointwiseInputNames kInputs{"dequant_matmul inputs[0]", "dequant_matmul inputs[1]",
                                      "dequant_matmul inputs[2]", "dequant_matmul inputs[3]"};
constexpr const char* kShape = "M of x, N of the weight";

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
  // A packed weight takes N from the output.
  const Range out =
      packed ? check_matrix("dequant_matmul out", tensors.out, spec.out, device)
             : check_matrix("dequant_matmul out", tensors.out, spec.out, m, tensors.weight.rows, device, kShape);
  if (tensors.out.rows != m) {
    refuse("dequant_matmul out", tensors.out, fmt::format("it must have {} rows, as x has", m));
  }
  const std::int64_t n = tensors.out.cols;
  const Range weight =
      packed ? check_packed("dequant_matmul weight", tensors.weight, {.weight = spec.weight, .n = n, .k = k}, device)
             : check_matrix("dequant_matmul weight", tensors.weight, spec.weight, device);
  if (!packed && tensors.weight.cols != k) {
    refuse("dequant_matmul weight", tensors.weight,
           fmt::format("its K is {}, but that of x, which is {}, is {}", tensors.weight.cols, describe(tensors.x), k));
  }
  Range inputs[4 + kMaxPointwiseInputs] = {
      x, weight,
      check_scales("dequant_matmul scale_inv", tensors.scale_inv, spec.scale_inv, spec.scale, n, k, device,
                   kScaledWeight),
      spec.bias ? check_vector("dequant_matmul bias", tensors.bias, spec.x, n, device, "one for each of the N columns")
                : check_absent("dequant_matmul bias", tensors.bias, "the spec has no bias")};
  check_pointwise_inputs(spec.pointwise, tensors.inputs, kInputs,
                         {.dtype = spec.x,
                          .rows = m,
                          .cols = n,
                          .matrix = kShape,
                          .columns = "one for each of the N columns",
                          .rows_of = "one for each of the M rows"},
                         device, std::span(inputs).subspan<4>());
  check_overlaps(inputs, {&out, 1});
}

}  // namespace ingot
