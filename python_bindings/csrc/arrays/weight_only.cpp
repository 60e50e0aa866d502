// Binds the base of ingot.WeightOnlyLinear: the layer together with the context that owns its memory. It is made of
// values, of a checkpoint's codes, of a file, or of a layer in another layout. Options arrive as text and are parsed
// here; the layer's own checks report errors.
#include "ingot/nn/weights/weight_only.h"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <cstdint>
#include <new>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arrays/arrays.h"
#include "context.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/text.h"
#include "module.h"

namespace ingot::python {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

// keep_alive makes the context outlive this.
struct PythonWeightOnly {
  PythonContext* context;
  WeightOnlyLinear layer;
};

WeightLayout layout_of(const std::string& text) {
  if (const auto layout = parse_weight_layout(text)) return *layout;
  throw Error(ErrorCode::invalid_argument, "WeightOnlyLinear layout",
              "unknown layout \"" + text + R"("; expected "packed", "packed_f16" or "row_major")");
}

WeightOnlyOptions options_of(const std::string& dtype, const std::string& scale, bool pow2, const std::string& layout,
                             bool batch_invariant, const std::string& epilogue) {
  WeightOnlyOptions options{.dtype = dtype_of(dtype, "WeightOnlyLinear dtype"),
                            .mx = scale == "mx",
                            .pow2 = pow2,
                            .batch_invariant = batch_invariant};
  options.layout = layout_of(layout);
  if (!epilogue.empty()) options.epilogue = parse_pointwise(epilogue);
  if (options.mx) return options;
  const std::optional<ScaleGranularity> granularity = parse_granularity(scale);
  if (!granularity || std::ranges::find(kDequantGranularities, *granularity) == kDequantGranularities.end()) {
    throw Error(
        ErrorCode::invalid_argument, "WeightOnlyLinear scale",
        "unknown scale \"" + scale + R"("; expected "tensor", "row", "1x128", "1x64", "1x32", "128x128" or "mx")");
  }
  options.scale = *granularity;
  return options;
}

ScaleConvention convention_of(const std::string& text) {
  if (text == "dequantize") return ScaleConvention::dequantize;
  if (text == "quantize") return ScaleConvention::quantize;
  throw Error(
      ErrorCode::invalid_argument, "WeightOnlyLinear convention",
      "expected \"dequantize\" (value = code * scale) or \"quantize\" (value = code / scale), got \"" + text + "\"");
}

void forward(const PythonWeightOnly& self, const Input& x, const std::string& x_dtype, const Output& y,
             const std::string& y_dtype, const std::optional<TypedInput>& bias, const std::vector<TypedInput>& inputs,
             std::uintptr_t stream) {
  const Tensor x_of = matrix_of(x, x_dtype, "WeightOnlyLinear x");
  const Tensor y_of = matrix_of(y, y_dtype, "WeightOnlyLinear y");
  WeightOnlyExtras extras;
  if (bias) extras.bias = vector_of(bias->first, bias->second, "WeightOnlyLinear bias");
  extras.inputs = inputs_of(self.layer.options().epilogue, inputs, "WeightOnlyLinear");
  const nb::gil_scoped_release release;
  self.context->run(stream, [&](Backend&, Stream& on) { self.layer.forward(x_of, y_of, on, extras); });
}

PythonWeightOnly quantize(PythonContext& context, const Input& weight, const std::string& dtype,
                          const WeightOnlyOptions& options, std::uintptr_t stream) {
  const Tensor values = matrix_of(weight, dtype, "WeightOnlyLinear weight");
  const nb::gil_scoped_release release;
  std::optional<WeightOnlyLinear> made;
  context.run(stream,
              [&](Backend& backend, Stream& on) { made = WeightOnlyLinear::quantize(backend, values, options, on); });
  return PythonWeightOnly{&context, std::move(*made)};
}

PythonWeightOnly from_codes(PythonContext& context, const Input& codes, const Input& scales,
                            const std::string& scale_dtype, const std::string& convention, std::int64_t in_features,
                            const WeightOnlyOptions& options, std::uintptr_t stream) {
  const Tensor of_codes = codes_of(codes, std::string(name(options.dtype)), in_features, "WeightOnlyLinear codes");
  const Tensor of_scales = scales.ndim() == 1 ? vector_of(scales, scale_dtype, "WeightOnlyLinear scales")
                                              : matrix_of(scales, scale_dtype, "WeightOnlyLinear scales");
  const ScaleConvention meant = convention_of(convention);
  const nb::gil_scoped_release release;
  std::optional<WeightOnlyLinear> made;
  context.run(stream, [&](Backend& backend, Stream& on) {
    made = WeightOnlyLinear::from_codes(backend, of_codes, of_scales, meant, options, on);
  });
  return PythonWeightOnly{&context, std::move(*made)};
}

PythonWeightOnly load(PythonContext& context, const std::string& file, const std::string& name, bool batch_invariant,
                      const std::string& epilogue, std::uintptr_t stream) {
  const nb::gil_scoped_release release;
  WeightOnlyState state = load_weight_only(SafetensorsFile::open(file), name);
  state.options.batch_invariant = batch_invariant;
  if (!epilogue.empty()) state.options.epilogue = parse_pointwise(epilogue);
  std::optional<WeightOnlyLinear> made;
  try {
    context.run(stream, [&](Backend& backend, Stream& on) { made = WeightOnlyLinear::from_state(backend, state, on); });
  } catch (const Error& error) {  // add the file and the layer to the message
    throw Error(error.code(), file, "the layer \"" + printable(name) + "\": " + error.what());
  }
  return PythonWeightOnly{&context, std::move(*made)};
}

void save(const PythonWeightOnly& self, const std::string& file, const std::string& name, std::uintptr_t stream) {
  const nb::gil_scoped_release release;
  WeightOnlyState state;
  self.context->run(stream, [&](Backend&, Stream& on) { state = self.layer.state(on); });
  save_weight_only(file, {{name, std::move(state)}});
}

PythonWeightOnly with_layout(const PythonWeightOnly& self, const std::string& layout, std::uintptr_t stream) {
  const WeightLayout wanted = layout_of(layout);
  const nb::gil_scoped_release release;
  std::optional<WeightOnlyLinear> made;
  self.context->run(stream, [&](Backend&, Stream& on) { made = self.layer.with_layout(wanted, on); });
  return PythonWeightOnly{self.context, std::move(*made)};
}

// What __init__ does with one of the functions above.
template <typename... Arguments>
auto made_by(PythonWeightOnly (*make)(Arguments...)) {
  return [make](PythonWeightOnly* self, Arguments... arguments) {
    new (self) PythonWeightOnly(make(std::forward<Arguments>(arguments)...));
  };
}

}  // namespace

void bind_weight_only(nb::module_& module) {
  nb::class_<WeightOnlyOptions>(module, "WeightOnlyOptions")
      .def(nb::new_(&options_of), "dtype"_a, "scale"_a, "pow2"_a, "layout"_a, "batch_invariant"_a, "epilogue"_a);
  nb::class_<PythonWeightOnly>(module, "WeightOnlyLinear")
      .def("__init__", made_by(&quantize), "context"_a, "weight"_a, "dtype"_a, "options"_a, "stream"_a,
           nb::keep_alive<1, 2>())
      .def("__init__", made_by(&from_codes), "context"_a, "codes"_a, "scales"_a, "scale_dtype"_a, "convention"_a,
           "in_features"_a, "options"_a, "stream"_a, nb::keep_alive<1, 2>())
      .def("__init__", made_by(&load), "context"_a, "file"_a, "name"_a, "batch_invariant"_a, "epilogue"_a, "stream"_a,
           nb::keep_alive<1, 2>())
      .def("__init__", made_by(&with_layout), "layer"_a, "layout"_a, "stream"_a, nb::keep_alive<1, 2>())
      .def("_save", &save, "file"_a, "name"_a, "stream"_a)
      .def("_forward", &forward, "x"_a, "x_dtype"_a, "y"_a, "y_dtype"_a, "bias"_a.none(), "inputs"_a, "stream"_a)
      .def_prop_ro("dtype", [](const PythonWeightOnly& self) { return std::string(name(self.layer.options().dtype)); })
      .def_prop_ro("scale",
                   [](const PythonWeightOnly& self) {
                     const WeightOnlyOptions& options = self.layer.options();
                     return options.mx ? std::string("mx") : print(options.scale);
                   })
      .def_prop_ro("epilogue", [](const PythonWeightOnly& self) { return print(self.layer.options().epilogue); })
      .def_prop_ro("layout",
                   [](const PythonWeightOnly& self) { return std::string(name(self.layer.options().layout)); })
      .def_prop_ro("batch_invariant", [](const PythonWeightOnly& self) { return self.layer.options().batch_invariant; })
      .def_prop_ro("in_features", [](const PythonWeightOnly& self) { return self.layer.in_features(); })
      .def_prop_ro("out_features", [](const PythonWeightOnly& self) { return self.layer.out_features(); })
      .def_prop_ro("weight_bytes", [](const PythonWeightOnly& self) { return self.layer.weight_bytes(); })
      .def_prop_ro("device", [](const PythonWeightOnly& self) { return print(self.context->context().device()); });
}

}  // namespace ingot::python
