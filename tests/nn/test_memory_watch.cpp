// ContextOptions::check_memory: memory that changed between forward and backward or was freed is found and named, and
// right steps are left alone. On the CPU reference, which knows of no allocation; the counting backend tells of freed
// ones.
#include <boost/test/unit_test.hpp>

#include <memory>
#include <string>
#include <vector>

#include "ingot/nn/modules/gated_mlp.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/error.h"
#include "nn/counting_backend.h"
#include "nn/experts_mlp_case.h"
#include "nn/grouped_linear_case.h"
#include "nn/module_case.h"
#include "support/expect_error.h"
#include "support/function_ref.h"

BOOST_AUTO_TEST_SUITE(test_memory_watch)

using namespace ingot;
using namespace ingot::test;

namespace {

const std::string kChanged = "changed between forward and backward, which reads it: ";
const std::string kKeep = kChanged + "keep its values until the backward is done";
const std::string kSaved =
    kChanged +
    "it was overwritten, or another forward was given the same memory: give each forward its own memory until its "
    "backward is done";
const std::string kCodes =
    kChanged + "cast a weight again, or write its codes, only when the backwards of its forwards are done";
const std::string kWeight = kChanged + "update the weight after the backward";

LinearFusion fusion_of(const char* prologue, const char* epilogue) {
  LinearFusion fusion;
  if (*prologue != 0) fusion.prologue = parse_pointwise(prologue);
  if (*epilogue != 0) fusion.epilogue = parse_pointwise(epilogue);
  return fusion;
}

// Both operands of the gradients are made of the caller's tensors again.
LinearConfig again() {
  LinearConfig config = rowwise();
  config.input = config.weight = OtherCodes::again;
  return config;
}

struct Fixture {
  Fixture() { backend.device_api().set_checks_memory(true); }

  std::unique_ptr<Backend> cpu = make_cpu_backend(1);
  Stream inner{*cpu};
  CountingBackend backend{*cpu, &inner};
  Stream stream{backend};
  DelayedScaling none{backend};

  LinearCase make(unsigned seed, const LinearConfig& config) {
    const Dtype bias = bias_dtype_of(config, Dtype::bf16);
    return {make_inputs(kShape, Dtype::bf16, bias, seed), Dtype::bf16, bias, backend, stream};
  }
  // Nothing is launched by a call that is refused.
  std::string refusal(test::FunctionRef<void()> act) const {
    const std::size_t calls = backend.calls.size();
    std::string message = error_of(act, ErrorCode::invalid_argument);
    BOOST_TEST(backend.calls.size() == calls);
    return message;
  }
  // Flips a bit of its last byte, as something else might, and flips it back.
  template <class Act>
  std::string with_changed(const Tensor& tensor, const Act& act) const {
    std::byte& last = static_cast<std::byte*>(tensor.data)[byte_span(tensor, "tensor") - 1];
    last ^= std::byte{1};
    std::string message = refusal(act);
    last ^= std::byte{1};
    return message;
  }
};

Tensor bytes_of(const MemoryRegion& region) {
  const auto count = static_cast<std::int64_t>(region.bytes);
  return {.data = region.data, .dtype = Dtype::e4m3fn, .rows = 1, .cols = count, .row_stride = count};
}
Tensor ends_in(const ExpertEnds& ends) {
  return vector(const_cast<std::int32_t*>(ends.data), Dtype::f32, ends.experts, ends.device);
}
Tensor index_in(const RowIndex& index) {
  return vector(const_cast<std::int32_t*>(index.data), Dtype::f32, index.rows, index.device);
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(memory_watch, Fixture)

BOOST_AUTO_TEST_CASE(nothing_is_looked_at_unless_asked_for) {
  backend.device_api().set_checks_memory(false);
  const LinearCase device = make(1, rowwise());
  FunctionLayer layer({.config = rowwise(), .shape = kLinear}, backend, stream);
  layer.cast_weight(device.weight, stream);
  FunctionSaved kept(layer.plan, kShape.tokens, backend, stream);
  const int copies = backend.copies_to_host;
  layer.forward(device.forward(true), &kept.saved, stream);
  layer.backward(device.backward(true), device.forward(true), kept.saved, stream);
  BOOST_TEST(backend.copies_to_host == copies);
  backend.device_api().set_checks_memory(true);
  layer.backward(device.backward(true), device.forward(true), kept.saved, stream);  // of a forward that noted nothing
  // Nor is what a forward before it has noted.
  layer.forward(device.forward(true), &kept.saved, stream);
  const LinearCase other = make(2, rowwise());
  backend.device_api().set_checks_memory(false);
  layer.forward(other.forward(true), &kept.saved, stream);
  backend.device_api().set_checks_memory(true);
  layer.backward(other.backward(true), other.forward(true), kept.saved, stream);
}

// Whatever a recipe keeps or reads again, and however much of it a backward is given.
BOOST_AUTO_TEST_CASE(right_steps_are_left_alone) {
  for (const LinearConfig& config : every_config()) {
    for (const auto& [prologue, epilogue] :
         {std::pair{"", ""}, {"silu(x) * up", "sigmoid(x)"}, {"tanh(x)", "x * gate"}, {"", "silu(x)"}}) {
      BOOST_TEST_CONTEXT(ingot::print(config) << " [" << prologue << "] [" << epilogue << "]") {
        const LinearFusion fusion = fusion_of(prologue, epilogue);
        const LinearCase device = make(1, config);
        const DeviceMatrix up(Random(8).normal(kShape.tokens, kShape.in_features, Dtype::bf16), Dtype::bf16, backend,
                              stream);
        const DeviceMatrix gate(Random(9).normal(kShape.tokens, kShape.out_features, Dtype::bf16), Dtype::bf16, backend,
                                stream);
        LinearForward forward = device.forward(true);
        if (!fusion.prologue.inputs().empty()) forward.prologue_inputs[0] = up;
        if (!fusion.epilogue.inputs().empty()) forward.epilogue_inputs[0] = gate;
        DelayedScaling delayed(backend);
        Float8Linear owner(backend, kLinear, config, {.fusion = fusion, .delayed = &delayed});
        for (int step = 0; step < 2; ++step) {
          owner.forward(forward, stream);
          owner.backward(device.backward(true), stream);
          owner.weight_changed();
        }
        FunctionLayer layer({.config = config, .shape = kLinear, .fusion = fusion}, backend, stream);
        layer.use(delayed);
        FunctionSaved kept(layer.plan, kShape.tokens, backend, stream);
        layer.forward(forward, &kept.saved, stream, true);
        layer.backward(device.backward(true), forward, kept.saved, stream);
        LinearForward less = forward;
        if (!layer.plan.gradient.of_output()) less.output = {};
        less.prologue_inputs = {};
        layer.backward({.grad_output = device.grad_output, .grad_input = device.grad_input}, less, kept.saved, stream);
        layer.backward({.grad_output = device.grad_output, .grad_weight = device.grad_weight}, forward, kept.saved,
                       stream);
        layer.forward(forward, nullptr, stream);
        layer.recompute(forward, kept.saved, stream);
        layer.backward(device.backward(true), forward, kept.saved, stream);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(right_steps_of_modules_are_left_alone) {
  for (const Recipe& recipe : recipes()) {
    if (recipe.name == "delayed") continue;
    for (const NormOptions& norm : kNorms) {
      const NormCase device(recipe.config, norm, Dtype::bf16, 1, backend, stream);
      const NormFunctions layer({.linear = {.config = recipe.config, .shape = kLinear}, .norm = norm}, none, backend,
                                stream);
      Saved<NormLinearPlan> kept(layer.plan, kShape.tokens, backend, stream);
      layer.forward(device.forward(), &kept.saved, stream);
      layer.backward(device.backward(), device.forward(), kept.saved, stream);
      layer.recompute(device.forward(), kept.saved, stream);
      layer.backward(device.backward(), device.forward(), kept.saved, stream);
      NormLinear owner(norm.kind, backend, shape_of(norm), recipe.config);
      owner.forward(device.forward(), stream);
      owner.backward(device.backward(), stream);
    }
    for (const MlpKind& kind : kMlps) {
      const MlpCase device(recipe.config, kind, Dtype::bf16, 1, backend, stream);
      const MlpFunctions layer(plan_options(recipe.config, kind), none, backend, stream);
      Saved<MlpPlan> kept(layer.plan, kShape.tokens, backend, stream);
      layer.forward(device.forward(), &kept.saved, stream);
      layer.backward(device.backward(), device.forward(), kept.saved, stream);
      layer.recompute(device.forward(), kept.saved, stream);
      layer.backward(device.backward(), device.forward(), kept.saved, stream);
      Mlp owner(backend, kMlp, recipe.config, {.activation = kind.activation, .norm = kind.norm});
      owner.forward(device.forward(), stream);
      owner.backward(device.backward(), stream);
    }
  }
}

BOOST_AUTO_TEST_CASE(saved_memory_that_changed_is_named) {
  const LinearCase device = make(1, rowwise());
  const LinearCase other = make(2, rowwise());
  FunctionLayer layer({.name = "wq", .config = rowwise(), .shape = kLinear}, backend, stream);
  layer.cast_weight(device.weight, stream);
  FunctionSaved kept(layer.plan, kShape.tokens, backend, stream);
  layer.forward(device.forward(true), &kept.saved, stream);
  const auto backward = [&] { layer.backward(device.backward(true), device.forward(true), kept.saved, stream); };
  BOOST_TEST(with_changed(bytes_of(kept.saved.memory), backward) == "linear \"wq\" saved: " + kSaved);
  backward();
  // Two forwards in one memory.
  LinearSaved of_other{.memory = kept.saved.memory};
  layer.forward(other.forward(true), &of_other, stream);
  BOOST_TEST(refusal(backward) == "linear \"wq\" saved: " + kSaved);
  layer.backward(other.backward(true), other.forward(true), of_other, stream);
}

BOOST_AUTO_TEST_CASE(what_backward_reads_again_and_changed_is_named) {
  const LinearFusion fusion = fusion_of("silu(x) * up", "sigmoid(x)");
  const LinearCase device = make(1, again());
  const DeviceMatrix up(Random(8).normal(kShape.tokens, kShape.in_features, Dtype::bf16), Dtype::bf16, backend, stream);
  LinearForward forward = device.forward(true);
  forward.prologue_inputs[0] = up;
  FunctionLayer layer({.name = "wq", .config = again(), .shape = kLinear, .fusion = fusion}, backend, stream);
  layer.cast_weight(device.weight, stream);
  FunctionSaved kept(layer.plan, kShape.tokens, backend, stream);
  layer.forward(forward, &kept.saved, stream);
  const auto backward = [&] { layer.backward(device.backward(true), forward, kept.saved, stream); };
  BOOST_TEST(with_changed(device.weight, backward) == "linear \"wq\" weight: " + kWeight);
  BOOST_TEST(with_changed(device.input, backward) == "linear \"wq\" input: " + kKeep);
  BOOST_TEST(with_changed(device.output, backward) == "linear \"wq\" output: " + kKeep);
  BOOST_TEST(with_changed(up, backward) == "linear \"wq\" an input of the prologue: " + kKeep);
  backward();

  const LinearCase gated = make(1, rowwise());
  const DeviceMatrix gate(Random(9).normal(kShape.tokens, kShape.out_features, Dtype::bf16), Dtype::bf16, backend,
                          stream);
  LinearForward of_gated = gated.forward(true);
  of_gated.epilogue_inputs[0] = gate;
  Float8Linear owner(backend, kLinear, rowwise(), {.fusion = fusion_of("", "x * gate")});
  owner.forward(of_gated, stream);
  BOOST_TEST(with_changed(gate, [&] { owner.backward(gated.backward(true), stream); }) ==
             "Float8Linear an input of the epilogue: " + kKeep);

  Float8Linear high(backend, kLinear, high_precision());
  high.forward(gated.forward(true), stream);
  BOOST_TEST(with_changed(gated.weight, [&] { high.backward(gated.backward(true), stream); }) ==
             "Float8Linear weight: " + kWeight);
}

BOOST_AUTO_TEST_CASE(codes_that_changed_are_named) {
  const LinearCase device = make(1, rowwise());
  const LinearCase other = make(2, rowwise());
  FunctionLayer layer({.name = "wq", .config = rowwise(), .shape = kLinear}, backend, stream);
  FunctionSaved kept(layer.plan, kShape.tokens, backend, stream);
  layer.forward(device.forward(true), &kept.saved, stream, true);
  const auto backward = [&] { layer.backward(device.backward(true), device.forward(true), kept.saved, stream); };
  BOOST_TEST(with_changed(layer.codes.transposed_scale_inv, backward) == "linear \"wq\" codes: " + kCodes);
  layer.cast_weight(other.weight, stream);
  BOOST_TEST(refusal(backward) == "linear \"wq\" codes: " + kCodes);
  // That reads no codes.
  layer.backward({.grad_output = device.grad_output, .grad_weight = device.grad_weight}, device.forward(true),
                 kept.saved, stream);
  layer.cast_weight(device.weight, stream);
  backward();

  FunctionLayer sharing({.name = "wk", .config = rowwise(), .shape = kLinear, .given_input = true}, backend, stream);
  sharing.cast_weight(device.weight, stream);
  FunctionSaved none_of_it(sharing.plan, kShape.tokens, backend, stream);
  const PoisonedRegion scratch(layer.plan.memory(kShape.tokens).forward.bytes, backend, stream);
  const PoisonedRegion use(sharing.plan.backward_scratch(kShape.tokens).bytes, backend, stream);
  linear_forward(layer.plan, backend, layer.forward_tensors(device.forward(true), &kept.saved, scratch),
                 {.stream = stream});
  const Float8View input = linear_input_codes(layer.plan, kShape.tokens, kept.saved.memory, scratch, backend.device());
  LinearForwardTensors forward = sharing.forward_tensors(device.forward(true), &none_of_it.saved, {});
  forward.given_input = input;
  linear_forward(sharing.plan, backend, forward, {.stream = stream});
  LinearBackwardTensors of_sharing =
      sharing.backward_tensors(device.backward(true), device.forward(true), none_of_it.saved, use);
  of_sharing.given_input = input;
  BOOST_TEST(with_changed(input.transposed, [&] {
               linear_backward(sharing.plan, backend, of_sharing, {.stream = stream});
             }) == "linear \"wk\" given_input: " + kKeep);
}

BOOST_AUTO_TEST_CASE(what_changed_in_a_module_is_named) {
  const NormCase device(rowwise(), kNorms[0], Dtype::bf16, 1, backend, stream);
  const NormFunctions layer({.linear = {.name = "wq", .config = rowwise(), .shape = kLinear}}, none, backend, stream);
  Saved<NormLinearPlan> kept(layer.plan, kShape.tokens, backend, stream);
  layer.forward(device.forward(), &kept.saved, stream);
  const auto backward = [&] { layer.backward(device.backward(), device.forward(), kept.saved, stream); };
  BOOST_TEST(with_changed(device.gamma, backward) == "norm linear \"wq\" gamma: " + kKeep);
  BOOST_TEST(with_changed(device.linear.input, backward) == "norm linear \"wq\" input: " + kKeep);
  BOOST_TEST(with_changed(layer.part.codes.transposed_scale_inv, backward) == "norm linear \"wq\" codes: " + kCodes);
  BOOST_TEST(with_changed(bytes_of(kept.saved.memory), backward) == "norm linear \"wq\" saved: " + kSaved);
  backward();
  NormLinear owner(NormKind::layer, backend, {.linear = kLinear}, rowwise());
  owner.forward(device.forward(), stream);
  BOOST_TEST(with_changed(device.gamma, [&] { owner.backward(device.backward(), stream); }) ==
             "NormLinear gamma: " + kKeep);

  const MlpKind& kind = kMlps[1];
  const MlpCase of_mlp(again(), kind, Dtype::bf16, 1, backend, stream);
  Mlp mlp(backend, kMlp, again(), {.activation = kind.activation});
  mlp.forward(of_mlp.forward(), stream);
  const auto owner_backward = [&] { mlp.backward(of_mlp.backward(), stream); };
  BOOST_TEST(with_changed(of_mlp.inputs[1], owner_backward) == "Mlp weight: " + kWeight);
  BOOST_TEST(with_changed(of_mlp.inputs[3], owner_backward) == "Mlp down.weight: " + kWeight);
  BOOST_TEST(with_changed(of_mlp.inputs[0], owner_backward) == "Mlp input: " + kKeep);
  const MlpCase in_fp8(rowwise(), kind, Dtype::bf16, 1, backend, stream);
  const MlpFunctions functions(plan_options(rowwise(), kind), none, backend, stream);
  Saved<MlpPlan> kept_by_mlp(functions.plan, kShape.tokens, backend, stream);
  functions.forward(in_fp8.forward(), &kept_by_mlp.saved, stream);
  const auto mlp_backward = [&] { functions.backward(in_fp8.backward(), in_fp8.forward(), kept_by_mlp.saved, stream); };
  BOOST_TEST(with_changed(functions.up.codes.transposed_scale_inv, mlp_backward) == "MLP \"mlp\" codes: " + kCodes);
  BOOST_TEST(with_changed(functions.down.codes.transposed_scale_inv, mlp_backward) ==
             "MLP \"mlp\" down.codes: " + kCodes);
  BOOST_TEST(with_changed(bytes_of(kept_by_mlp.saved.memory), mlp_backward) == "MLP \"mlp\" saved: " + kSaved);
}

BOOST_AUTO_TEST_CASE(freed_memory_is_named) {
  const LinearCase device = make(1, rowwise());
  FunctionLayer layer({.name = "wq", .config = rowwise(), .shape = kLinear}, backend, stream);
  layer.cast_weight(device.weight, stream);
  FunctionSaved kept(layer.plan, kShape.tokens, backend, stream);
  const auto forward = [&] { layer.forward(device.forward(true), &kept.saved, stream); };
  const auto backward = [&] { layer.backward(device.backward(true), device.forward(true), kept.saved, stream); };
  forward();
  const auto with_freed = [&](const void* data, test::FunctionRef<void()> act) {
    backend.freed = data;
    std::string message = refusal(act);
    backend.freed = nullptr;
    return message;
  };
  const auto check = [&](const std::string& message, const std::string& name) {
    check_contains(message, {name + ": is ", " bytes at 0x",
                             ", which no allocation holds: they were freed too early; keep them until the stream has "
                             "passed the last call that reads them"});
  };
  check(with_freed(device.input.view().data, forward), "linear \"wq\" input");
  check(with_freed(device.weight.view().data, forward), "linear \"wq\" weight");
  check(with_freed(device.output.view().data, forward), "linear \"wq\" output");
  check(with_freed(layer.codes.codes.data, forward), "linear \"wq\" codes");
  check(with_freed(kept.saved.memory.data, forward), "linear \"wq\" saved");
  check(with_freed(kept.saved.memory.data, backward), "linear \"wq\" saved");
  check(with_freed(layer.codes.transposed.data, backward), "linear \"wq\" codes");
  check(with_freed(device.grad_output.view().data, backward), "linear \"wq\" grad_output");
  check(with_freed(device.grad_weight.view().data, backward), "linear \"wq\" grad_weight");

  Stream side(backend);
  Float8Linear linear(backend, kLinear, rowwise(), {.side = &side});
  linear.forward(device.forward(true), stream);
  linear.weight_changed();
  check(with_freed(device.output.view().data, [&] { linear.forward(device.forward(true), stream); }),
        "Float8Linear output");
  const NormCase norm(rowwise(), kNorms[0], Dtype::bf16, 1, backend, stream);
  NormLinear owner(NormKind::layer, backend, {.linear = kLinear}, rowwise());
  owner.forward(norm.forward(), stream);
  check(with_freed(norm.gamma.view().data, [&] { owner.forward(norm.forward(), stream); }), "NormLinear gamma");
  owner.forward(norm.forward(), stream);
  check(with_freed(norm.beta.view().data, [&] { owner.backward(norm.backward(), stream); }), "NormLinear beta");
  const MlpCase of_mlp(rowwise(), kMlps[0], Dtype::bf16, 1, backend, stream);
  Mlp mlp(backend, kMlp, rowwise());
  check(with_freed(of_mlp.inputs[3].view().data, [&] { mlp.forward(of_mlp.forward(), stream); }), "Mlp down.weight");
  mlp.forward(of_mlp.forward(), stream);
  check(with_freed(of_mlp.results[2].view().data, [&] { mlp.backward(of_mlp.backward(), stream); }), "Mlp grad_weight");
}

// Of layers of many experts: what forward kept, and which rows experts and tokens have.
BOOST_AUTO_TEST_CASE(ends_that_changed_are_named) {
  GroupedLinearRun layer({.config = rowwise(), .ends = {3, 3, 9}, .rows = 9, .in = 32, .out = 16}, backend, stream);
  layer.enqueue();
  const auto backward = [&] { grouped_linear_backward(layer.plan, backend, layer.backward_tensors(), {stream}); };
  const std::string subject = layer.plan.rows.subject;
  BOOST_TEST(with_changed(ends_in(layer.backward_tensors().ends), backward) == subject + " ends: " + kKeep);
  BOOST_TEST(with_changed(bytes_of(layer.saved.memory), backward) == subject + " saved: " + kSaved);
  backward();
  backend.is_capturing = true;
  const auto forward = [&] { grouped_linear_forward(layer.plan, backend, layer.forward_tensors(), {stream}); };
  for (const std::string& message : {refusal(forward), refusal(backward)}) {
    BOOST_TEST(message.starts_with(subject + " stream: is capturing a graph, but ContextOptions::check_memory"));
  }
}

BOOST_AUTO_TEST_CASE(routing_that_changed_is_named) {
  for (const LinearConfig& config : {rowwise(), blockwise()}) {
    ExpertsMlpRun mlp({.config = config, .tokens = 13, .features = 32, .hidden = 24}, backend, stream);
    mlp.enqueue();
    const auto backward = [&] { experts_mlp_backward(mlp.plan, backend, mlp.backward_tensors(), {stream}); };
    const auto of_input = [&] {
      experts_mlp_input_gradient(mlp.plan, backend, mlp.input_gradient_tensors(), {stream});
    };
    const auto of_weights = [&] {
      experts_mlp_weight_gradients(mlp.plan, backend, mlp.weight_gradient_tensors(), {stream});
    };
    const ExpertsMlpBackwardTensors t = mlp.backward_tensors();
    const std::string subject = mlp.plan.subject;
    BOOST_TEST(with_changed(ends_in(t.routing.ends), backward) == subject + " routing.ends: " + kKeep);
    BOOST_TEST(with_changed(index_in(t.routing.tokens), backward) == subject + " routing.tokens: " + kKeep);
    BOOST_TEST(with_changed(t.routing.weights, backward) == subject + " routing.weights: " + kKeep);
    BOOST_TEST(with_changed(t.hidden, backward) == subject + " hidden: " + kKeep);
    BOOST_TEST(with_changed(index_in(t.routing.rows), of_input) == subject + " routing.rows: " + kKeep);
    BOOST_TEST(with_changed(ends_in(t.routing.ends), of_input) == subject + " routing.ends: " + kKeep);
    BOOST_TEST(with_changed(ends_in(t.routing.ends), of_weights) == subject + " routing.ends: " + kKeep);
    BOOST_TEST(with_changed(bytes_of(mlp.saved.memory), of_weights) == subject + " saved: " + kSaved);
    backward();
    of_input();
    of_weights();
  }
}

BOOST_AUTO_TEST_CASE(captured_steps_cannot_be_looked_at) {
  const LinearCase device = make(1, rowwise());
  FunctionLayer layer({.name = "wq", .config = rowwise(), .shape = kLinear}, backend, stream);
  layer.cast_weight(device.weight, stream);
  FunctionSaved kept(layer.plan, kShape.tokens, backend, stream);
  layer.forward(device.forward(true), &kept.saved, stream);
  backend.is_capturing = true;
  const std::string capturing =
      "linear \"wq\" stream: is capturing a graph, but ContextOptions::check_memory asks for checks that wait for the "
      "stream: check steps that are not captured";
  BOOST_TEST(refusal([&] { layer.forward(device.forward(true), &kept.saved, stream); }) == capturing);
  BOOST_TEST(refusal([&] { layer.backward(device.backward(true), device.forward(true), kept.saved, stream); }) ==
             capturing);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
