// Thin: arrays in, tensors out, the backend's own checks speak. Outputs are made by the Python side, which knows the
// framework. The interpreter's lock is released while the work runs.
#include "operations.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <optional>
#include <string>

#include "arrays.h"
#include "context.h"
#include "ingot/runtime/error.h"
#include "scaling.cuh"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

ScaleGranularity granularity_of(const std::string& text, const char* what) {
  if (const std::optional<ScaleGranularity> granularity = parse_granularity(text)) return *granularity;
  throw Error(ErrorCode::invalid_argument, what,
              "unknown scale granularity \"" + text + "\"; expected \"tensor\" or \"row\"");
}

void amax(PythonContext& context, const Input& input, const std::string& in_dtype, const std::string& scale,
          const Output& amax, std::uintptr_t stream) {
  const AmaxSpec spec{.in = dtype_of(in_dtype, "amax input"), .scale = granularity_of(scale, "amax scale")};
  const AmaxTensors tensors{.input = matrix_of(input, in_dtype, "amax input"), .amax = vector_of(amax, "f32", "amax")};
  const nb::gil_scoped_release release;
  context.run(stream, [&](Backend& backend, Stream& on) { backend.amax(spec, tensors, on); });
}

void cast(PythonContext& context, const Input& input, const std::string& in_dtype, const std::string& out_dtype,
          const std::string& scale, bool pow2, const std::optional<Output>& codes,
          const std::optional<Output>& transposed, const Output& factors, std::uintptr_t stream) {
  const CastSpec spec{.in = dtype_of(in_dtype, "cast input"),
                      .out = dtype_of(out_dtype, "cast dtype"),
                      .scale = granularity_of(scale, "cast scale"),
                      .codes = codes.has_value(),
                      .transposed = transposed.has_value(),
                      .pow2 = pow2};
  CastTensors tensors{.input = matrix_of(input, in_dtype, "cast input"),
                      .factors = vector_of(factors, "f32", "cast factors")};
  if (codes) tensors.codes = matrix_of(*codes, out_dtype, "cast codes");
  if (transposed) tensors.transposed = matrix_of(*transposed, out_dtype, "cast transposed codes");
  const nb::gil_scoped_release release;
  context.run(stream, [&](Backend& backend, Stream& on) { backend.cast(spec, tensors, on); });
}

// One operand of a GEMM as Python describes it.
struct Operand {
  Input array;
  std::string dtype;
  std::optional<Input> factors;
  std::string scale;
  bool k_major;
};

void gemm(PythonContext& context, const Operand& a, const Operand& b, const std::optional<Input>& bias,
          const std::string& bias_dtype, const Output& out, const std::string& out_dtype, bool fast_accumulation,
          std::uintptr_t stream) {
  const GemmSpec spec{.a = dtype_of(a.dtype, "gemm a"),
                      .b = dtype_of(b.dtype, "gemm b"),
                      .out = dtype_of(out_dtype, "gemm out"),
                      .layout_a = a.k_major ? Layout::k_major : Layout::mn_major,
                      .layout_b = b.k_major ? Layout::k_major : Layout::mn_major,
                      .scale_a = granularity_of(a.scale, "gemm a scale"),
                      .scale_b = granularity_of(b.scale, "gemm b scale"),
                      .bias = bias.has_value(),
                      .fast_accumulation = fast_accumulation};
  GemmTensors tensors{.a = matrix_of(a.array, a.dtype, "gemm a"),
                      .b = matrix_of(b.array, b.dtype, "gemm b"),
                      .out = matrix_of(out, out_dtype, "gemm out")};
  if (a.factors) tensors.factor_a = vector_of(*a.factors, "f32", "gemm factor_a");
  if (b.factors) tensors.factor_b = vector_of(*b.factors, "f32", "gemm factor_b");
  if (bias) tensors.bias = vector_of(*bias, bias_dtype, "gemm bias");
  const nb::gil_scoped_release release;
  context.run(stream, [&](Backend& backend, Stream& on) { backend.gemm(spec, tensors, on); });
}

// Calls work(F{}) with the FP8 format's type.
template <class Work>
void with_format(Dtype dtype, Work&& work) {
  switch (dtype) {
    case Dtype::e4m3fn: return work(ingot::e4m3fn{});
    case Dtype::e5m2: return work(ingot::e5m2{});
    case Dtype::e4m3fnuz: return work(ingot::e4m3fnuz{});
    case Dtype::e5m2fnuz: return work(ingot::e5m2fnuz{});
    default: break;
  }
  throw Error(ErrorCode::invalid_argument, "dtype",
              "expected e4m3fn, e5m2, e4m3fnuz or e5m2fnuz, got " + std::string(name(dtype)));
}

using HostFloats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using HostFloatsOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using HostCodes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using HostCodesOut = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void encode(const HostFloats& input, const std::string& dtype, const HostCodesOut& codes) {
  with_format(dtype_of(dtype, "encode dtype"), [&]<class F>(F) {
    for (std::size_t i = 0; i < input.size(); ++i) codes.data()[i] = ingot::encode<F>(input.data()[i]).bits;
  });
}

void decode(const HostCodes& codes, const std::string& dtype, const HostFloatsOut& values) {
  with_format(dtype_of(dtype, "decode dtype"), [&]<class F>(F) {
    for (std::size_t i = 0; i < codes.size(); ++i) values.data()[i] = ingot::decode(F{codes.data()[i]});
  });
}

}  // namespace

void bind_operations(nb::module_& module) {
  nb::class_<Operand>(module, "Operand")
      .def(nb::new_([](Input array, std::string dtype, std::optional<Input> factors, std::string scale, bool k_major) {
             return Operand{std::move(array), std::move(dtype), std::move(factors), std::move(scale), k_major};
           }),
           "array"_a, "dtype"_a, "factors"_a.none(), "scale"_a, "k_major"_a);
  module.def("amax", &amax, "context"_a, "input"_a, "in_dtype"_a, "scale"_a, "amax"_a, "stream"_a);
  module.def("cast", &cast, "context"_a, "input"_a, "in_dtype"_a, "out_dtype"_a, "scale"_a, "pow2"_a, "codes"_a.none(),
             "transposed"_a.none(), "factors"_a, "stream"_a);
  module.def("gemm", &gemm, "context"_a, "a"_a, "b"_a, "bias"_a.none(), "bias_dtype"_a, "out"_a, "out_dtype"_a,
             "fast_accumulation"_a, "stream"_a);
  module.def("encode", &encode, "input"_a, "dtype"_a, "codes"_a);
  module.def("decode", &decode, "codes"_a, "dtype"_a, "values"_a);
}

}  // namespace ingot::python
