// Binds the backend's operations for Python. Each function views arrays as tensors and calls the backend, whose checks
// report errors. The Python side allocates outputs, because it knows the framework. The GIL is released while work
// runs.
#include "module.h"

#include <nanobind/stl/map.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays/arrays.h"
#include "context.h"
#include "ingot/runtime/core/visit.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/packed_codes.h"
#include "scaling.cuh"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// The shape of a granularity's scales: [down, across], or a single number if it divides only one dimension.
std::vector<std::int64_t> scale_shape(const std::string& scale, std::int64_t rows, std::int64_t cols) {
  const ScaleGranularity granularity = granularity_of(scale, "scale");
  if (rows < 0 || cols < 0) {
    throw Error(
        ErrorCode::invalid_argument, "scale_shape",
        (rows < 0 ? "rows are " + std::to_string(rows) : "cols are " + std::to_string(cols)) + ", expected 0 or more");
  }
  const auto extents = [](std::int64_t size, std::int64_t extent) { return size / extent + (size % extent != 0); };
  if (granularity == kTensorwise) return {1};
  if (granularity.cols == 0) return {extents(rows, granularity.rows)};
  if (granularity.rows == 0) return {extents(cols, granularity.cols)};
  return {extents(rows, granularity.rows), extents(cols, granularity.cols)};
}

void amax(PythonContext& context, const Input& input, const std::string& in_dtype, const std::string& scale,
          const Output& amax, std::uintptr_t stream) {
  const AmaxSpec spec{.in = dtype_of(in_dtype, "amax input"), .scale = granularity_of(scale, "amax scale")};
  const AmaxTensors tensors{.input = matrix_of(input, in_dtype, "amax input"), .amax = vector_of(amax, "f32", "amax")};
  const nb::gil_scoped_release release;
  context.run(stream, [&](Backend& backend, Stream& on) { backend.amax(spec, tensors, on); });
}

// A cast as Python describes it, without its tensors.
struct CastCall {
  std::string in, out, scale, transposed_scale, of, sum;  // an empty string stands for none
  bool given, pow2, unrounded, fast;
};

CastSpec spec_of(const CastCall& call, const std::map<std::string, Output>& outputs) {
  CastSpec spec{.in = dtype_of(call.in, "cast input"),
                .out = dtype_of(call.out, "cast dtype"),
                .scale = granularity_of(call.scale, "cast scale"),
                .codes = outputs.contains("codes"),
                .transposed = outputs.contains("transposed"),
                .pow2 = call.pow2,
                .source = call.given ? ScaleSource::given : ScaleSource::dynamic,
                .unrounded = call.unrounded,
                .fast_math = call.fast,
                .result = outputs.contains("result")};
  if (!call.transposed_scale.empty()) {
    spec.transposed_scale = granularity_of(call.transposed_scale, "cast transposed_scale");
  }
  if (!call.of.empty()) spec.pointwise = parse_pointwise(call.of);
  if (!call.sum.empty()) spec.sum = dtype_of(call.sum, "cast sum");
  return spec;
}

// inputs: in the order of the expression's inputs. given, outputs: by the names of CastTensors.
void cast(PythonContext& context, const CastCall& call, const Input& input, const std::vector<TypedInput>& inputs,
          const std::map<std::string, Input>& given, const std::map<std::string, Output>& outputs,
          std::uintptr_t stream) {
  const CastSpec spec = spec_of(call, outputs);
  CastTensors tensors{.input = matrix_of(input, call.in, "cast input"),
                      .scale_inv = {},
                      .inputs = inputs_of(spec.pointwise, inputs, "cast")};
  const auto output = [&](Tensor& tensor, const char* name, const std::string& dtype, bool is_matrix) {
    const auto found = outputs.find(name);
    if (found == outputs.end()) return;
    const std::string what = std::string("cast ") + name;
    tensor = is_matrix ? matrix_of(found->second, dtype, what.c_str()) : vector_of(found->second, dtype, what.c_str());
  };
  output(tensors.codes, "codes", call.out, true);
  output(tensors.transposed, "transposed", call.out, true);
  output(tensors.result, "result", call.in, true);
  output(tensors.sum, "sum", call.sum, false);
  output(tensors.scale_inv, "scale_inv", "f32", false);
  output(tensors.transposed_scale_inv, "transposed_scale_inv", "f32", false);
  output(tensors.amax, "amax", "f32", false);
  output(tensors.transposed_amax, "transposed_amax", "f32", false);
  if (given.contains("scales")) tensors.scales = vector_of(given.at("scales"), "f32", "cast scales");
  if (given.contains("transposed_scales")) {
    tensors.transposed_scales = vector_of(given.at("transposed_scales"), "f32", "cast transposed_scales");
  }
  const nb::gil_scoped_release release;
  context.run(stream, [&](Backend& backend, Stream& on) { backend.cast(spec, tensors, on); });
}

// One operand of a GEMM as Python describes it.
struct Operand {
  Input array;
  std::string dtype;
  std::optional<Input> scale_inv;
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
  if (a.scale_inv) tensors.scale_inv_a = vector_of(*a.scale_inv, "f32", "gemm scale_inv_a");
  if (b.scale_inv) tensors.scale_inv_b = vector_of(*b.scale_inv, "f32", "gemm scale_inv_b");
  if (bias) tensors.bias = vector_of(*bias, bias_dtype, "gemm bias");
  const nb::gil_scoped_release release;
  context.run(stream, [&](Backend& backend, Stream& on) { backend.gemm(spec, tensors, on); });
}

void quantize_mx(PythonContext& context, const Input& input, const std::string& in_dtype, const Output& codes,
                 const std::string& out_dtype, const Output& scales, std::uintptr_t stream) {
  const MxQuantizeSpec spec{.in = dtype_of(in_dtype, "quantize_mx input"),
                            .out = dtype_of(out_dtype, "quantize_mx dtype")};
  const Tensor from = matrix_of(input, in_dtype, "quantize_mx input");
  const MxQuantizeTensors tensors{.input = from,
                                  .codes = codes_of(codes, out_dtype, from.cols, "quantize_mx codes"),
                                  .scales = matrix_of(scales, "e8m0fnu", "quantize_mx scales")};
  const nb::gil_scoped_release release;
  context.run(stream, [&](Backend& backend, Stream& on) { backend.quantize_mx(spec, tensors, on); });
}

void float_quantize(PythonContext& context, const Input& input, const std::string& in_dtype, int exponent_bits,
                    int mantissa_bits, const Output& output, std::uintptr_t stream) {
  const FloatQuantizeSpec spec{
      .in = dtype_of(in_dtype, "float_quantize input"), .exponent_bits = exponent_bits, .mantissa_bits = mantissa_bits};
  const FloatQuantizeTensors tensors{.input = matrix_of(input, in_dtype, "float_quantize input"),
                                     .output = matrix_of(output, in_dtype, "float_quantize output")};
  const nb::gil_scoped_release release;
  context.run(stream, [&](Backend& backend, Stream& on) { backend.float_quantize(spec, tensors, on); });
}

// Calls work(F{}) with the type of a format of eight bits or less.
template <class Work>
void with_format(Dtype dtype, Work&& work) {
  if (!is_code_format(dtype)) {
    throw Error(ErrorCode::invalid_argument, "dtype",
                "expected " + one_of(kCodeDtypes) + ", got " + std::string(name(dtype)));
  }
  visit_codes(dtype, [&]<class F>(Type<F>) { work(F{}); });
}

using HostFloats = nb::ndarray<const float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using HostFloatsOut = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using HostCodes = nb::ndarray<const std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using HostCodesOut = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

void check_size(const std::string& what, std::size_t size, std::size_t expected) {
  if (size == expected) return;
  throw Error(ErrorCode::invalid_argument, what,
              "has " + std::to_string(size) + " elements, expected " + std::to_string(expected));
}

void encode(const HostFloats& input, const std::string& dtype, const HostCodesOut& codes) {
  check_size("encode codes", codes.size(), input.size());
  with_format(dtype_of(dtype, "encode dtype"), [&]<class F>(F) {
    for (std::size_t i = 0; i < input.size(); ++i) codes.data()[i] = ingot::encode<F>(input.data()[i]).bits;
  });
}

void decode(const HostCodes& codes, const std::string& dtype, const HostFloatsOut& values) {
  check_size("decode values", values.size(), codes.size());
  const auto decode_as = [&]<class F>(F) {
    for (std::size_t i = 0; i < codes.size(); ++i) values.data()[i] = ingot::decode(F{codes.data()[i]});
  };
  const Dtype from = dtype_of(dtype, "decode dtype");
  if (from == Dtype::e8m0fnu) return decode_as(ingot::e8m0fnu{});
  with_format(from, decode_as);
}

void pack_codes(const HostCodes& codes, const std::string& dtype, const HostCodesOut& row) {
  ingot::pack_codes(dtype_of(dtype, "pack_codes dtype"), {codes.data(), codes.size()}, {row.data(), row.size()});
}

void unpack_codes(const HostCodes& row, const std::string& dtype, const HostCodesOut& codes) {
  ingot::unpack_codes(dtype_of(dtype, "unpack_codes dtype"), {row.data(), row.size()}, {codes.data(), codes.size()});
}

// ---- Expressions -------------------------------------------------------------------------------------------------

const char* kind_name(PointwiseInput::Kind kind) {
  switch (kind) {
    case PointwiseInput::Kind::matrix: return "matrix";
    case PointwiseInput::Kind::column: return "col";
    case PointwiseInput::Kind::column_f32: return "col:f32";
    case PointwiseInput::Kind::row: return "row";
  }
  return "no kind";
}

// Returns whether the expression uses x, and its further inputs: name and "matrix", "col", "col:f32" or "row".
std::pair<bool, std::vector<std::pair<std::string, std::string>>> expression_inputs(const std::string& text) {
  const Pointwise expression = parse_pointwise(text);
  std::vector<std::pair<std::string, std::string>> inputs;
  for (const PointwiseInput& input : expression.inputs()) inputs.emplace_back(input.name, kind_name(input.kind));
  return {expression.uses_x(), inputs};
}

using HostDoubles = nb::ndarray<const double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using HostDoublesOut = nb::ndarray<double, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

// x and each input have as many elements as `results`.
void evaluate_all(const std::string& text, const HostDoubles& x, const std::vector<HostDoubles>& inputs,
                  const HostDoublesOut& results) {
  const Pointwise expression = parse_pointwise(text);
  const auto kinds = expression.inputs();
  if (inputs.size() != kinds.size()) {
    throw Error(ErrorCode::invalid_argument, "evaluate",
                "the expression has " + std::to_string(kinds.size()) + " inputs, but " + std::to_string(inputs.size()) +
                    " are given");
  }
  check_size("evaluate x", x.size(), results.size());
  for (std::size_t k = 0; k < inputs.size(); ++k) {
    check_size("evaluate " + kinds[k].name, inputs[k].size(), results.size());
  }
  std::vector<double> values(inputs.size());
  for (std::size_t i = 0; i < results.size(); ++i) {
    for (std::size_t k = 0; k < inputs.size(); ++k) values[k] = inputs[k].data()[i];
    results.data()[i] = evaluate(expression, x.data()[i], values);
  }
}

}  // namespace

void bind_operations(nb::module_& module) {
  nb::class_<Operand>(module, "Operand")
      .def(nb::init<Input, std::string, std::optional<Input>, std::string, bool>(), "array"_a, "dtype"_a,
           "scale_inv"_a.none(), "scale"_a, "k_major"_a);
  module.def("amax", &amax, "context"_a, "input"_a, "in_dtype"_a, "scale"_a, "amax"_a, "stream"_a);
  module.def("scale_shape", &scale_shape, "scale"_a, "rows"_a, "cols"_a);
  nb::class_<CastCall>(module, "CastCall")
      .def(nb::init<std::string, std::string, std::string, std::string, std::string, std::string, bool, bool, bool,
                    bool>(),
           "in_dtype"_a, "out_dtype"_a, "scale"_a, "transposed_scale"_a, "of"_a, "sum"_a, "given"_a, "pow2"_a,
           "unrounded"_a, "fast"_a);
  module.def("cast", &cast, "context"_a, "call"_a, "input"_a, "inputs"_a, "given"_a, "outputs"_a, "stream"_a);
  module.def("expression_inputs", &expression_inputs, "text"_a);
  module.def(
      "derivative",
      [](const std::string& text, const std::string& by) { return print(derivative(parse_pointwise(text), by)); },
      "text"_a, "by"_a);
  module.def(
      "backward",
      [](const std::string& text, const std::string& by, const std::string& grad) {
        return print(backward(parse_pointwise(text), by, grad));
      },
      "text"_a, "by"_a, "grad"_a);
  module.def("evaluate", &evaluate_all, "text"_a, "x"_a, "inputs"_a, "results"_a);
  module.def("gemm", &gemm, "context"_a, "a"_a, "b"_a, "bias"_a.none(), "bias_dtype"_a, "out"_a, "out_dtype"_a,
             "fast_accumulation"_a, "stream"_a);
  module.def("quantize_mx", &quantize_mx, "context"_a, "input"_a, "in_dtype"_a, "codes"_a, "out_dtype"_a, "scales"_a,
             "stream"_a);
  module.def("float_quantize", &float_quantize, "context"_a, "input"_a, "in_dtype"_a, "exponent_bits"_a,
             "mantissa_bits"_a, "output"_a, "stream"_a);
  module.def("pack_codes", &pack_codes, "codes"_a, "dtype"_a, "row"_a);
  module.def("unpack_codes", &unpack_codes, "row"_a, "dtype"_a, "codes"_a);
  module.def("encode", &encode, "input"_a, "dtype"_a, "codes"_a);
  module.def("decode", &decode, "codes"_a, "dtype"_a, "values"_a);
}

}  // namespace ingot::python
