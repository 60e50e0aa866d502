// Where the CUDA backend's first pass of a cast writes the values of a costly expression, and the main pass reads them
// (the passes `keeping` and `kept`), by a dry run. tests/runtime/test_backends_gpu.cpp tests the results.
#include <boost/test/unit_test.hpp>
#include <memory>
#include <vector>

#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/jit/kernel.h"
#include "support/run_case.h"

BOOST_AUTO_TEST_SUITE(test_kept_values)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr const char* kTensor = "cast bf16->e5m2 of=grad*sigmoid(x) scale=tensor out=codes,transposed";
constexpr const char* kRowsAndColumns = "cast bf16->e5m2 of=grad*sigmoid(x) scale=row+col out=codes,transposed";
// Of bf16: with fewer values than the first pass keeps, and with as many.
constexpr Shape kSmall{3056, 4096};
constexpr Shape kLarge{3072, 4096};

struct Hook : LaunchHook {
  void before(const Stream&) override {}
  void after(const KernelSpec&, Pass pass, const Stream&) override { passes.push_back(pass); }
  std::vector<Pass> passes{};
};

// Hears of the backend's launches while it lives.
class Hooked {
 public:
  explicit Hooked(Backend& backend) : backend_(&backend) { backend.device_api().set_launch_hook(&hook_); }
  ~Hooked() { backend_->device_api().set_launch_hook(nullptr); }
  Hooked(const Hooked&) = delete;
  Hooked& operator=(const Hooked&) = delete;
  const std::vector<Pass>& passes() const { return hook_.passes; }

 private:
  Backend* backend_;
  Hook hook_{};
};

struct Calls {
  std::unique_ptr<PlacedCase> placed(const char* line, Shape shape) {
    const Case c{.spec = parse(line), .shape = shape};
    return std::make_unique<PlacedCase>(c, maker.inputs(c), dry.backend(), stream);
  }
  std::vector<Pass> launched(const char* line, Shape shape) {
    const auto call = placed(line, shape);
    const Hooked hooked(dry.backend());
    call->enqueue(stream);
    return hooked.passes();
  }
  // The passes of a call, and then of another that a Graph captures.
  std::vector<Pass> captured_after(Shape first, Shape captured) {
    const auto before = placed(kTensor, first);
    const auto call = placed(kTensor, captured);
    const Hooked hooked(dry.backend());
    before->enqueue(stream);
    const Graph graph(stream, [&] { call->enqueue(stream); });
    return hooked.passes();
  }
  DryRun dry{gpu_named("h200")};
  Stream stream{dry.backend()};
  InputMaker maker{};
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(kept_values, Calls)

BOOST_AUTO_TEST_CASE(of_costly_expressions_of_two_matrices) {
  const std::vector kept{Pass::keeping, Pass::kept};
  BOOST_TEST((launched(kTensor, kLarge) == kept));
  BOOST_TEST((launched(kRowsAndColumns, {2048, 4096}) == kept));
  BOOST_TEST((launched("cast bf16->e5m2 of=grad*sigmoid(x) scale=tensor out=codes,transposed,sum:f32", kLarge) ==
              std::vector{Pass::keeping, Pass::kept, Pass::finish}));
  // A small cast computes its values twice: the L2 keeps both matrices for the second pass.
  const std::vector twice{Pass::first, Pass::main};
  BOOST_TEST((launched(kTensor, kSmall) == twice));
  // Nor for a cheap expression, for one matrix, and for scales that need no first pass.
  BOOST_TEST((launched("cast bf16->e5m2 of=grad*max(x,0) scale=tensor out=codes,transposed", kLarge) == twice));
  BOOST_TEST((launched("cast bf16->e5m2 of=grad*sigmoid(x) scale=tensor out=codes,transposed fast", kLarge) == twice));
  BOOST_TEST((launched("cast bf16->e5m2 of=sigmoid(x) scale=tensor out=codes,transposed", kLarge) == twice));
  BOOST_TEST((launched("cast bf16->e5m2 of=grad*sigmoid(x) scale=tensor out=codes,transposed given", kLarge) ==
              std::vector{Pass::main}));
}

// A Graph has its own scratch memory, and of what it captures, what was loaded before decides.
BOOST_AUTO_TEST_CASE(in_a_graph) {
  BOOST_TEST((captured_after(kLarge, kLarge) == std::vector{Pass::keeping, Pass::kept, Pass::keeping, Pass::kept}));
}
BOOST_AUTO_TEST_CASE(in_a_graph_after_a_small_matrix) {
  BOOST_TEST((captured_after(kSmall, kLarge) == std::vector{Pass::first, Pass::main, Pass::first, Pass::main}));
}
BOOST_AUTO_TEST_CASE(in_a_graph_after_a_large_matrix) {
  BOOST_TEST((captured_after(kLarge, kSmall) == std::vector{Pass::keeping, Pass::kept, Pass::keeping, Pass::kept}));
}
// A capture that the caller began has no more memory than earlier calls took.
BOOST_AUTO_TEST_CASE(in_a_capture_of_the_caller) {
  const auto driver = make_dry_driver(gpu_named("h200"));
  const Driver::Api& api = driver->api();
  const auto small = placed(kTensor, kSmall);
  const auto middle = placed(kTensor, kLarge);
  const auto large = placed(kTensor, {8192, 4096});
  small->enqueue(stream);
  middle->enqueue(stream);
  const Hooked hooked(dry.backend());
  BOOST_TEST(api.cuStreamBeginCapture(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
  middle->enqueue(stream);
  large->enqueue(stream);
  CUgraph graph = nullptr;
  BOOST_TEST(api.cuStreamEndCapture(stream.handle(), &graph) == CUDA_SUCCESS);
  BOOST_TEST(api.cuGraphDestroy(graph) == CUDA_SUCCESS);
  large->enqueue(stream);
  BOOST_TEST(
      (hooked.passes() == std::vector{Pass::keeping, Pass::kept, Pass::first, Pass::main, Pass::keeping, Pass::kept}));
}
BOOST_AUTO_TEST_CASE(scratch_for_captures) {
  BOOST_TEST(!stream.has_scratch(std::size_t{1} << 20));
  stream.scratch(std::size_t{1} << 20);
  BOOST_TEST(stream.has_scratch(std::size_t{1} << 20));
  BOOST_TEST(!stream.has_scratch(std::size_t{1} << 30));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
