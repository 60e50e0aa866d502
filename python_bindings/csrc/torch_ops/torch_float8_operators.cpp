// The operators of FP8 tensors on their own: torch.ops.ingot.quantize, a cast with given scales,
// torch.ops.ingot.quantize_rows, one with a dynamic scale for each row, torch.ops.ingot.gemm, a product of codes, and
// torch.ops.ingot.sync_amax_history, the step of delayed scales. What is no whole layer is computed with them: weights
// that are gathered in FP8, inputs that another rank has cast, tensors that a program casts itself.
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "ingot/codegen/cast/cast_spec.h"
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/util/error.h"
#include "torch_abi/torch_memory.h"
#include "torch_ops/torch_operator.h"
#include "torch_ops/torch_run.h"

namespace ingot::python {
namespace {

// By the number that an operator takes.
constexpr std::array kFormats{Dtype::e4m3fn, Dtype::e5m2, Dtype::e4m3fnuz, Dtype::e5m2fnuz};
constexpr std::array kGemmOutputs{Dtype::f32, Dtype::bf16, Dtype::f16};

template <std::size_t kCount>
Dtype dtype_at(const std::array<Dtype, kCount>& dtypes, std::int64_t number, const char* what) {
  if (const auto at = static_cast<std::size_t>(number); at < kCount) return dtypes[at];
  throw Error(ErrorCode::invalid_argument, what, "is no number of a dtype: use the functions of ingot.float8");
}

[[noreturn]] void refuse(const char* what, const std::string& why) {
  throw Error(ErrorCode::invalid_argument, what, why);
}

// Scales or scale_inv: f32, one after the other.
struct Vector {
  Vector(const TorchTensor& tensor, const char* what, Device device) {
    if (tensor.dtype() != Dtype::f32) refuse(what, "must be float32: convert it with .to()");
    if (tensor.device() != device) {
      refuse(what, "is on another device than the tensor that it belongs to: move one with .to()");
    }
    const bool contiguous = tensor.is_contiguous();
    if (!contiguous) {
      copy = TorchTensor::empty(tensor.sizes(), torch_dtype(Dtype::f32), device);
      copy.copy_from(tensor);
    }
    view = vector(contiguous ? tensor.data() : copy.data(), Dtype::f32, tensor.elements(), device);
  }

  TorchTensor copy{};
  Tensor view{};
};

// ---- quantize ------------------------------------------------------------------------------------------------------

// (rows, 1) scales rows, (1, columns) columns.
ScaleGranularity scale_granularity_of(const TorchTensor& scale, const Tensor& input) {
  const std::span<const std::int64_t> sizes = scale.sizes();
  const std::int64_t scales = scale.elements();
  if (scales == 1) return kTensorwise;
  if (sizes.back() == 1 && scales == input.rows) return kRowwise;
  if (sizes.back() == input.cols && scales == input.cols) return kColumnwise;
  refuse("quantize scale", "has " + std::to_string(scales) + " elements, expected 1, one for each of " +
                               std::to_string(input.rows) + " rows, or one for each of " + std::to_string(input.cols) +
                               " columns");
}

// Returns the codes, in the shape of the input, and the maxima, in the shape of the scale.
void quantize(TorchArgumentsOf<kQuantize>& all) {
  const TorchTensor& tensor = all.tensor<"input">();
  const TorchTensor& scale = all.tensor<"scale">();
  const Dtype format = dtype_at(kFormats, all.integer<"format">(), "quantize format");
  static const std::string kSubject = "quantize";
  const TorchMatrix input = matrix_of(tensor, {kSubject, "input"});
  const Device device = input.view.device;
  const Vector scales(scale, "quantize scale", device);
  const CastSpec spec{.in = input.view.dtype,
                      .out = format,
                      .scale = scale_granularity_of(scale, input.view),
                      .source = ScaleSource::given};
  const TorchRun place(device, all);
  TorchTensor codes = TorchTensor::empty(tensor.sizes(), torch_dtype(format), device);
  TorchTensor amax = TorchTensor::empty(scale.sizes(), torch_dtype(Dtype::f32), device);
  const std::size_t bytes = static_cast<std::size_t>(scales.view.cols) * sizeof(float);
  const TorchRegion scale_inv(bytes, device);
  const auto floats = [&](void* data) { return vector(data, Dtype::f32, scales.view.cols, device); };
  place.backend().device_api().fill_zero(amax.data(), bytes, place.stream());
  place.backend().cast(spec,
                       {.input = input.view,
                        .codes = matrix(codes.data(), format, input.view.rows, input.view.cols, device),
                        .scale_inv = floats(scale_inv.region().data),
                        .scales = scales.view,
                        .amax = floats(amax.data())},
                       place.stream());
  all.result<"codes">() = std::move(codes);
  all.result<"amax">() = std::move(amax);
}

// Returns the codes, in the shape of the input, and the scale_inv of its rows.
void quantize_rows(TorchArgumentsOf<kQuantizeRows>& all) {
  const TorchTensor& tensor = all.tensor<"input">();
  const Dtype format = dtype_at(kFormats, all.integer<"format">(), "quantize_rows format");
  static const std::string kSubject = "quantize_rows";
  const TorchMatrix input = matrix_of(tensor, {kSubject, "input"});
  const Device device = input.view.device;
  const CastSpec spec{.in = input.view.dtype, .out = format, .scale = kRowwise, .pow2 = all.integer<"pow2">() != 0};
  const TorchRun place(device, all);
  TorchTensor codes = TorchTensor::empty(tensor.sizes(), torch_dtype(format), device);
  TorchTensor scale_inv = TorchTensor::empty(std::array{input.view.rows}, torch_dtype(Dtype::f32), device);
  place.backend().cast(spec,
                       {.input = input.view,
                        .codes = matrix(codes.data(), format, input.view.rows, input.view.cols, device),
                        .scale_inv = vector(scale_inv.data(), Dtype::f32, input.view.rows, device)},
                       place.stream());
  all.result<"codes">() = std::move(codes);
  all.result<"scale_inv">() = std::move(scale_inv);
}

// ---- gemm ----------------------------------------------------------------------------------------------------------

// The row stride of a matrix stored by rows; nullopt for any other layout.
std::optional<std::int64_t> stride_of_rows(std::int64_t rows, std::int64_t cols, std::int64_t row_stride,
                                           std::int64_t col_stride) {
  if (cols > 1 && col_stride != 1) return std::nullopt;
  if (rows <= 1 || cols == 0) return cols;
  return row_stride >= cols ? std::optional(row_stride) : std::nullopt;
}

// A matrix of codes, by rows or by columns, or a copy by rows of one with another layout.
struct Codes {
  Codes(const TorchTensor& tensor, const char* what) {
    const std::optional<Dtype> dtype = tensor.float8_dtype();
    if (!dtype) refuse(what, "is not FP8: cast it first");
    const std::optional<Device> device = tensor.device();
    if (!device) refuse(what, "is neither on the CPU nor on a CUDA device");
    const std::span<const std::int64_t> sizes = tensor.sizes();
    if (sizes.size() != 2) refuse(what, "has " + std::to_string(sizes.size()) + " dimensions, expected a matrix");
    const std::span<const std::int64_t> strides = tensor.strides();
    rows = sizes[0];
    cols = sizes[1];
    std::optional<std::int64_t> stride = stride_of_rows(rows, cols, strides[0], strides[1]);
    by_columns = !stride;
    if (by_columns) stride = stride_of_rows(cols, rows, strides[1], strides[0]);
    void* data = tensor.data();
    if (!stride) {
      copy = TorchTensor::empty(sizes, torch_dtype(*dtype), *device);
      copy.copy_from(tensor);
      data = copy.data();
      stride = cols;
      by_columns = false;
    }
    view = by_columns ? matrix(data, *dtype, cols, rows, *device) : matrix(data, *dtype, rows, cols, *device);
    view.row_stride = *stride;
  }

  std::int64_t rows = 0;
  std::int64_t cols = 0;
  bool by_columns = false;
  TorchTensor copy{};
  Tensor view{};
};

ScaleGranularity scale_granularity_of(const Vector& scale_inv, std::int64_t rows, const char* what) {
  if (scale_inv.view.cols == 1) return kTensorwise;
  if (scale_inv.view.cols == rows) return kRowwise;
  refuse(what, "has " + std::to_string(scale_inv.view.cols) + " elements, expected 1 or " + std::to_string(rows));
}

// Returns (a * scale_inv_a) @ (b * scale_inv_b), summed in f32 and rounded once.
void gemm(TorchArgumentsOf<kGemm>& all) {
  const Dtype out = dtype_at(kGemmOutputs, all.integer<"output">(), "gemm output");
  const bool fast_accumulation = all.integer<"fast_accumulation">() != 0;
  const Codes a(all.tensor<"a">(), "gemm a");
  const Codes b(all.tensor<"b">(), "gemm b");
  const Device device = a.view.device;
  if (b.view.device != device) {
    refuse("gemm b", "is on " + print(b.view.device) + " and a on " + print(device) + ": move one with .to()");
  }
  if (a.cols != b.rows) {
    refuse("gemm b", "has " + std::to_string(b.rows) + " rows, but a has " + std::to_string(a.cols) + " columns");
  }
  const Vector scale_inv_a(all.tensor<"scale_inv_a">(), "gemm scale_inv_a", device);
  const Vector scale_inv_b(all.tensor<"scale_inv_b">(), "gemm scale_inv_b", device);
  const GemmSpec spec{.a = a.view.dtype,
                      .b = b.view.dtype,
                      .out = out,
                      .layout_a = a.by_columns ? Layout::mn_major : Layout::k_major,
                      .layout_b = b.by_columns ? Layout::k_major : Layout::mn_major,
                      .scale_a = scale_granularity_of(scale_inv_a, a.rows, "gemm scale_inv_a"),
                      .scale_b = scale_granularity_of(scale_inv_b, b.cols, "gemm scale_inv_b"),
                      .fast_accumulation = fast_accumulation};
  const TorchRun place(device, all, a.rows);
  const std::array<std::int64_t, 2> sizes{a.rows, b.cols};
  TorchTensor product = TorchTensor::empty(sizes, torch_dtype(out), device);
  place.backend().gemm(spec,
                       {.a = a.view,
                        .b = b.view,
                        .scale_inv_a = scale_inv_a.view,
                        .scale_inv_b = scale_inv_b.view,
                        .out = matrix(product.data(), out, a.rows, b.cols, device)},
                       place.stream());
  all.result<"product">() = std::move(product);
}

// ---- delayed scales ------------------------------------------------------------------------------------------------

// The step of `amax.numel()` slots, in place (AmaxHistorySpec). history has a row for each; formats two rows: FP8_MAX
// of each slot, and 1 where its scales are powers of two, else 0. A step that overflows is one that a trainer skips:
// its maxima of Inf and NaN count as 0, so that the scales of later steps do not know of it.
void sync_amax_history(TorchArgumentsOf<kSyncAmaxHistory>& all) {
  const std::optional<Device> device = all.tensor<"amax">().device();
  if (!device) refuse("sync_amax_history amax", "is neither on the CPU nor on a CUDA device");
  const auto dense = [&](const TorchTensor& tensor, const char* what) {
    Vector made(tensor, what, *device);
    if (made.copy.handle() != nullptr) refuse(what, "is not contiguous: give one that is");
    return made.view;
  };
  const Tensor amax = dense(all.tensor<"amax">(), "sync_amax_history amax");
  const Tensor history = dense(all.tensor<"history">(), "sync_amax_history history");
  const Tensor scale = dense(all.tensor<"scale">(), "sync_amax_history scale");
  const Tensor formats = dense(all.tensor<"formats">(), "sync_amax_history formats");
  const std::int64_t slots = amax.cols;
  if (slots == 0) return;
  if (scale.cols != slots || formats.cols != 2 * slots || history.cols == 0 || history.cols % slots != 0) {
    refuse("sync_amax_history", "has maxima of " + std::to_string(slots) + " slots, scales of " +
                                    std::to_string(scale.cols) + ", " + std::to_string(formats.cols) +
                                    " numbers of formats and " + std::to_string(history.cols) +
                                    " of histories: expected two numbers and a history for each slot");
  }
  const TorchRun place(*device, all);
  auto* const of_formats = static_cast<float*>(formats.data);
  place.backend().amax_history({.finite = true},
                               {.amax = amax,
                                .history = matrix(history.data, Dtype::f32, slots, history.cols / slots, *device),
                                .scale = scale,
                                .limits = vector(of_formats, Dtype::f32, slots, *device),
                                .pow2 = vector(of_formats + slots, Dtype::f32, slots, *device)},
                               place.stream());
}

constexpr std::array kFloat8Operators{kTorchOperator<kQuantize, quantize>, kTorchOperator<kQuantizeRows, quantize_rows>,
                                      kTorchOperator<kGemm, gemm>, kTorchOperator<kSyncAmaxHistory, sync_amax_history>};

const TorchFamily kFloat8Family(kFloat8Operators, [](nanobind::module_&) {});

}  // namespace
}  // namespace ingot::python
