// Layers that own their memory, on a stream with an allocator: every byte that a step uses comes through it and goes
// back, but the constants and the state of delayed scales, and the bits are those of a stream without one.
#include <boost/test/unit_test.hpp>

#include <malloc.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/modules/gated_mlp.h"
#include "ingot/nn/modules/inference_linear.h"
#include "ingot/nn/modules/weight_casts.h"
#include "ingot/nn/weights/float8_checkpoint.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/error.h"
#include "nn/counting_backend.h"
#include "nn/module_case.h"
#include "support/counting_allocator.h"
#include "support/expect_error.h"

BOOST_AUTO_TEST_SUITE(test_owner_memory)

using namespace ingot;
using namespace ingot::test;

namespace {

// One layer with its tensors, whatever kind it is.
struct Owned {
  std::function<void(Stream&)> forward, backward;
  std::function<void()> weights_changed, release_saved, release;
  std::function<Bytes(Stream&)> results;
  std::size_t saved_bytes = 0;  // what the plan tells, for the tokens of a step
  std::size_t weight_bytes = 0;
  int constants = 0;  // how many layers have some
};

struct Kind {
  std::string name;
  // The same layer with the same tensors every time.
  std::function<Owned(const LinearConfig&, DelayedScaling&, Backend&, Stream&, Stream* side)> make;
};

template <class Layer, class Case>
Owned owned(std::shared_ptr<Layer> layer, std::shared_ptr<Case> device, const std::function<void()>& changed) {
  return {.forward = [=](Stream& on) { layer->forward(device->forward(), on); },
          .backward = [=](Stream& on) { layer->backward(device->backward(), on); },
          .weights_changed = changed,
          .release_saved = [=] { layer->release_saved(); },
          .release = [=] { layer->release(); },
          .results = [=](Stream& on) { return device->result_bytes(on); }};
}

Kind linear_kind(const std::string& prologue, const std::string& epilogue) {
  const auto make = [=](const LinearConfig& config, DelayedScaling& delayed, Backend& on, Stream& stream,
                        Stream* side) {
    LinearFusion fusion;
    if (!prologue.empty()) fusion.prologue = parse_pointwise(prologue);
    if (!epilogue.empty()) fusion.epilogue = parse_pointwise(epilogue);
    const auto layer = std::make_shared<Float8Linear>(
        on, kLinear, config, LinearOptions{.name = "wq", .fusion = fusion, .delayed = &delayed, .side = side});
    struct Case : LinearCase {
      using LinearCase::LinearCase;
      LinearForward forward() const { return LinearCase::forward(true); }
      LinearBackward backward() const { return LinearCase::backward(true); }
    };
    const Dtype bias = bias_dtype_of(config, Dtype::bf16);
    const auto device =
        std::make_shared<Case>(make_inputs(kShape, Dtype::bf16, bias, 1), Dtype::bf16, bias, on, stream);
    Owned made = owned(layer, device, [=] { layer->weight_changed(); });
    const LinearPlan plan = linear_plan({.config = config, .shape = kLinear, .fusion = fusion});
    made.saved_bytes = plan.saved_memory(kShape.tokens).bytes;
    made.weight_bytes = plan.weight.any ? plan.weight_memory().bytes : 0;
    made.constants = plan.has_constants ? 1 : 0;
    return made;
  };
  return {"linear [" + prologue + "] [" + epilogue + "]", make};
}

Kind norm_kind(const NormOptions& norm) {
  const auto make = [=](const LinearConfig& config, DelayedScaling& delayed, Backend& on, Stream& stream,
                        Stream* side) {
    const auto layer = std::make_shared<NormLinear>(norm.kind, on, shape_of(norm), config,
                                                    LinearOptions{.name = "wq", .delayed = &delayed, .side = side});
    const auto device = std::make_shared<NormCase>(config, norm, Dtype::bf16, 1, on, stream);
    Owned made = owned(layer, device, [=] { layer->weight_changed(); });
    const NormLinearPlan plan = norm_linear_plan({.linear = {.config = config, .shape = kLinear}, .norm = norm});
    made.saved_bytes = plan.saved_memory(kShape.tokens).bytes;
    made.weight_bytes = plan.linear.weight.any ? plan.linear.weight_memory().bytes : 0;
    made.constants = plan.linear.has_constants ? 1 : 0;
    return made;
  };
  return {ingot::test::print(norm), make};
}

Kind mlp_kind(const MlpKind& kind) {
  const auto make = [=](const LinearConfig& config, DelayedScaling& delayed, Backend& on, Stream& stream,
                        Stream* side) {
    const auto device = std::make_shared<MlpCase>(config, kind, Dtype::bf16, 1, on, stream);
    const auto layer = std::make_shared<Mlp>(
        on, kMlp, config,
        MlpOptions{.activation = kind.activation, .norm = kind.norm, .delayed = &delayed, .side = side});
    Owned made = owned(layer, device, [=] { layer->weights_changed(); });
    const MlpPlan plan = mlp_plan({.config = config, .shape = kMlp, .activation = kind.activation, .norm = kind.norm});
    made.saved_bytes = plan.saved_memory(kShape.tokens).bytes;
    for (const LinearPlan* of : {&plan.up.linear, &plan.down}) {
      made.weight_bytes += of->weight.any ? of->weight_memory().bytes : 0;
      made.constants += of->has_constants ? 1 : 0;
    }
    return made;
  };
  return {std::string("mlp ") + kind.activation, make};
}

std::vector<Kind> kinds() {
  std::vector<Kind> all{linear_kind("", ""), linear_kind("tanh(x)", ""), linear_kind("", "silu(x)")};
  for (const NormOptions& norm : {kNorms[0], kNorms[2], kNorms[4]}) all.push_back(norm_kind(norm));
  for (const MlpKind& kind : kMlps) all.push_back(mlp_kind(kind));
  return all;
}

// Of the stream's memory; tells when some goes back.
class ToldAllocator final : public StreamAllocator {
 public:
  void* allocate(std::size_t bytes, CUstream_st* stream) override { return memory.allocate(bytes, stream); }
  void release(void* data, std::size_t bytes, CUstream_st* stream) noexcept override {
    if (before_release) before_release();
    memory.release(data, bytes, stream);
  }

  CountingAllocator memory;
  std::function<void()> before_release;
};

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Stream stream{*backend};
  CountingBackend counting{*backend, &stream};
  CountingAllocator allocator;
  Stream on{counting, nullptr, allocator};
  Stream bare{counting};

  static bool delays(const LinearConfig& config) {
    const LinearPlan plan = linear_plan({.config = config, .shape = kLinear});
    for (const auto* cast : plan.scaling.all()) {
      if (*cast && (*cast)->scaling == Scaling::delayed) return true;
    }
    return false;
  }

  // Two steps, the second with a new weight, and what each left.
  static std::vector<Bytes> two_steps(const Owned& layer, DelayedScaling& delayed, Stream& on) {
    std::vector<Bytes> all;
    for (int i = 0; i < 2; ++i) {
      layer.weights_changed();
      layer.forward(on);
      layer.backward(on);
      delayed.sync_amax_history(on);
      all.push_back(layer.results(on));
    }
    return all;
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(owner_memory, Fixture)

BOOST_AUTO_TEST_CASE(every_byte_of_a_step_comes_from_the_allocator_and_goes_back) {
  for (const LinearConfig& config : every_config()) {
    for (const Kind& kind : kinds()) {
      BOOST_TEST_CONTEXT(kind.name << ", " << ingot::print(config)) {
        DelayedScaling other_delayed(counting);
        const Owned other = kind.make(config, other_delayed, counting, bare, nullptr);
        counting.calls.clear();
        const std::vector<Bytes> expected = two_steps(other, other_delayed, bare);
        const std::vector<std::string> calls = std::exchange(counting.calls, {});

        DelayedScaling delayed(counting);
        const Owned layer = kind.make(config, delayed, counting, bare, nullptr);
        const int before = counting.allocations;
        BOOST_TEST((two_steps(layer, delayed, on) == expected));
        BOOST_TEST_CHECK(counting.calls == calls, boost::test_tools::per_element());
        BOOST_TEST(counting.allocations == before + layer.constants + (delays(config) ? 1 : 0));

        BOOST_TEST(allocator.live_bytes == layer.saved_bytes + layer.weight_bytes);
        layer.release_saved();
        BOOST_TEST(allocator.live_bytes == layer.weight_bytes);
        check_contains(error_of([&] { layer.backward(on); }, ErrorCode::invalid_argument),
                       {"has no forward() before it that kept what it needs: run forward() first, or recompute()"});
        layer.forward(on);
        layer.backward(on);
        BOOST_TEST(allocator.live_bytes == layer.saved_bytes + layer.weight_bytes);
        layer.release();
        BOOST_TEST(allocator.live.empty());
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(a_layer_gives_its_memory_back_when_it_ends) {
  for (const Kind& kind : kinds()) {
    DelayedScaling delayed(counting);
    {
      const Owned layer = kind.make(rowwise(), delayed, counting, bare, nullptr);
      layer.forward(on);
      BOOST_TEST(!allocator.live.empty());
    }
    BOOST_TEST(allocator.live.empty());
  }
}

// The weight's codes stay where they are, so that graphs and lists can hold their address.
BOOST_AUTO_TEST_CASE(codes_of_a_weight_stay_in_their_place) {
  Float8Linear linear(counting, kLinear, rowwise(), {.name = "wq"});
  const LinearCase device(make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, counting, bare);
  std::vector<void*> places;
  const std::size_t weight_bytes = linear_plan({.config = rowwise(), .shape = kLinear}).weight_memory().bytes;
  counting.after_cast = [&](const CastSpec&, const CastTensors& t, Stream&) {
    if (t.input.data == device.weight.view().data) places.push_back(t.codes.data);
  };
  for (int i = 0; i < 3; ++i) {
    linear.weight_changed();
    linear.forward(device.forward(true), on);
  }
  BOOST_REQUIRE(places.size() == 3U);
  BOOST_TEST(places[1] == places[0]);
  BOOST_TEST(places[2] == places[0]);
  BOOST_TEST(allocator.live.at(places[0]) == weight_bytes);
}

BOOST_AUTO_TEST_CASE(a_list_writes_codes_in_the_allocators_memory) {
  Float8Linear linear(counting, kLinear, rowwise(), {.name = "wq"});
  const LinearCase device(make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, counting, bare);
  WeightCasts casts(counting);
  const std::size_t weight_bytes = linear_plan({.config = rowwise(), .shape = kLinear}).weight_memory().bytes;
  casts.add(linear, device.weight, on);
  BOOST_TEST(allocator.live_bytes == weight_bytes);
  casts.run(on);
  linear.forward(device.forward(true), on);
  linear.release();
  BOOST_TEST(allocator.live_bytes == weight_bytes, "the list writes there still");
}

// Without an allocator nothing changes: a layer may be given a stream of either kind at any time.
BOOST_AUTO_TEST_CASE(streams_with_and_without_an_allocator_may_take_turns) {
  for (const Kind& kind : kinds()) {
    BOOST_TEST_CONTEXT(kind.name) {
      DelayedScaling delayed(counting);
      const Owned layer = kind.make(rowwise(), delayed, counting, bare, nullptr);
      const std::vector<Bytes> expected = two_steps(layer, delayed, bare);
      const int allocations = counting.allocations;
      BOOST_TEST((two_steps(layer, delayed, on) == expected));
      BOOST_TEST((two_steps(layer, delayed, bare) == expected));
      BOOST_TEST(counting.allocations == allocations);
      layer.release();
      BOOST_TEST(allocator.live.empty());
    }
  }
}

BOOST_AUTO_TEST_CASE(scratch_goes_back_behind_the_side_stream) {
  ToldAllocator told;
  Stream with(counting, nullptr, told);
  Stream side(counting);
  for (const Kind& kind : kinds()) {
    BOOST_TEST_CONTEXT(kind.name) {
      DelayedScaling delayed(counting);
      const Owned layer = kind.make(rowwise(), delayed, counting, bare, &side);
      layer.weights_changed();
      layer.forward(with);
      counting.waiting.clear();
      int released = 0;
      told.before_release = [&] {
        ++released;
        BOOST_TEST(!counting.waiting.empty());
        BOOST_TEST(counting.waiting.back() == &with);
      };
      layer.backward(with);
      BOOST_TEST(released == 1);
      counting.waiting.clear();
      counting.gemm_fails = true;
      BOOST_CHECK_THROW(layer.backward(with), Error);
      BOOST_TEST(released == 2);
      counting.gemm_fails = false;
      told.before_release = {};
    }
  }
  BOOST_TEST(told.memory.live.empty());
}

BOOST_AUTO_TEST_CASE(an_allocator_that_fails_ends_a_step_and_not_the_layer) {
  for (const Kind& kind : kinds()) {
    BOOST_TEST_CONTEXT(kind.name) {
      DelayedScaling delayed(counting);
      const Owned layer = kind.make(rowwise(), delayed, counting, bare, nullptr);
      const std::vector<Bytes> expected = two_steps(layer, delayed, bare);
      counting.calls.clear();
      allocator.gives_null = true;
      check_contains(error_of([&] { layer.forward(on); }, ErrorCode::out_of_memory),
                     {"stream allocator: gave null for"});
      BOOST_TEST(counting.calls.empty());
      check_contains(error_of([&] { layer.backward(on); }, ErrorCode::invalid_argument),
                     {"has no forward() before it"});
      allocator.gives_null = false;
      BOOST_TEST((two_steps(layer, delayed, on) == expected));
    }
  }
}

// What no memory of a graph could be: the codes outlive it.
BOOST_AUTO_TEST_CASE(codes_of_a_weight_are_not_taken_during_a_capture) {
  Float8Linear linear(counting, kLinear, rowwise(), {.name = "wq"});
  const LinearCase device(make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, counting, bare);
  const std::size_t weight_bytes = linear_plan({.config = rowwise(), .shape = kLinear}).weight_memory().bytes;
  counting.is_capturing = true;
  BOOST_TEST(error_of([&] { linear.forward(device.forward(true), on); }, ErrorCode::invalid_argument) ==
             "stream: is capturing a graph, and the layer needs " + std::to_string(weight_bytes) +
                 " bytes that outlive it, but has only 0: run the step once before capturing it");
}

// Lengths change from step to step: neither the backend nor the heap gives any memory, and what is held is what the
// last step keeps.
BOOST_AUTO_TEST_CASE(a_thousand_steps_of_varying_length_leave_nothing) {
  LinearConfig config = rowwise();
  Float8Linear linear(counting, kLinear, config, {.name = "wq"});
  const LinearCase device(make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, counting, bare);
  const LinearPlan plan = linear_plan({.config = config, .shape = kLinear});
  int allocations = 0;
  std::size_t heap = 0;
  for (std::int64_t i = 0; i < 1000; ++i) {
    const std::int64_t tokens = 1 + i * 7 % kShape.tokens;
    LinearForward forward = device.forward(true);
    LinearBackward backward = device.backward(true);
    for (Tensor* tensor : {&forward.input, &forward.output, &backward.grad_output, &backward.grad_input}) {
      tensor->rows = tokens;
    }
    linear.weight_changed();
    linear.forward(forward, on);
    linear.backward(backward, on);
    BOOST_REQUIRE(allocator.live_bytes == plan.saved_memory(tokens).bytes + plan.weight_memory().bytes);
    counting.calls.clear();
    counting.streams.clear();
    if (i == 20) {
      allocations = counting.allocations;
      heap = mallinfo2().uordblks;
    }
  }
  BOOST_TEST(counting.allocations == allocations);
  BOOST_TEST(mallinfo2().uordblks <= heap + 4096);
}

BOOST_AUTO_TEST_CASE(an_inference_layer_takes_its_scratch_there) {
  const LinearCase device(make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, counting, bare);
  const LinearPlan plan =
      linear_plan({.config = rowwise_folded(), .shape = {kLinear.in_features, kLinear.out_features}});
  const PoisonedRegion region(plan.weight_memory().bytes, counting, bare);
  const Float8View codes = cast_weight(plan, counting, {.weight = device.weight, .into = region}, {bare});
  InferenceLinear layer(counting, weight_state(plan, counting, codes, bare), bare, {.name = "wq"});
  layer.forward({.input = device.input, .output = device.output}, bare);
  const Bytes expected = device.output.bytes(bare);
  const int allocations = counting.allocations;
  layer.forward({.input = device.input, .output = device.grad_output}, on);
  BOOST_TEST((device.grad_output.bytes(bare) == expected));
  BOOST_TEST(counting.allocations == allocations);
  BOOST_TEST(allocator.most_bytes == layer.plan().forward_scratch(kShape.tokens, LinearPass::inference).bytes);
  BOOST_TEST(allocator.live.empty());
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
