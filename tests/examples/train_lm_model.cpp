// The parts of examples/train_lm and examples/training: gradients, AdamW and gradient clipping against float64; the
// learning rate against its formula; graphs and what is compiled ahead on a dry run; options, texts, tables and plots
// against what their headers say.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/util/error.h"
#include "options.h"
#include "prepare.h"
#include "report.h"
#include "support/expect_error.h"
#include "text.h"
#include "train_lm_reference.h"
#include "trainer.h"
#include "training/graphed_step.h"
#include "training/optimizer.h"
#include "training/schedule.h"

namespace train_lm::test {
BOOST_AUTO_TEST_SUITE(test_train_lm_model)

namespace {

using ingot::ErrorCode;
using ingot::test::check_contains;
using ingot::test::error_of;

ingot::ContextOptions cpu_options() {
  ingot::ContextOptions options = ingot::ContextOptions::from_environment();
  options.where = ingot::ContextOptions::Where::cpu;
  options.store_root = std::filesystem::path();
  return options;
}

// bf16 has 8 bits; the path from a gradient to a weight rounds about ten times.
BOOST_AUTO_TEST_CASE(gradients_in_bf16) {
  ingot::Context context(cpu_options());
  check_gradients(context, ingot::high_precision(), 0.01);
}

// e5m2 gradients have 3 bits, e4m3 operands 4.
BOOST_AUTO_TEST_CASE(gradients_in_fp8) {
  ingot::Context context(cpu_options());
  check_gradients(context, ingot::tensorwise(), 0.15);
}

// The same batch in parts: the gradients differ by the rounding of the activations' gradients only, and the loss not at
// all except for the order of its sum.
BOOST_AUTO_TEST_CASE(micro_batches_accumulate_the_same_gradients) {
  ingot::Context context(cpu_options());
  ModelCase whole(context, ingot::high_precision());
  ModelCase parts(context, ingot::high_precision(), 3);
  BOOST_TEST_CHECK(whole.forward_backward() == parts.forward_backward(), boost::test_tools::tolerance(1e-6F));
  const std::vector<Parameter*> all = whole.model().parameters();
  for (std::size_t p = 0; p < all.size(); ++p) {
    const Vector expected = whole.read(all[p]->grad);
    const Vector found = parts.read(parts.model().parameters()[p]->grad);
    double error = 0;
    double size = 0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      error += (found[i] - expected[i]) * (found[i] - expected[i]);
      size += expected[i] * expected[i];
    }
    BOOST_TEST(std::sqrt(error / size) < 1e-5, name_of(p) << ": " << std::sqrt(error / size));
  }
}

// AdamW with clipping, in float64.
class Reference {
 public:
  Reference(ModelCase& model_case, double clip)
      : case_(&model_case), all_(model_case.model().parameters()), clip_(clip) {
    for (const Parameter* parameter : all_) {
      values_.push_back(case_->read(parameter->values));
      first_.emplace_back(values_.back().size());
      second_.emplace_back(values_.back().size());
    }
  }

  double norm() {
    double squares = 0;
    for (const Parameter* parameter : all_) {
      for (const double g : case_->read(parameter->grad)) squares += g * g;
    }
    return std::sqrt(squares);
  }

  // Takes the gradients that the model has now.
  void step(int number, double rate, double decay) {
    const double found = norm();
    const double scale = clip_ > 0 && found > clip_ ? clip_ / found : 1.0;
    for (std::size_t p = 0; p < all_.size(); ++p) {
      const Vector gradient = case_->read(all_[p]->grad);
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        const double g = scale * gradient[i];
        first_[p][i] = 0.9 * first_[p][i] + 0.1 * g;
        second_[p][i] = 0.95 * second_[p][i] + 0.05 * g * g;
        const double mean = first_[p][i] / (1 - std::pow(0.9, number));
        const double variance = second_[p][i] / (1 - std::pow(0.95, number));
        values_[p][i] -= rate * (mean / (std::sqrt(variance) + 1e-8) + decay * values_[p][i]);
      }
    }
  }

  void check(int number) {
    for (std::size_t p = 0; p < all_.size(); ++p) {
      const Vector updated = case_->read(all_[p]->values);
      const Vector working = case_->read(all_[p]->working);
      for (std::size_t i = 0; i < updated.size(); ++i) {
        const double expected = values_[p][i];
        BOOST_REQUIRE_MESSAGE(
            std::abs(updated[i] - expected) <= 1e-5 * (1 + std::abs(expected)),
            name_of(p) << "[" << i << "] after step " << number << ": expected " << expected << ", got " << updated[i]);
        BOOST_REQUIRE_MESSAGE(std::abs(working[i] - updated[i]) <= std::abs(updated[i]) / 256,
                              name_of(p) << "[" << i << "]: value " << updated[i] << ", working copy " << working[i]);
      }
    }
  }

 private:
  ModelCase* case_;
  std::vector<Parameter*> all_;
  double clip_;
  std::vector<Vector> values_, first_, second_;
};

float on_host(ModelCase& model_case, const float* value) {
  float result = 0;
  model_case.stream().device_api().copy_to_host(&result, value, sizeof(result), model_case.stream());
  model_case.stream().device_api().synchronize(model_case.stream());
  return result;
}

// Without clipping, with a limit that the gradients do not reach, and with limits that they do.
BOOST_AUTO_TEST_CASE(adamw_and_clipping_follow_their_formulas) {
  constexpr double kRate = 0.01;
  constexpr double kDecay = 0.5;
  for (const double clip : {0.0, 1e3, 0.1, 1e-4}) {
    BOOST_TEST_CONTEXT("clip " << clip) {
      ingot::Context context(cpu_options());
      ModelCase model_case(context, ingot::high_precision());
      const training::OptimizerOptions options{.weight_decay = kDecay, .clip = clip};
      training::AdamW optimizer(context.backend(), model_case.model().parameters(), options);
      Reference reference(model_case, clip);
      for (int step = 1; step <= 3; ++step) {
        model_case.forward_backward();
        reference.step(step, kRate, kDecay);
        training::StepValues values{.step = step - 1,
                                    .seed = 11,
                                    .learning_rate = static_cast<float>(kRate),
                                    .correction1 = 0,
                                    .correction2 = 0};
        set_corrections(options, values);
        values.step = 0;  // there is one loss
        model_case.set_step(values);
        const double norm = reference.norm();
        optimizer.step(model_case.ops().training, model_case.now());
        model_case.model().step_done();
        reference.check(step);
        if (clip == 0) continue;
        BOOST_TEST_CHECK(on_host(model_case, optimizer.norm()) == norm, boost::test_tools::tolerance(1e-5));
        BOOST_TEST_CHECK(on_host(model_case, optimizer.scale()) == (norm > clip ? clip / norm : 1.0),
                         boost::test_tools::tolerance(1e-5));
      }
    }
  }
}

// A gradient that is not finite shows in the weights at once; it does not pass as a step of nothing.
BOOST_AUTO_TEST_CASE(a_gradient_that_is_not_finite_is_not_hidden_by_clipping) {
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {inf, -inf, std::numeric_limits<float>::quiet_NaN(), 3e38F}) {
    ingot::Context context(cpu_options());
    ModelCase model_case(context, ingot::high_precision());
    training::AdamW optimizer(context.backend(), model_case.model().parameters(), {.clip = 1.0});
    model_case.forward_backward();
    const Parameter& first = *model_case.model().parameters()[1];
    context.device_api().copy_from_host(first.grad.view().data, &bad, sizeof(bad), model_case.stream());
    optimizer.step(model_case.ops().training, model_case.now());
    BOOST_TEST(std::isnan(on_host(model_case, optimizer.scale())), "gradient " << bad);
  }
}

// The norm of 10,000,000 equal gradients: sums of 32 bits lose little.
BOOST_AUTO_TEST_CASE(the_norm_of_many_gradients_is_exact_to_five_digits) {
  ingot::Context context(cpu_options());
  ingot::Stream stream(context.backend());
  training::OpRunner ops(context, stream);
  training::Parameter large(context.backend(), 1000, 10000);
  const std::vector<float> ones(10'000'000, 0.3F);
  context.device_api().copy_from_host(large.grad.view().data, ones.data(), ones.size() * sizeof(float), stream);
  large.init(ops, stream, 1.0, 1);
  training::AdamW optimizer(context.backend(), {&large}, {.clip = 1.0});
  training::StepTable table(context.backend(), 1, [](std::int64_t) {
    return training::StepValues{.step = 0, .seed = 0, .learning_rate = 0, .correction1 = 1, .correction2 = 1};
  });
  table.prepare(0, stream);
  table.advance(ops);
  optimizer.step(ops, table.now());
  float norm = 0;
  context.device_api().copy_to_host(&norm, optimizer.norm(), sizeof(norm), stream);
  context.device_api().synchronize(stream);
  BOOST_TEST_CHECK(norm == 0.3F * std::sqrt(1e7), boost::test_tools::tolerance(1e-5));
}

BOOST_AUTO_TEST_CASE(the_learning_rate_warms_up_and_falls_to_a_tenth) {
  const training::Schedule schedule{.peak = 1.0, .steps = 100, .warmup_steps = 10};
  const auto rate = [&](std::int64_t step) { return training::learning_rate(schedule, step); };
  BOOST_TEST_CHECK(rate(0) == 0.1, boost::test_tools::tolerance(1e-12));
  BOOST_TEST_CHECK(rate(9) == 1.0, boost::test_tools::tolerance(1e-12));
  BOOST_TEST_CHECK(rate(10) == 1.0, boost::test_tools::tolerance(1e-12));
  BOOST_TEST_CHECK(rate(55) == 0.55, boost::test_tools::tolerance(1e-12));  // half-way
  BOOST_TEST_CHECK(rate(100) == 0.1, boost::test_tools::tolerance(1e-12));
  for (std::int64_t step = 10; step < 99; ++step) BOOST_TEST(rate(step + 1) < rate(step));
}

// Each step gets its own values, across the ends of uploaded tables and after a jump, as when a run is resumed.
BOOST_AUTO_TEST_CASE(the_table_gives_each_step_its_values) {
  ingot::Context context(cpu_options());
  ingot::Stream stream(context.backend());
  training::OpRunner ops(context, stream);
  int asked = 0;
  training::StepTable table(context.backend(), 2500, [&](std::int64_t step) {
    ++asked;
    return training::StepValues{.step = step,
                                .seed = static_cast<std::uint64_t>(7 * step),
                                .learning_rate = static_cast<float>(step),
                                .correction1 = 1,
                                .correction2 = 2};
  });
  const auto check = [&](std::int64_t step) {
    table.prepare(step, stream);
    table.advance(ops);
    BOOST_REQUIRE_EQUAL(table.now()->step, step);  // the CPU's memory
    BOOST_REQUIRE_EQUAL(table.now()->seed, static_cast<std::uint64_t>(7 * step));
  };
  for (std::int64_t step = 0; step < 2500; ++step) check(step);
  BOOST_TEST(asked == 2500);
  for (const std::int64_t step : {1500, 1501, 3, 2499}) check(step);
}

// ---- Graphs and what is compiled ahead, on the CUDA backend without a GPU -------------------------------------------

Options tiny_options(std::int64_t micro_batches, WeightCodes codes = WeightCodes::together) {
  Options options;
  options.weight_codes = codes;
  options.shape = kShape;
  options.batch = kBatch;
  options.micro_batches = micro_batches;
  return options;
}

// A model on a dry run, with its steps from a graph.
struct DryModel {
  explicit DryModel(const ingot::LinearConfig& config, const Options& options, bool graph)
      : of(options),
        model(dry.backend(), stream, ops, of.shape, of.micro_batch(), config, 1, of.weight_codes),
        loss(dry.backend(), ingot::Dtype::f32, 1, 1),
        step(
            stream, [this] { work(); }, [this] { return dry.backend().device_api().launches(); }, graph) {}

  Batch batch() const {
    return {.text = nullptr,
            .places = 1,
            .context = of.shape.context,
            .size = of.micro_batch(),
            .first = 0,
            .total = of.batch,
            .seed = nullptr};
  }

  void work() {
    ++calls;
    for (std::int64_t i = 0; i < of.micro_batches; ++i) {
      model.forward_backward(batch(), {.sums = static_cast<float*>(loss.view().data), .accumulate = i > 0});
    }
    model.step_done();
  }

  Options of;
  ingot::DryRun dry{ingot::gpu_named("h200")};
  ingot::Stream stream{dry.backend()};
  OpRunners ops;
  Model model;
  ingot::OwnedTensor loss;
  training::GraphedStep step;
  int calls = 0;
};

// Two steps as they are, then one capture and its replays; the kernels of a replay are counted.
BOOST_AUTO_TEST_CASE(a_step_is_captured_once_and_replayed) {
  DryModel graphed(ingot::rowwise(), tiny_options(1), true);
  const auto launches = [&] { return graphed.dry.backend().device_api().launches(); };
  graphed.step.run();
  const std::int64_t first = launches();
  graphed.step.run();
  const std::int64_t of_one = launches() - first;
  BOOST_TEST(of_one > 10);
  for (int i = 0; i < 8; ++i) graphed.step.run();
  BOOST_TEST(graphed.calls == 3);
  BOOST_TEST(launches() + graphed.step.replayed_launches() == first + 9 * of_one);

  DryModel plain(ingot::rowwise(), tiny_options(1), false);
  for (int i = 0; i < 10; ++i) plain.step.run();
  BOOST_TEST(plain.calls == 10);
  BOOST_TEST(plain.step.replayed_launches() == 0);
}

// A GPU's steps, with their micro-batches and from a graph, ask for no kernel that was not found ahead.
BOOST_AUTO_TEST_CASE(what_is_prepared_is_what_steps_ask_for) {
  const Options all[] = {tiny_options(1), tiny_options(3), tiny_options(1, WeightCodes::each),
                         tiny_options(1, WeightCodes::masters)};
  for (const Options& options : all) {
    const std::int64_t micro_batches = options.micro_batches;
    for (const ingot::Recipe& recipe : ingot::recipes()) {
      BOOST_TEST_CONTEXT(recipe.name << ", " << micro_batches << " micro-batches") {
        const ingot::LinearConfig configs[] = {recipe.config};
        const ingot::Recording prepared = recording_of(options, configs, ingot::gpu_named("h200"));
        DryModel trained(recipe.config, options, true);
        for (int i = 0; i < 4; ++i) trained.step.run();
        trained.model.weights_changed();
        trained.model.forward(trained.batch(), {.sums = static_cast<float*>(trained.loss.view().data)});
        const ingot::Recording asked = trained.dry.recording();
        BOOST_TEST(asked.kernels().size() > 5U);
        for (const ingot::KernelSpec& spec : asked.kernels()) {
          const bool found = std::ranges::find(prepared.kernels(), spec) != prepared.kernels().end();
          BOOST_TEST(found, print(spec));
        }
        const auto accumulates = [](const ingot::MatmulCall& call) {
          return print(call).find("c=f32") != std::string::npos;
        };
        BOOST_TEST(std::ranges::any_of(prepared.matmuls(), accumulates) == (micro_batches > 1));
      }
    }
  }
}

// A captured step casts the weights of both blocks by one launch in place of four.
BOOST_AUTO_TEST_CASE(one_list_spares_launches_of_a_graph) {
  const auto launches_of_a_step = [](const ingot::LinearConfig& config, WeightCodes codes) {
    DryModel graphed(config, tiny_options(1, codes), true);
    for (int i = 0; i < 4; ++i) graphed.step.run();
    const std::int64_t before = graphed.step.replayed_launches();
    graphed.step.run();
    return graphed.step.replayed_launches() - before;
  };
  const auto spared = [&](const ingot::LinearConfig& config, WeightCodes codes) {
    return launches_of_a_step(config, WeightCodes::each) - launches_of_a_step(config, codes);
  };
  for (const WeightCodes codes : {WeightCodes::together, WeightCodes::masters}) {
    BOOST_TEST(spared(ingot::blockwise(), codes) == 3);
    BOOST_TEST(spared(ingot::delayed(), codes) == 3);
    BOOST_TEST(spared(ingot::tensorwise(), codes) >= 1);  // the maxima take a fill and a launch more
    BOOST_TEST(spared(ingot::high_precision(), codes) == 0);
  }
}

// Every operation, for this many targets each. Without NVRTC nothing can be compiled.
void check_spills(std::size_t targets) {
  ingot::Context context(cpu_options());
  if (context.compiler() == nullptr) {
    BOOST_TEST_MESSAGE("skipped: no NVRTC");
    return;
  }
  std::vector<ingot::Source> sources;
  for (const std::string_view op : all_op_names()) sources.push_back(source_of(op));
  for (const std::string_view op : training::all_op_names()) sources.push_back(training::source_of(op));
  for (std::size_t i = 0; i < sources.size(); ++i) {
    for (std::size_t target = i; target < i + targets; ++target) {
      const ingot::Target of = ingot::kSupportedTargets[target % ingot::kSupportedTargets.size()];
      const auto compiled = context.cache().compiled(sources[i], of);
      BOOST_TEST(compiled->resources.spill_bytes == 0, sources[i].name << " for " << ingot::print(of) << " spills");
    }
  }
}

// In CI each for one target, in turn.
BOOST_AUTO_TEST_CASE(operations_compile_without_spills) { check_spills(1); }

BOOST_AUTO_TEST_CASE(every_operation_compiles_for_every_target_without_spills, *boost::unit_test::label("nightly")) {
  check_spills(ingot::kSupportedTargets.size());
}

BOOST_AUTO_TEST_CASE(references_are_taken_from_verses) {
  const std::vector<std::uint8_t> text = verses_of("for i in $(seq 100000); do echo 'Ge1:1 In the beginning'; done");
  const std::string start(text.begin(), text.begin() + 34);
  BOOST_TEST(start == "In the beginning\nIn the beginning\n");
  BOOST_TEST(text.size() == 17U * 100000U);
}

BOOST_AUTO_TEST_CASE(a_missing_bible_names_its_package) {
  for (const char* command : {"no-such-program-anywhere 2>/dev/null", "echo short", "yes | head -c 2000000; exit 3"}) {
    check_contains(error_of([&] { verses_of(command); }, ErrorCode::not_found), {"bible-kjv", "--text FILE"});
  }
}

BOOST_AUTO_TEST_CASE(a_file_is_read_as_it_is_or_refused) {
  check_contains(error_of([] { load_text("/nonexistent/text"); }, ErrorCode::not_found),
                 {"/nonexistent/text", "--text"});
  check_contains(error_of([] { load_text("/"); }, ErrorCode::io_failed), {"is a folder; name a file"});
}

BOOST_AUTO_TEST_CASE(sizes_that_do_not_fit_are_refused) {
  const auto refusal = [](void (*change)(Options&)) {
    Options options;
    change(options);
    return error_of([&] { complete(options, false); }, ErrorCode::invalid_argument);
  };
  check_contains(refusal([](Options& o) { o.shape.embedding = 12; }), {"--embedding", "12", "multiple of 8"});
  check_contains(refusal([](Options& o) { o.shape.hidden = 100; }), {"--hidden", "100", "multiple of 8"});
  check_contains(refusal([](Options& o) { o.shape.context = 1 << 20; }), {"--context", "at most 1048576"});
  BOOST_TEST(refusal([](Options& o) { o.micro_batches = 3; }) ==
             "--micro-batches: is 3, but must divide the batch of 256");
  BOOST_TEST(refusal([](Options& o) { o.graph = "on"; }) ==
             "--graph: is on, but the CPU has no graphs: leave it at auto");

  // More blocks than the preset's train at a lower rate, unless one is given.
  const auto rate = [](std::int64_t blocks, double given) {
    Options options;
    options.shape.blocks = blocks;
    options.learning_rate = given;
    complete(options, true);
    return options.learning_rate;
  };
  BOOST_TEST(rate(2, 0) == 4e-4);
  BOOST_TEST(rate(1, 0) == 4e-4);
  BOOST_TEST(rate(8, 0) == 2e-4);
  BOOST_TEST(rate(8, 1e-3) == 1e-3);

  Options large;
  complete(large, true);
  BOOST_TEST(large.shape.parameters() >= 50'000'000);
}

Report report_of(const std::vector<float>& bf16, const std::vector<float>& fp8) {
  Report report{.runs = {},
                .tokens_per_step = 8,
                .parameters = 1'200'000,
                .device = "a device",
                .target = "sm_90a",
                .recipe = "tensorwise",
                .kernels = {3, 4, 5}};
  report.runs.push_back({"bf16", {.losses = bf16, .seconds = 2, .timed_steps = 10, .validation_loss = 2}});
  report.runs.push_back({"fp8", {.losses = fp8, .seconds = 1, .timed_steps = 10, .validation_loss = 3}});
  return report;
}

BOOST_AUTO_TEST_CASE(the_final_loss_is_the_mean_of_the_last_tenth) {
  History history;
  for (int i = 1; i <= 100; ++i) history.losses.push_back(static_cast<float>(i));
  BOOST_TEST(final_loss(history) == 95.5);
  history.losses = {4.0F, 2.0F};
  BOOST_TEST(final_loss(history) == 2.0);
}

BOOST_AUTO_TEST_CASE(the_table_compares_the_runs) {
  const std::string text = table(report_of(std::vector<float>(20, 2.0F), std::vector<float>(20, 2.01F)));
  check_contains(text, {"difference", "+0.500 %", "bf16  final loss 2.0000", "validation loss +50.000 %", "40 tokens/s",
                        "tokens/s x 2.000", "compiled 3, loaded from the store 4, launched 5", "1.2 million"});
  BOOST_TEST(text.find("without a GPU") == std::string::npos);
  Report idle = report_of({2, 1}, {2, 1});
  idle.kernels.launched = 0;
  check_contains(table(idle),
                 {"launched 0\n(without a GPU none is launched: they were compiled for sm_90a to show that"});
  check_contains(csv(report_of({2.5F, 1.5F}, {3.0F, 0.1F})), {"step,loss_bf16,loss_fp8\n1,2.5,3\n2,1.5,0.100000001\n"});
}

// A run that diverged still gets its picture.
BOOST_AUTO_TEST_CASE(the_plot_has_both_curves_and_only_numbers) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::vector<float>& losses :
       {std::vector<float>{5, 4, 3, 2}, {5, nan, nan, nan}, {nan, nan}, {1}, {2, 2}}) {
    const std::string picture = svg(report_of(losses, losses));
    check_contains(picture, {"<svg xmlns=", "</svg>", "bf16: final", "fp8: final", ">step<", "nats per byte"});
    std::size_t curves = 0;
    for (std::size_t at = picture.find("points=\""); at != std::string::npos; at = picture.find("points=\"", at + 1)) {
      const std::string points = picture.substr(at + 8, picture.find('"', at + 8) - at - 8);
      BOOST_TEST(points.find_first_not_of("0123456789., ") == std::string::npos, points);
      ++curves;
    }
    BOOST_TEST(curves == 2U);
    const std::size_t numbers = picture.find("y1=\"nan");
    BOOST_TEST(numbers == std::string::npos, picture);
  }
}

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace train_lm::test
