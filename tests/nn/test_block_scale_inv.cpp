// Layers with scale_inv of groups and blocks: what they cast in every step has its scale_inv in cuBLASLt's layout, and
// scale_inv row by row give the same bits.
#include <boost/test/unit_test.hpp>

#include <cstddef>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/observe/monitor.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/gemm/cublaslt_rules.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/util/read_file.h"
#include "nn/function_case.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_block_scale_inv)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr CaseShape kShape{200, 512, 384};  // tokens, in_features, out_features: several groups along each
constexpr LinearShape kLinear{kShape.in_features, kShape.out_features, false};

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(2);
  Stream stream{*backend};

  LinearCase make() {
    return {make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, *backend, stream};
  }
};

// Which scale_inv of each GEMM cuBLASLt could not read in place: {a's, b's}.
class Moved final : public LayerObserver {
 public:
  void cast(const CastEvent&, Stream&) override {}
  void gemm(const GemmEvent& event, Stream&) override {
    const auto& [spec, tensors] = std::pair<const GemmSpec&, const GemmTensors&>(event.spec, event.tensors);
    const MatmulSize size = gemm_size(spec, tensors);
    found[std::string(event.role)] = {cublaslt_scale_inv(tensors.scale_inv_a, spec.scale_a, size.m, size.k).moved,
                                      cublaslt_scale_inv(tensors.scale_inv_b, spec.scale_b, size.n, size.k).moved};
  }

  std::map<std::string, std::pair<bool, bool>> found;
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(block_scale_inv, Fixture)

// The weight's blocks serve both GEMMs, and so have the layout that one of them reads.
BOOST_AUTO_TEST_CASE(only_those_of_the_transposed_weight_are_moved) {
  Moved moved;
  const LinearCase device = make();
  Float8Linear layer(*backend, kLinear, blockwise(), {.name = "wq", .observer = &moved});
  for (const bool keeps : {true, false}) {
    moved.found.clear();
    LinearForward forward = device.forward(false);
    forward.keep_for_backward = keeps;
    layer.forward(forward, stream);
    BOOST_TEST((moved.found.at("output") == std::pair(false, false)));
    if (!keeps) continue;
    layer.backward(device.backward(false), stream);
    BOOST_TEST((moved.found.at("grad_input") == std::pair(false, true)));
    BOOST_TEST((moved.found.at("grad_weight") == std::pair(false, false)));
  }
}

// A given input may come from a cast of the caller's own.
BOOST_AUTO_TEST_CASE(a_given_inputs_scale_inv_lie_in_either_order) {
  const LinearCase device = make();
  Float8Linear alone(*backend, kLinear, blockwise());
  alone.forward(device.forward(false), stream);
  alone.backward(device.backward(false), stream);
  const std::vector<std::uint8_t> expected = device.result_bytes(stream);

  FunctionLayer layer({.name = "k", .config = blockwise(), .shape = kLinear, .given_input = true}, *backend, stream);
  layer.cast_weight(device.weight, stream);
  Float8Tensor input;
  const CastSpec& spec = layer.plan.given_input.spec;
  cast_to(input, spec, device.input, *backend, stream);
  const Tensor by_row = input.scale_inv;
  const std::int64_t groups = kShape.in_features / 128;
  std::vector<float> moved(static_cast<std::size_t>(by_row.cols));
  for (std::int64_t i = 0; i < by_row.cols; ++i) {
    moved[static_cast<std::size_t>(i % groups * kShape.tokens + i / groups)] =
        static_cast<const float*>(by_row.data)[i];
  }
  const Tensor by_group = matrix(moved.data(), Dtype::f32, groups, kShape.tokens, backend->device());
  for (const Tensor& scale_inv : {by_row, by_group}) {
    LinearCase again = make();
    again.poison_results(stream);
    FunctionSaved kept(layer.plan, kShape.tokens, *backend, stream);
    LinearForwardTensors forward = layer.forward_tensors(again.forward(false), &kept.saved, {});
    forward.given_input = {.codes = input.codes,
                           .transposed = input.transposed,
                           .scale_inv = scale_inv,
                           .transposed_scale_inv = input.transposed_scale_inv};
    linear_forward(layer.plan, *backend, forward, {.stream = stream});
    const PoisonedRegion use(layer.plan.backward_scratch(kShape.tokens).bytes, *backend, stream);
    LinearBackwardTensors backward =
        layer.backward_tensors(again.backward(false), again.forward(false), kept.saved, use);
    backward.given_input = forward.given_input;
    linear_backward(layer.plan, *backend, backward, {.stream = stream});
    BOOST_TEST((again.output.bytes(stream) == device.output.bytes(stream)));
    BOOST_TEST((again.grad_weight.bytes(stream) == device.grad_weight.bytes(stream)));
  }

  LinearForwardTensors forward = layer.forward_tensors(device.forward(false), nullptr, {});
  forward.given_input = {.codes = input.codes, .scale_inv = by_group};
  std::swap(forward.given_input.scale_inv.rows, forward.given_input.scale_inv.cols);
  forward.given_input.scale_inv.row_stride = groups;
  BOOST_TEST(
      error_of([&] { linear_forward(layer.plan, *backend, forward, {.stream = stream}); },
               ErrorCode::invalid_argument) ==
      "linear \"k\" given_input.scale_inv: is f32[200, 4] on cpu, but must be [4, 200] = a row of scale_inv for each "
      "group of columns");
}

// A dump has them row by row.
BOOST_AUTO_TEST_CASE(a_dump_has_them_row_by_row) {
  const TemporaryDirectory folder;
  const LinearCase device = make();
  Monitor monitor(*backend);
  Float8Linear layer(*backend, kLinear, blockwise(), {.name = "wq", .observer = &monitor});
  monitor.dump("wq", "input", folder.path());
  layer.forward(device.forward(false), stream);
  monitor.step_done(stream);
  BOOST_TEST(monitor.records().front().sqnr() > 25);

  Float8Tensor input;
  cast_to(input, {.scale = kRowGroups}, device.input, *backend, stream);
  const Tensor scale_inv = input.scale_inv;
  const std::string file = read_file(folder.path() / "wq.input.step0.scale_inv.npy", 1 << 20, "");
  const std::size_t bytes = static_cast<std::size_t>(scale_inv.cols) * sizeof(float);
  BOOST_REQUIRE(file.size() > bytes);
  BOOST_TEST(file.find("'shape': (1, 800)") != std::string::npos);
  BOOST_TEST(std::memcmp(file.data() + file.size() - bytes, scale_inv.data, bytes) == 0);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
