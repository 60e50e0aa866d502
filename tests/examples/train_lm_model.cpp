// The parts of examples/train_lm: gradients against a float64 reference; AdamW and the learning rate against their
// formulas; options, texts, tables and plots against what their headers say.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "ingot/runtime/context.h"
#include "ingot/runtime/error.h"
#include "options.h"
#include "report.h"
#include "support/expect_error.h"
#include "text.h"
#include "train_lm_reference.h"
#include "trainer.h"

namespace train_lm::test {
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

BOOST_AUTO_TEST_CASE(adamw_follows_its_formula) {
  ingot::Context context(cpu_options());
  ModelCase model_case(context, ingot::high_precision());
  const std::vector<Parameter*> all = model_case.model().parameters();
  std::vector<Vector> values;
  for (const Parameter* parameter : all) values.push_back(model_case.read(parameter->values));
  std::vector<Vector> first(all.size());
  std::vector<Vector> second(all.size());

  constexpr double kRate = 0.01;
  constexpr double kDecay = 0.5;
  for (int step = 1; step <= 3; ++step) {
    model_case.forward_backward();
    model_case.model().update({.number = step, .learning_rate = kRate, .weight_decay = kDecay});
    for (std::size_t p = 0; p < all.size(); ++p) {
      const Vector gradient = model_case.read(all[p]->grad);
      const Vector updated = model_case.read(all[p]->values);
      const Vector working = model_case.read(all[p]->working);
      const double decay = all[p]->values.view().rows > 1 ? kDecay : 0.0;  // matrices only
      first[p].resize(gradient.size());
      second[p].resize(gradient.size());
      for (std::size_t i = 0; i < gradient.size(); ++i) {
        first[p][i] = 0.9 * first[p][i] + 0.1 * gradient[i];
        second[p][i] = 0.95 * second[p][i] + 0.05 * gradient[i] * gradient[i];
        const double mean = first[p][i] / (1 - std::pow(0.9, step));
        const double variance = second[p][i] / (1 - std::pow(0.95, step));
        values[p][i] -= kRate * (mean / (std::sqrt(variance) + 1e-8) + decay * values[p][i]);
        BOOST_REQUIRE_MESSAGE(std::abs(updated[i] - values[p][i]) <= 1e-5 * (1 + std::abs(values[p][i])),
                              name_of(p) << "[" << i << "] after step " << step << ": expected " << values[p][i]
                                         << ", got " << updated[i]);
        BOOST_REQUIRE_MESSAGE(std::abs(working[i] - updated[i]) <= std::abs(updated[i]) / 256,
                              name_of(p) << "[" << i << "]: value " << updated[i] << ", working copy " << working[i]);
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(the_learning_rate_warms_up_and_falls_to_a_tenth) {
  Options options;
  options.steps = 100;
  options.warmup_steps = 10;
  options.learning_rate = 1.0;
  BOOST_TEST(learning_rate(options, 0) == 0.1, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(learning_rate(options, 9) == 1.0, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(learning_rate(options, 10) == 1.0, boost::test_tools::tolerance(1e-12));
  BOOST_TEST(learning_rate(options, 55) == 0.55, boost::test_tools::tolerance(1e-12));  // half-way
  BOOST_TEST(learning_rate(options, 100) == 0.1, boost::test_tools::tolerance(1e-12));
  for (std::int64_t step = 10; step < 99; ++step)
    BOOST_TEST(learning_rate(options, step + 1) < learning_rate(options, step));
}

// Without NVRTC nothing can be compiled.
BOOST_AUTO_TEST_CASE(every_operation_compiles_for_every_target_without_spills) {
  ingot::Context context(cpu_options());
  if (context.compiler() == nullptr) {
    BOOST_TEST_MESSAGE("skipped: no NVRTC");
    return;
  }
  for (const std::string_view op : all_op_names()) {
    for (const ingot::Target target : ingot::kSupportedTargets) {
      const auto compiled = context.cache().compiled(source_of(op), target);
      BOOST_TEST(compiled->resources.spill_bytes == 0, op << " for " << ingot::print(target) << " spills");
    }
  }
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
}  // namespace train_lm::test
