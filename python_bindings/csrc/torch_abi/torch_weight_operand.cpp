#include "torch_abi/torch_weight_operand.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <span>
#include <string>

#include "ingot/runtime/util/error.h"

namespace ingot::python {
namespace {

[[noreturn]] void refuse(const TensorName& name, const std::string& message) {
  throw Error(ErrorCode::invalid_argument, name.text(), message);
}

void require_device(const TorchTensor& tensor, const TensorName& name, Device device) {
  const Device found = device_of(tensor, name);
  if (found == device) return;
  refuse(name, "is on " + print(found) + ", but the layer runs on " + print(device) + ": move one with .to()");
}

void require_contiguous(const TorchTensor& tensor, const TensorName& name) {
  if (!tensor.is_contiguous()) refuse(name, "is not contiguous: call .contiguous()");
}

void* contiguous(const TorchTensor& tensor, const TensorName& name, std::int64_t count, const char* what) {
  const std::int64_t found = tensor.elements();
  if (found != count) {
    refuse(name, "has " + std::to_string(found) + " " + what + ", but this layer has " + std::to_string(count) +
                     ": load a state that was saved with the same options");
  }
  require_contiguous(tensor, name);
  void* const data = tensor.data();
  if (std::bit_cast<std::uintptr_t>(data) % 16 != 0) refuse(name, "is not aligned to 16 bytes: call .clone()");
  return data;
}

// ---- a weight in FP8 -----------------------------------------------------------------------------------------------

// How the plan casts a weight for this GEMM; nullptr: it does not.
const Cast* cast_for(const LinearPlan& plan, WeightReader reader) {
  const GemmConfig& gemm = reader == WeightReader::output ? plan.config.output : plan.config.grad_input;
  return is_float8(gemm) ? &*gemm.b : nullptr;
}

std::string in_words(ScaleGranularity scale) {
  if (scale == kTensorwise) return "for the whole weight";
  if (scale == kRowwise) return "for each row";
  if (scale == kColumnwise) return "for each column";
  return "for each " + print(scale) + " block";
}

// words: what the sizes are.
void* codes_of(const TensorName& name, std::span<const std::int64_t> sizes, const char* words, Dtype dtype,
               const TorchTensor& tensor, Device device) {
  if (!tensor.given()) refuse(name, "is not given, but its scale_inv is: give both or neither");
  require_device(tensor, name, device);
  if (tensor.float8_dtype() != dtype && !is_bytes(tensor)) {
    refuse(name, "comes with scale_inv, so it must be codes in " + std::string(ingot::name(dtype)) +
                     ", or the bytes of these: cast it, or leave scale_inv out");
  }
  if (!std::ranges::equal(tensor.sizes(), sizes)) {
    std::string text;
    for (const std::int64_t size : sizes) text += (text.empty() ? "" : ", ") + std::to_string(size);
    refuse(name, "must be [" + text + "] = " + words +
                     ", as its codes are by rows: gather all of it, and do not transpose it");
  }
  require_contiguous(tensor, name);
  return tensor.data();
}

// of: "" or what the scales are of besides.
void* weight_scale_inv_of(const TensorName& name, ScaleGranularity scale, const char* of, std::int64_t count,
                          const TorchTensor& tensor, WeightReader reader, Device device) {
  require_device(tensor, name, device);
  if (tensor.dtype() != Dtype::f32) refuse(name, "must be float32: convert it with .float()");
  if (tensor.elements() != count) {
    refuse(name, "has " + std::to_string(tensor.elements()) + " elements, but the GEMM of " +
                     (reader == WeightReader::output ? "the output" : "grad_input") + " takes " +
                     std::to_string(count) + ", one " + in_words(scale) + of +
                     ": give those of the cast for this GEMM");
  }
  require_contiguous(tensor, name);
  return tensor.data();
}

}  // namespace

bool is_bytes(const TorchTensor& tensor) {
  std::int32_t number = 0;
  return torch_functions().dtype(tensor.handle(), &number) == 0 && number == torch_functions().bytes;
}

Device device_of(const TorchTensor& tensor, const TensorName& name) {
  const std::optional<Device> device = tensor.device();
  if (!device) refuse(name, "is neither on the CPU nor on a CUDA device: move it with .to()");
  return *device;
}

void* bytes_of(const TorchTensor& tensor, const TensorName& name, std::int64_t bytes, Device device) {
  require_device(tensor, name, device);
  if (!is_bytes(tensor) && !tensor.float8_dtype()) {
    refuse(name, "is no buffer of codes (uint8 or float8): give it as state_dict() has it");
  }
  return contiguous(tensor, name, bytes, "bytes");
}

void* scale_inv_of(const TorchTensor& tensor, const TensorName& name, std::int64_t count, Dtype dtype, Device device) {
  require_device(tensor, name, device);
  if (dtype == Dtype::f32 && tensor.dtype() != Dtype::f32) refuse(name, "must be float32: convert it with .float()");
  if (dtype != Dtype::f32 && !is_bytes(tensor)) refuse(name, "must be uint8, the bits of e8m0fnu");
  return contiguous(tensor, name, count, "scale_inv");
}

TorchMatrix columns_of(const TorchTensor& tensor, const TensorName& name, std::int64_t cols, Device device) {
  require_device(tensor, name, device);
  TorchMatrix matrix = matrix_of(tensor, name);
  if (matrix.view.cols != cols) {
    refuse(name, "has " + std::to_string(matrix.view.cols) + " columns, but this layer takes " + std::to_string(cols));
  }
  return matrix;
}

Float8Weight::Float8Weight(const LinearPlan& plan, WeightReader reader, const TorchTensor& tensor,
                           const TorchTensor& scale_inv, Device device) {
  const auto [in, out, bias] = plan.shape;
  const Cast* const cast = cast_for(plan, reader);
  if (cast == nullptr) {
    refuse({plan.subject, "weight_scale_inv"},
           std::string("is given, but the GEMM of ") + (reader == WeightReader::output ? "the output" : "grad_input") +
               " reads this weight in high precision: give that, without scale_inv");
  }
  const ScaleGranularity scale =
      reader == WeightReader::output ? plan.weight.spec.scale : plan.weight_scale_of_grad_input();
  const std::int64_t count = scale_count(scale, out, in);
  codes_ = matrix(codes_of({plan.subject, "weight"}, std::array{out, in}, "[out_features, in_features]", cast->dtype,
                           tensor, device),
                  cast->dtype, out, in, device);
  scale_inv_ =
      vector(weight_scale_inv_of({plan.subject, "weight_scale_inv"}, scale, "", count, scale_inv, reader, device),
             Dtype::f32, count, device);
}

Float8View Float8Weight::for_output(Backend& backend, Stream& stream, TorchRegion& memory) const {
  constexpr std::int64_t kUnit = 16;  // bytes: tensor cores read rows whose addresses are multiples of this
  const std::int64_t pitch = code_pitch(codes_.cols);
  const bool fits = codes_.cols % kUnit == 0 && std::bit_cast<std::uintptr_t>(codes_.data) % kUnit == 0;
  if (fits || pitch % kUnit != 0 || codes_.empty()) return {.codes = codes_, .scale_inv = scale_inv_};
  memory = TorchRegion(static_cast<std::size_t>(codes_.rows * pitch), codes_.device);
  Tensor copy = codes_;
  copy.data = memory.region().data;
  copy.row_stride = pitch;
  backend.relayout({}, {.input = codes_, .output = copy}, stream);
  return {.codes = copy, .scale_inv = scale_inv_};
}

Float8View Float8Weight::for_grad_input(Backend& backend, Stream& stream, void* memory) const {
  Tensor transposed = matrix(memory, codes_.dtype, codes_.cols, codes_.rows, codes_.device);
  transposed.row_stride = code_pitch(codes_.rows);
  if (!codes_.empty()) backend.relayout({.transposed = true}, {.input = codes_, .output = transposed}, stream);
  // Whichever of the two the plan's GEMM reads.
  return {.transposed = transposed, .scale_inv = scale_inv_, .transposed_scale_inv = scale_inv_};
}

Float8View float8_experts(const GroupedLinearPlan& plan, WeightReader reader, const TensorName& name,
                          const TorchTensor& tensor, const TorchTensor& scale_inv, Device device) {
  const std::string scale_inv_name = std::string(name.tensor) + "_scale_inv";
  const TensorName of_scale_inv{name.subject, scale_inv_name.c_str()};
  if (reader == WeightReader::grad_input && !plan.weight_again.any) {
    refuse(of_scale_inv, "is given, but the plan has forward leave the codes that backward reads: give neither");
  }
  const auto [in, out, bias] = plan.rows.shape;
  const bool forward = reader == WeightReader::output;
  const CastSpec& cast = forward ? plan.weight.spec : plan.weight_again.spec;
  const ScaleGranularity scale = forward ? cast.scale : plan.weight_scale_of_grad_input();
  const std::int64_t count = plan.experts * scale_count(scale, out, in);
  void* const codes = codes_of(name, std::array{plan.experts, out, in}, "[experts, out_features, in_features]",
                               cast.out, tensor, device);
  void* const of_codes = weight_scale_inv_of(of_scale_inv, scale, " of each expert", count, scale_inv, reader, device);
  return {.codes = matrix(codes, cast.out, plan.experts * out, in, device),
          .scale_inv = vector(of_codes, Dtype::f32, count, device)};
}

}  // namespace ingot::python
