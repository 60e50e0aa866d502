#include "support/quantize_case.h"

namespace ingot::test {

MxOutputs poisoned_mx(Dtype out, std::int64_t rows, std::int64_t cols, Placement at) {
  const std::int64_t unit = packed_unit(out);
  const std::int64_t bytes = row_bytes(out, cols);
  const std::int64_t stride = row_bytes(out, (cols + unit - 1) / unit * unit) + (unit == 4 ? 3 : 1) * at.padding;
  return {.codes = {Dtype::u8, rows, bytes, stride - bytes, at.offset},
          .scales = {Dtype::e8m0fnu, rows, (cols + 31) / 32, at.padding, at.offset}};
}

Tensor view_codes(const GuardedMatrix& codes, Dtype out, std::int64_t cols, void* base, Device device) {
  Tensor view = codes.view(base, device);
  view.dtype = out;
  view.cols = cols;
  view.row_stride = view.row_stride * 8 / bits_of(out);
  return view;
}

PlacedMx::PlacedMx(Dtype out, const GuardedMatrix& input, Placement at, Backend& backend, Stream& stream)
    : backend_(&backend), outputs_(poisoned_mx(out, input.rows(), input.cols(), at)) {
  for (const GuardedMatrix* const matrix :
       std::initializer_list<const GuardedMatrix*>{&input, &outputs_.codes, &outputs_.scales}) {
    memory_.emplace_back(backend, matrix->bytes().size());
    backend.device_api().copy_from_host(memory_.back().data(), matrix->bytes().data(), matrix->bytes().size(), stream);
  }
  tensors = {.input = input.view(memory_[0].data(), backend.device()),
             .codes = view_codes(outputs_.codes, out, input.cols(), memory_[1].data(), backend.device()),
             .scales = outputs_.scales.view(memory_[2].data(), backend.device())};
}

MxOutputs PlacedMx::outputs(Stream& stream) {
  MxOutputs found = outputs_;
  backend_->device_api().copy_to_host(found.codes.bytes().data(), memory_[1].data(), found.codes.bytes().size(),
                                      stream);
  backend_->device_api().copy_to_host(found.scales.bytes().data(), memory_[2].data(), found.scales.bytes().size(),
                                      stream);
  return found;
}

MxOutputs run_mx(const MxQuantizeSpec& spec, const GuardedMatrix& input, Placement at, Backend& backend,
                 Stream& stream) {
  PlacedMx placed(spec.out, input, at, backend, stream);
  backend.quantize_mx(spec, placed.tensors, stream);
  return placed.outputs(stream);
}

std::string mx_difference(const MxOutputs& expected, const MxOutputs& found) {
  std::string fault = bit_difference("scales", expected.scales, found.scales);
  if (fault.empty()) fault = bit_difference("bytes of codes", expected.codes, found.codes);
  if (fault.empty()) fault = found.codes.damage();
  return fault.empty() ? found.scales.damage() : fault;
}

MxGroup expected_mx_group(Dtype out, const CodeSearch& search, const GuardedMatrix& input, std::int64_t row,
                          std::int64_t first) {
  const std::int64_t end = std::min(input.cols(), first + 32);
  double amax = 0;
  bool is_finite = true;
  for (std::int64_t c = first; c < end; ++c) {
    is_finite = is_finite && std::isfinite(input.value(row, c));
    amax = std::max(amax, std::fabs(input.value(row, c)));
  }
  if (!is_finite) {
    const std::uint32_t nan = is_fp8(out) ? 0x7f : 0;
    return {.scale = 255, .codes = std::vector(static_cast<std::size_t>(end - first), nan)};
  }
  const int exponent = amax == 0 ? -127 : std::max(-127, std::ilogb(amax) - std::ilogb(search.largest()));
  MxGroup group{.scale = static_cast<std::uint32_t>(exponent + 127), .codes = {}};
  for (std::int64_t c = first; c < end; ++c) {
    const double x = input.value(row, c);
    const std::uint32_t sign = std::signbit(x) ? 1U << (bits_of(out) - 1) : 0U;
    group.codes.push_back(sign | search.nearest(std::fabs(std::ldexp(x, -exponent))));
  }
  return group;
}

GuardedMatrix mx_input(Dtype in, Shape shape, Input input, Placement at) {
  GuardedMatrix matrix(in, shape.rows, shape.cols, at.padding, at.offset);
  ThreadPool pool(1);
  fill(matrix, input, static_cast<std::uint64_t>(shape.cols), pool);
  return matrix;
}

std::string name(const KernelSpec& spec, const MxCase& c) {
  return name(Case{.spec = spec, .shape = c.shape, .input = c.input, .placement = c.at});
}

std::vector<MxCase> mx_cases() {
  std::vector<MxCase> cases;
  for (const Shape shape : {Shape{1, 1}, Shape{3, 5}, Shape{2, 31}, Shape{5, 32}, Shape{4, 33}, Shape{3, 40},
                            Shape{70, 64}, Shape{9, 264}, Shape{37, 131}, Shape{33, 1040}, Shape{21, 2048}}) {
    cases.push_back({.shape = shape});
  }
  for (const Input input : {Input::nan, Input::inf, Input::zeros, Input::spread, Input::subnormal}) {
    cases.push_back({.shape = {17, 256}, .input = input});
    cases.push_back({.shape = {7, 45}, .input = input});
  }
  for (const Placement at :
       {Placement{8, 0}, Placement{16, 8}, Placement{4, 4}, Placement{1, 0}, Placement{0, 1}, Placement{3, 2}}) {
    cases.push_back({.shape = {10, 160}, .at = at});
    cases.push_back({.shape = {6, 100}, .at = at});
  }
  for (const Shape shape : {Shape{0, 64}, Shape{3, 0}}) cases.push_back({.shape = shape});
  return cases;
}

double expected_float(const CodeSearch& search, double x) {
  if (std::isnan(x)) return x;
  return std::copysign(search.value(search.nearest(std::fabs(x))), x);
}

GuardedMatrix run_float(const FloatQuantizeSpec& spec, const GuardedMatrix& input, Placement at, bool in_place,
                        Backend& backend, Stream& stream) {
  Buffer from(backend, input.bytes().size());
  backend.device_api().copy_from_host(from.data(), input.bytes().data(), input.bytes().size(), stream);
  const Tensor view = input.view(from.data(), backend.device());
  if (in_place) {
    backend.float_quantize(spec, {.input = view, .output = view}, stream);
    GuardedMatrix result = input;
    backend.device_api().copy_to_host(result.bytes().data(), from.data(), result.bytes().size(), stream);
    return result;
  }
  GuardedMatrix result(spec.in, input.rows(), input.cols(), at.padding, at.offset);
  Buffer to(backend, result.bytes().size());
  backend.device_api().copy_from_host(to.data(), result.bytes().data(), result.bytes().size(), stream);
  backend.float_quantize(spec, {.input = view, .output = result.view(to.data(), backend.device())}, stream);
  backend.device_api().copy_to_host(result.bytes().data(), to.data(), result.bytes().size(), stream);
  return result;
}

}  // namespace ingot::test
