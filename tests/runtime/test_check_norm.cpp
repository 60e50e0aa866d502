// Every refusal of the norms' arguments, by its message. test_check.cpp tests what holds for tensors of any operation
// (strides, null, alignment).
#include <boost/test/unit_test.hpp>
#include <cstddef>
#include <limits>
#include <string>

#include "ingot/runtime/norm/norm_operations.h"
#include "support/function_ref.h"
#include "support/refused.h"

BOOST_AUTO_TEST_SUITE(test_check_norm)

using namespace ingot;
using ingot::test::refused;

namespace {

constexpr Device kCpu{};
constexpr Device kGpu{DeviceType::cuda, 0};
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

// Memory that is never read: checks look only at addresses.
alignas(256) std::byte memory[1 << 16];
void* at(std::size_t offset) { return memory + offset; }

const std::string kNothing = "nothing was thrown";
const std::string kAbsent = "it must not be given (a default Tensor instead): ";

// Each test starts from a valid call and breaks one thing. This call has everything except a given scale.
constexpr NormSpec kLayer{
    .kind = NormKind::layer, .in = Dtype::bf16, .out = Dtype::e4m3fn, .affine = true, .result = true, .stats = true};
NormTensors layer_tensors() {
  return {.input = matrix(at(0), Dtype::bf16, 4, 8, kCpu),
          .gamma = vector(at(1024), Dtype::bf16, 8, kCpu),
          .beta = vector(at(2048), Dtype::bf16, 8, kCpu),
          .codes = matrix(at(3072), Dtype::e4m3fn, 4, 8, kCpu),
          .scale_inv = vector(at(4096), Dtype::f32, 4, kCpu),
          .result = matrix(at(5120), Dtype::bf16, 4, 8, kCpu),
          .mean = vector(at(6144), Dtype::f32, 4, kCpu),
          .rstd = vector(at(7168), Dtype::f32, 4, kCpu)};
}

constexpr NormSpec kGiven{
    .kind = NormKind::rms, .in = Dtype::bf16, .out = Dtype::e4m3fn, .scale = kTensorwise, .source = ScaleSource::given};
NormTensors given_tensors() {
  return {.input = matrix(at(0), Dtype::bf16, 4, 8, kCpu),
          .codes = matrix(at(3072), Dtype::e4m3fn, 4, 8, kCpu),
          .scale_inv = vector(at(4096), Dtype::f32, 1, kCpu),
          .scale = vector(at(8192), Dtype::f32, 1, kCpu),
          .amax = vector(at(9216), Dtype::f32, 1, kCpu)};
}

constexpr NormBackwardSpec kBackward{.kind = NormKind::layer, .in = Dtype::bf16, .affine = true, .sums = Dtype::f32};
NormBackwardTensors backward_tensors() {
  return {.grad_output = matrix(at(0), Dtype::bf16, 4, 8, kCpu),
          .input = matrix(at(1024), Dtype::bf16, 4, 8, kCpu),
          .gamma = vector(at(2048), Dtype::bf16, 8, kCpu),
          .mean = vector(at(3072), Dtype::f32, 4, kCpu),
          .rstd = vector(at(4096), Dtype::f32, 4, kCpu),
          .grad_input = matrix(at(5120), Dtype::bf16, 4, 8, kCpu),
          .grad_gamma = vector(at(6144), Dtype::f32, 8, kCpu),
          .grad_beta = vector(at(7168), Dtype::f32, 8, kCpu)};
}

template <class Spec, class Tensors>
std::string message(const Spec& spec, Tensors tensors, test::FunctionRef<void(Tensors&)> change) {
  change(tensors);
  const auto error = refused([&] { check(spec, tensors, kCpu); });
  if (error.threw) BOOST_TEST((error.code == ErrorCode::invalid_argument), error.message);
  return error.message;
}
std::string layer_message(test::FunctionRef<void(NormTensors&)> change, const NormSpec& spec = kLayer) {
  return message(spec, layer_tensors(), change);
}
std::string given_message(test::FunctionRef<void(NormTensors&)> change, const NormSpec& spec = kGiven) {
  return message(spec, given_tensors(), change);
}
std::string backward_message(test::FunctionRef<void(NormBackwardTensors&)> change,
                             const NormBackwardSpec& spec = kBackward) {
  return message(spec, backward_tensors(), change);
}

template <class Spec>
Spec changed(Spec spec, test::FunctionRef<void(Spec&)> change) {
  change(spec);
  return spec;
}

}  // namespace

BOOST_AUTO_TEST_CASE(right_calls_pass) {
  BOOST_TEST(layer_message([](auto&) {}) == kNothing);
  BOOST_TEST(layer_message([](NormTensors& t) { t.eps = 0.0F; }) == kNothing);
  BOOST_TEST(given_message([](auto&) {}) == kNothing);
  BOOST_TEST(backward_message([](auto&) {}) == kNothing);
  // Without rows or columns, and without memory.
  check(changed<NormSpec>(kLayer, [](NormSpec& s) { s.affine = false; }),
        {.input = matrix(nullptr, Dtype::bf16, 0, 8, kCpu),
         .codes = matrix(nullptr, Dtype::e4m3fn, 0, 8, kCpu),
         .result = matrix(nullptr, Dtype::bf16, 0, 8, kCpu)},
        kCpu);
  check(NormSpec{.affine = true, .result = true},
        {.input = matrix(nullptr, Dtype::bf16, 4, 0, kCpu), .result = matrix(nullptr, Dtype::bf16, 4, 0, kCpu)}, kCpu);
  check(kBackward,
        {.grad_output = matrix(nullptr, Dtype::bf16, 4, 0, kCpu),
         .input = matrix(nullptr, Dtype::bf16, 4, 0, kCpu),
         .mean = vector(at(3072), Dtype::f32, 4, kCpu),
         .rstd = vector(at(4096), Dtype::f32, 4, kCpu),
         .grad_input = matrix(nullptr, Dtype::bf16, 4, 0, kCpu)},
        kCpu);
}

BOOST_AUTO_TEST_CASE(eps_is_a_number_of_at_least_0) {
  BOOST_TEST(layer_message([](NormTensors& t) { t.eps = -1e-5F; }) ==
             "norm eps: is -1e-05, but must be finite and at least 0");
  BOOST_TEST(layer_message([](NormTensors& t) { t.eps = kNan; }) ==
             "norm eps: is nan, but must be finite and at least 0");
  BOOST_TEST(layer_message([](NormTensors& t) { t.eps = kInf; }) ==
             "norm eps: is inf, but must be finite and at least 0");
}

BOOST_AUTO_TEST_CASE(dtypes_and_devices) {
  BOOST_TEST(layer_message([](NormTensors& t) { t.input.dtype = Dtype::f16; }) ==
             "norm input: is f16[4, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(layer_message([](NormTensors& t) { t.gamma.dtype = Dtype::f32; }) ==
             "norm gamma: is f32[1, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(layer_message([](NormTensors& t) { t.beta.dtype = Dtype::f16; }) ==
             "norm beta: is f16[1, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(layer_message([](NormTensors& t) { t.codes.dtype = Dtype::e5m2; }) ==
             "norm codes: is e5m2[4, 8] on cpu; the spec asks for e4m3fn");
  BOOST_TEST(layer_message([](NormTensors& t) { t.scale_inv.dtype = Dtype::bf16; }) ==
             "norm scale_inv: is bf16[1, 4] on cpu; the spec asks for f32");
  BOOST_TEST(layer_message([](NormTensors& t) { t.result.dtype = Dtype::f32; }) ==
             "norm result: is f32[4, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(layer_message([](NormTensors& t) { t.mean.dtype = Dtype::bf16; }) ==
             "norm mean: is bf16[1, 4] on cpu; the spec asks for f32");
  BOOST_TEST(layer_message([](NormTensors& t) { t.rstd.device = kGpu; }) ==
             "norm rstd: is f32[1, 4] on cuda:0; this backend works on cpu: copy it there");
  BOOST_TEST(given_message([](NormTensors& t) { t.scale.device = kGpu; }) ==
             "norm scale: is f32[1, 1] on cuda:0; this backend works on cpu: copy it there");
  BOOST_TEST(given_message([](NormTensors& t) { t.amax.dtype = Dtype::bf16; }) ==
             "norm amax: is bf16[1, 1] on cpu; the spec asks for f32");

  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.input.dtype = Dtype::f16; }) ==
             "norm_backward input: is f16[4, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.grad_output.device = kGpu; }) ==
             "norm_backward grad_output: is bf16[4, 8] on cuda:0; this backend works on cpu: copy it there");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.gamma.dtype = Dtype::f32; }) ==
             "norm_backward gamma: is f32[1, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.grad_input.dtype = Dtype::f32; }) ==
             "norm_backward grad_input: is f32[4, 8] on cpu; the spec asks for bf16");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.grad_gamma.dtype = Dtype::bf16; }) ==
             "norm_backward grad_gamma: is bf16[1, 8] on cpu; the spec asks for f32");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.grad_beta.dtype = Dtype::bf16; }) ==
             "norm_backward grad_beta: is bf16[1, 8] on cpu; the spec asks for f32");
}

BOOST_AUTO_TEST_CASE(shapes) {
  const auto longer = [](Tensor& t) { t.row_stride = ++t.cols; };
  const std::string per_column = "it must be [1, 8]: one for each column of the input";
  const std::string per_row = "it must be [1, 4]: one for each row of the input";
  BOOST_TEST(layer_message([&](NormTensors& t) { longer(t.gamma); }) ==
             "norm gamma: is bf16[1, 9] on cpu; " + per_column);
  BOOST_TEST(layer_message([&](NormTensors& t) { longer(t.beta); }) ==
             "norm beta: is bf16[1, 9] on cpu; " + per_column);
  BOOST_TEST(layer_message([&](NormTensors& t) { longer(t.scale_inv); }) ==
             "norm scale_inv: is f32[1, 5] on cpu; " + per_row);
  BOOST_TEST(layer_message([&](NormTensors& t) { longer(t.mean); }) == "norm mean: is f32[1, 5] on cpu; " + per_row);
  BOOST_TEST(layer_message([&](NormTensors& t) { longer(t.rstd); }) == "norm rstd: is f32[1, 5] on cpu; " + per_row);
  BOOST_TEST(layer_message([&](NormTensors& t) { longer(t.codes); }) ==
             "norm codes: is e4m3fn[4, 9] on cpu; it must be [4, 8]: the input's shape");
  BOOST_TEST(layer_message([](NormTensors& t) { t.result.rows = 3; }) ==
             "norm result: is bf16[3, 8] on cpu; it must be [4, 8]: the input's shape");
  const std::string single = "it must be [1, 1]: one for the whole tensor";
  BOOST_TEST(given_message([&](NormTensors& t) { longer(t.scale); }) == "norm scale: is f32[1, 2] on cpu; " + single);
  BOOST_TEST(given_message([&](NormTensors& t) { longer(t.amax); }) == "norm amax: is f32[1, 2] on cpu; " + single);
  BOOST_TEST(given_message([](NormTensors& t) { t.scale_inv = vector(at(4096), Dtype::f32, 4, kCpu); }) ==
             "norm scale_inv: is f32[1, 4] on cpu; " + single);

  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.grad_output.rows = 3; }) ==
             "norm_backward grad_output: is bf16[3, 8] on cpu; it must be [4, 8]: the input's shape");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.grad_input.rows = 3; }) ==
             "norm_backward grad_input: is bf16[3, 8] on cpu; it must be [4, 8]: the input's shape");
  BOOST_TEST(backward_message([&](NormBackwardTensors& t) { longer(t.gamma); }) ==
             "norm_backward gamma: is bf16[1, 9] on cpu; " + per_column);
  BOOST_TEST(backward_message([&](NormBackwardTensors& t) { longer(t.mean); }) ==
             "norm_backward mean: is f32[1, 5] on cpu; " + per_row);
  BOOST_TEST(backward_message([&](NormBackwardTensors& t) { longer(t.rstd); }) ==
             "norm_backward rstd: is f32[1, 5] on cpu; " + per_row);
  BOOST_TEST(backward_message([&](NormBackwardTensors& t) { longer(t.grad_gamma); }) ==
             "norm_backward grad_gamma: is f32[1, 9] on cpu; " + per_column);
  BOOST_TEST(backward_message([&](NormBackwardTensors& t) { longer(t.grad_beta); }) ==
             "norm_backward grad_beta: is f32[1, 9] on cpu; " + per_column);
}

BOOST_AUTO_TEST_CASE(what_is_missing) {
  BOOST_TEST(layer_message([](NormTensors& t) { t.gamma = {}; }) ==
             "norm gamma: is missing; it must be bf16[1, 8]: one for each column of the input");
  BOOST_TEST(layer_message([](NormTensors& t) { t.beta = {}; }) ==
             "norm beta: is missing; it must be bf16[1, 8]: one for each column of the input");
  BOOST_TEST(layer_message([](NormTensors& t) { t.scale_inv = {}; }) ==
             "norm scale_inv: is missing; it must be f32[1, 4]: one for each row of the input");
  BOOST_TEST(layer_message([](NormTensors& t) { t.mean = {}; }) ==
             "norm mean: is missing; it must be f32[1, 4]: one for each row of the input");
  BOOST_TEST(layer_message([](NormTensors& t) { t.rstd = {}; }) ==
             "norm rstd: is missing; it must be f32[1, 4]: one for each row of the input");
  BOOST_TEST(layer_message([](NormTensors& t) { t.codes.data = nullptr; }) ==
             "norm codes: is e4m3fn[4, 8] on cpu; its data pointer is null; only an empty tensor may have none");
  BOOST_TEST(given_message([](NormTensors& t) { t.scale = {}; }) ==
             "norm scale: is missing; it must be f32[1, 1]: one for the whole tensor");
  BOOST_TEST(given_message([](NormTensors& t) { t.amax = {}; }) ==
             "norm amax: is missing; it must be f32[1, 1]: one for the whole tensor");
  BOOST_TEST(given_message([](NormTensors& t) { t.scale_inv = {}; }) ==
             "norm scale_inv: is missing; it must be f32[1, 1]: one for the whole tensor");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.mean = {}; }) ==
             "norm_backward mean: is missing; it must be f32[1, 4]: one for each row of the input");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.rstd = {}; }) ==
             "norm_backward rstd: is missing; it must be f32[1, 4]: one for each row of the input");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.grad_gamma = {}; }) ==
             "norm_backward grad_gamma: is missing; it must be f32[1, 8]: one for each column of the input");
}

BOOST_AUTO_TEST_CASE(what_the_spec_does_not_ask_for) {
  const auto without = [](test::FunctionRef<void(NormSpec&)> change) { return changed<NormSpec>(kLayer, change); };
  const auto plain = without([](NormSpec& s) { s.affine = false; });
  BOOST_TEST(layer_message([](auto&) {}, plain) ==
             "norm gamma: is bf16[1, 8] on cpu; " + kAbsent + "the spec is not affine");
  BOOST_TEST(layer_message([](NormTensors& t) { t.gamma = {}; }, plain) ==
             "norm beta: is bf16[1, 8] on cpu; " + kAbsent + "the spec is not affine");
  const auto rms = without([](NormSpec& s) { s.kind = NormKind::rms; });
  BOOST_TEST(layer_message([](auto&) {}, rms) == "norm beta: is bf16[1, 8] on cpu; " + kAbsent + "RMSNorm has no beta");
  BOOST_TEST(layer_message([](NormTensors& t) { t.beta = {}; }, rms) ==
             "norm mean: is f32[1, 4] on cpu; " + kAbsent + "RMSNorm subtracts no mean");
  BOOST_TEST(layer_message([](auto&) {}, without([](NormSpec& s) { s.result = false; })) ==
             "norm result: is bf16[4, 8] on cpu; " + kAbsent + "the spec does not ask for this output");
  const auto no_stats = without([](NormSpec& s) { s.stats = false; });
  BOOST_TEST(layer_message([](auto&) {}, no_stats) ==
             "norm mean: is f32[1, 4] on cpu; " + kAbsent + "the spec does not ask for this output");
  BOOST_TEST(layer_message([](NormTensors& t) { t.mean = {}; }, no_stats) ==
             "norm rstd: is f32[1, 4] on cpu; " + kAbsent + "the spec does not ask for this output");
  const auto no_codes = without([](NormSpec& s) { s.out.reset(); });
  BOOST_TEST(layer_message([](auto&) {}, no_codes) ==
             "norm codes: is e4m3fn[4, 8] on cpu; " + kAbsent + "the spec does not ask for this output");
  BOOST_TEST(layer_message([](NormTensors& t) { t.codes = {}; }, no_codes) ==
             "norm scale_inv: is f32[1, 4] on cpu; " + kAbsent + "the spec asks for no codes");
  const auto scale = [](NormTensors& t) { t.scale = vector(at(8192), Dtype::f32, 1, kCpu); };
  BOOST_TEST(layer_message(scale) ==
             "norm scale: is f32[1, 1] on cpu; " + kAbsent + "the scales of this spec are dynamic");
  BOOST_TEST(layer_message(scale, no_codes) ==
             "norm scale: is f32[1, 1] on cpu; " + kAbsent + "the spec asks for no codes");
  BOOST_TEST(layer_message([](NormTensors& t) { t.amax = vector(at(8192), Dtype::f32, 1, kCpu); }) ==
             "norm amax: is f32[1, 1] on cpu; " + kAbsent + "the scales of this spec are dynamic");

  const auto backward_plain = changed<NormBackwardSpec>(kBackward, [](NormBackwardSpec& s) { s.affine = false; });
  BOOST_TEST(backward_message([](auto&) {}, backward_plain) ==
             "norm_backward gamma: is bf16[1, 8] on cpu; " + kAbsent + "the spec is not affine");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.gamma = {}; }, backward_plain) ==
             "norm_backward grad_gamma: is f32[1, 8] on cpu; " + kAbsent + "the spec is not affine");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.gamma = t.grad_gamma = {}; }, backward_plain) ==
             "norm_backward grad_beta: is f32[1, 8] on cpu; " + kAbsent + "the spec is not affine");
  const auto backward_rms = changed<NormBackwardSpec>(kBackward, [](NormBackwardSpec& s) { s.kind = NormKind::rms; });
  BOOST_TEST(backward_message([](auto&) {}, backward_rms) ==
             "norm_backward mean: is f32[1, 4] on cpu; " + kAbsent + "RMSNorm subtracts no mean");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.mean = {}; }, backward_rms) ==
             "norm_backward grad_beta: is f32[1, 8] on cpu; " + kAbsent + "RMSNorm has no beta");
}

BOOST_AUTO_TEST_CASE(outputs_overlap_nothing) {
  BOOST_TEST(
      layer_message([](NormTensors& t) { t.result.data = t.input.data; }) ==
      "norm result: is bf16[4, 8] on cpu; its memory overlaps that of norm input, which is bf16[4, 8] on cpu; an "
      "output needs its own memory");
  BOOST_TEST(layer_message([](NormTensors& t) { t.rstd.data = t.mean.data; }) ==
             "norm rstd: is f32[1, 4] on cpu; its memory overlaps that of norm mean, which is f32[1, 4] on cpu; an "
             "output needs its own memory");
  BOOST_TEST(given_message([](NormTensors& t) { t.amax.data = t.scale.data; }) ==
             "norm amax: is f32[1, 1] on cpu; its memory overlaps that of norm scale, which is f32[1, 1] on cpu; an "
             "output needs its own memory");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.grad_input.data = t.grad_output.data; }) ==
             "norm_backward grad_input: is bf16[4, 8] on cpu; its memory overlaps that of norm_backward grad_output, "
             "which is bf16[4, 8] on cpu; an output needs its own memory");
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.grad_beta.data = t.grad_gamma.data; }) ==
             "norm_backward grad_beta: is f32[1, 8] on cpu; its memory overlaps that of norm_backward grad_gamma, "
             "which is f32[1, 8] on cpu; an output needs its own memory");
  // Inputs may share memory.
  BOOST_TEST(layer_message([](NormTensors& t) { t.beta.data = t.gamma.data; }) == kNothing);
  BOOST_TEST(backward_message([](NormBackwardTensors& t) { t.input.data = t.grad_output.data; }) == kNothing);
}

BOOST_AUTO_TEST_CASE(a_spec_that_cannot_exist_is_refused_first) {
  const auto error = refused([] { check(NormSpec{}, layer_tensors(), kCpu); });
  BOOST_TEST((error.code == ErrorCode::invalid_spec));
  BOOST_TEST(error.message.find("nothing is written") != std::string::npos, error.message);
  const auto backward = refused([] { check(NormBackwardSpec{.sums = Dtype::bf16}, backward_tensors(), kCpu); });
  BOOST_TEST((backward.code == ErrorCode::invalid_spec));
}

BOOST_AUTO_TEST_SUITE_END()
