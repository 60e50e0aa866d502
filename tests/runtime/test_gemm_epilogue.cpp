// Epilogues of GEMMs on the CPU reference, against float64.
#include <algorithm>
#include <array>
#include <boost/test/unit_test.hpp>
#include <cstdint>
#include <memory>
#include <string>

#include "cases.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/compare.h"
#include "support/epilogue_reference.h"
#include "support/run_case.h"

BOOST_AUTO_TEST_SUITE(test_gemm_epilogue)

using namespace ingot;
using namespace ingot::test;

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  InputMaker maker;
  EpilogueReference reference;

  std::string fault(const Case& c) {
    const SharedMatrices inputs = maker.inputs(c);
    const Matrices outputs = run(c, inputs, *backend, stream);
    const std::string found = damage(outputs);
    return found.empty() ? reference.fault(c, inputs, outputs, 0) : found;
  }
};

BOOST_FIXTURE_TEST_SUITE(on_the_cpu, Fixture)

BOOST_AUTO_TEST_CASE(every_epilogue) {
  constexpr std::array kShapes{Shape{1, 1, 1}, Shape{37, 131, 67}, Shape{70, 600, 128}, Shape{5, 7, 0}};
  for (const GemmSpec& spec : epilogue_specs()) {
    for (const Shape& shape : kShapes) {
      for (const Input input : {Input::normal, Input::integers, Input::zeros, Input::nan}) {
        const Case c{.spec = spec, .shape = shape, .input = input, .placement = {3, 1}};
        const std::string found = fault(c);
        BOOST_TEST(found.empty(), name(c) << ": " << found);
      }
    }
  }
}

// Rows in two blocks of the reference, and several blocks of columns.
BOOST_AUTO_TEST_CASE(more_than_a_block) {
  for (const char* const line : {"gemm e4m3fn*e4m3fn->e4m3fn bias c=f32 epilogue=silu(x)*w[col]*r[row] also=amax",
                                 "gemm e4m3fn*e5m2->bf16 epilogue=x*gate also=preactivation,amax"}) {
    const Case c{.spec = parse(line), .shape = {1600, 530, 20}};
    const std::string found = fault(c);
    BOOST_TEST(found.empty(), name(c) << ": " << found);
  }
}

// Nothing to multiply and nothing to write: an FP8 output still gets its scale_inv.
BOOST_AUTO_TEST_CASE(no_elements) {
  for (const Shape shape : {Shape{0, 8, 16}, Shape{8, 0, 16}}) {
    const Case c{.spec = parse("gemm e4m3fn*e4m3fn->e5m2 also=amax"), .shape = shape};
    const std::string found = fault(c);
    BOOST_TEST(found.empty(), name(c) << ": " << found);
  }
}

// out = sums + beta * out, applied twice: a gradient that is accumulated.
BOOST_AUTO_TEST_CASE(c_may_be_the_output) {
  const Case c{.spec = parse("gemm e4m3fn*e4m3fn->f32 scale=row,row c=f32"), .shape = {33, 50, 40}};
  const SharedMatrices inputs = maker.inputs(c);
  const Matrices apart = run(c, inputs, *backend, stream);
  PlacedCase placed(c, inputs, *backend, stream);
  const Tensor from = placed.tensor("c");
  const Tensor out = placed.tensor("out");
  for (std::int64_t r = 0; r < out.rows; ++r) {
    const auto row = [&](const Tensor& tensor) { return static_cast<float*>(tensor.data) + r * tensor.row_stride; };
    std::copy_n(row(from), out.cols, row(out));
  }
  placed.tensor("c") = out;
  placed.enqueue(stream);
  BOOST_TEST(bit_difference("out", apart.at("out"), placed.outputs(stream).at("out")) == "");
}

// With beta = 0, c is not read, whatever it holds, and sums are the same as without c, including the sign of a zero.
BOOST_AUTO_TEST_CASE(without_beta_c_is_not_read) {
  for (const GemmSpec& spec : epilogue_specs()) {
    if (!spec.epilogue.c) continue;
    for (const Input input : {Input::normal, Input::zeros}) {
      const Case c{.spec = spec, .shape = {37, 131, 67}, .input = input, .placement = {3, 1}, .beta = 0};
      const SharedMatrices inputs = with_unset_c(c, maker.inputs(c));
      const Matrices outputs = run(c, inputs, *backend, stream);
      const std::string found = reference.fault(c, inputs, outputs, 0);
      BOOST_TEST(found.empty(), name(c) << ": " << found);
      GemmSpec plain = spec;
      plain.epilogue.c.reset();
      Case without = c;
      without.spec = plain;
      SharedMatrices rest = inputs;
      rest.erase("c");
      const Matrices expected = run(without, rest, *backend, stream);
      for (const auto& [what, matrix] : outputs) BOOST_TEST(bit_difference(what, expected.at(what), matrix) == "");
    }
  }
}

// The reference detects one wrong element in every output.
BOOST_AUTO_TEST_CASE(a_wrong_output_is_seen) {
  const Case c{.spec = parse("gemm e4m3fn*e4m3fn->e4m3fn scale=row,row c=bf16 epilogue=silu(x)*gate "
                             "also=preactivation,amax"),
               .shape = {20, 30, 64}};
  const SharedMatrices inputs = maker.inputs(c);
  const Matrices outputs = run(c, inputs, *backend, stream);
  BOOST_TEST(reference.fault(c, inputs, outputs, 0) == "");
  for (const auto& [what, matrix] : outputs) {
    Matrices wrong = outputs;
    GuardedMatrix& changed = wrong.at(what);
    const std::int64_t r = changed.rows() / 2;
    const std::int64_t col = changed.cols() / 2;
    changed.set_bits(r, col, changed.bits(r, col) ^ (what == "out" ? 8U : what == "preactivation" ? 64U : 1U << 16U));
    const std::string found = reference.fault(c, inputs, wrong, 0);
    BOOST_TEST(found.starts_with(what), what << ": " << found);
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
