// The parts of the benchmarks that need no GPU: arithmetic, the table of cases, random data, the check of results (CPU
// against CPU), the report.
#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agreement.h"
#include "bare_calls.h"
#include "cast_cases.h"
#include "choice.h"
#include "compile_cost.h"
#include "copy_operation.h"
#include "gemm_host_cost.h"
#include "host_cost.h"
#include "ingot/codegen/recording.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/runtime/context/context.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/measure/timing.h"
#include "kernel_lookup.h"
#include "linear_functions_step.h"
#include "machine.h"
#include "program.h"
#include "random_inputs.h"
#include "read_ceiling.h"
#include "report.h"
#include "spread.h"
#include "store_load.h"
#include "support/expect_error.h"
#include "support/fake_compiler.h"
#include "support/refused.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_parts)

using namespace ingot;
using namespace ingot::bench;

namespace {

struct Cpu {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  RandomData random{*backend, stream,
                    [](void* to, const void* from, std::size_t bytes) { std::memcpy(to, from, bytes); }};
};

CaseResult result_of(const std::string& name_of_case, double median_us) {
  for (const CastCase& c : cast_cases()) {
    if (name(c) == name_of_case) {
      return {.cast_case = c, .timing = {.median_us = median_us, .min_us = median_us - 1, .max_us = median_us + 1}};
    }
  }
  throw Error(ErrorCode::not_found, name_of_case, "is no case");
}

}  // namespace

// What bench_linear times is one step by the layer's class and by its functions.
BOOST_FIXTURE_TEST_CASE(a_step_by_functions_has_the_bits_of_the_class, Cpu) {
  const auto make = [&](std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    OwnedTensor made(*backend, Dtype::bf16, rows, cols);
    random.fill(made.view().data, byte_span(made, "tensor"), Dtype::bf16, seed, 1.0F);
    return made;
  };
  const OwnedTensor input = make(16, 48, 1), weight = make(32, 48, 2), grad_output = make(16, 32, 3);
  for (const Recipe& recipe : recipes()) {
    BOOST_TEST_CONTEXT(recipe.name) {
      struct Results {
        OwnedTensor output, grad_input, grad_weight;
      };
      const auto results = [&] { return Results{make(16, 32, 4), make(16, 48, 5), make(32, 48, 6)}; };
      const Results expected = results(), found = results();
      DelayedScaling delayed(*backend);
      Float8Linear layer(*backend, {.in_features = 48, .out_features = 32}, recipe.config, {.delayed = &delayed});
      FunctionsStep step(recipe,
                         {.input = input,
                          .weight = weight,
                          .grad_output = grad_output,
                          .output = found.output,
                          .grad_input = found.grad_input,
                          .grad_weight = found.grad_weight},
                         *backend, stream);
      for (int i = 0; i < 3; ++i) {
        layer.weight_changed();
        layer.forward({.input = input, .weight = weight, .output = expected.output}, stream);
        layer.backward(
            {.grad_output = grad_output, .grad_input = expected.grad_input, .grad_weight = expected.grad_weight},
            stream);
        delayed.sync_amax_history(stream);
        step.enqueue();
        for (const auto result : {&Results::output, &Results::grad_input, &Results::grad_weight}) {
          const Tensor& right = expected.*result;
          BOOST_TEST(std::memcmp(right.data, (found.*result).view().data, byte_span(right, "result")) == 0);
        }
      }
    }
  }
}

BOOST_AUTO_TEST_CASE(medians) {
  BOOST_TEST(median({3}) == 3);
  BOOST_TEST(median({9, 1, 5}) == 5);
  BOOST_TEST(median({4, 1, 9, 2}) == 3);
  const Timing timing = summarise({9, 1, 5});
  BOOST_TEST(timing.median_us == 5);
  BOOST_TEST(timing.min_us == 1);
  BOOST_TEST(timing.max_us == 9);
  BOOST_TEST(timing.rounds == 3);
}

BOOST_AUTO_TEST_CASE(copies_exceed_the_cache) {
  for (const std::size_t bytes : {std::size_t{1} << 20U, std::size_t{64} << 20U, std::size_t{300} << 20U}) {
    const auto copies = static_cast<std::size_t>(copies_for(bytes));
    BOOST_TEST((copies * bytes >= std::size_t{512} << 20U || copies == 256));
    BOOST_TEST(copies >= 2U);
  }
  BOOST_TEST(copies_for(std::size_t{64} << 20U) == 8);
  BOOST_TEST(copies_for(std::size_t{2} << 30U) == 2);
  BOOST_TEST(copies_for(0) == 2);
  BOOST_TEST(copies_for(100) == 256);
}

BOOST_AUTO_TEST_CASE(a_graph_holds_whole_turns) {
  BOOST_TEST(calls_for(100, 8, 4000) == 40);   // 800 us a round
  BOOST_TEST(calls_for(5000, 2, 4000) == 2);   // one round at least
  BOOST_TEST(calls_for(1, 256, 1e6) == 1792);  // seven rounds: at most 2000 calls
  BOOST_TEST(calls_for(0, 3, 4000) % 3 == 0);
}

BOOST_AUTO_TEST_CASE(cases_are_what_they_say) {
  std::set<std::string> names;
  for (const CastCase& c : cast_cases()) {
    BOOST_TEST_CONTEXT(name(c)) {
      BOOST_TEST(names.insert(name(c)).second);
      BOOST_TEST(print(parse(c.spec)) == c.spec);
      if (c.target) BOOST_TEST((*c.target > 0.5 && *c.target <= 1.0));
      // The matrices: what is written is the outputs, what is read is the inputs, perhaps more than once. Slots of
      // experts' rows have room for more than what is written.
      const auto elements = static_cast<std::size_t>(c.rows * c.cols);
      std::size_t written = 0;
      std::size_t read = 0;
      for (const Operand& operand : c.operation(c.rows, c.cols).operands) {
        if (operand.rows == 1 || operand.cols == 1 || operand.name.ends_with("scale_inv")) continue;
        const bool slots = operand.name == "transposed" && operand.cols > c.rows;
        (operand.role == Operand::Role::input ? read : written) += slots ? elements : byte_count(operand);
      }
      std::size_t writes = 0;
      std::size_t reads = 0;
      for (const int bytes : c.traffic.writes) writes += static_cast<std::size_t>(bytes) * elements;
      for (const int bytes : c.traffic.reads) reads += static_cast<std::size_t>(bytes) * elements;
      BOOST_TEST(writes == written);
      BOOST_TEST(reads % read == 0U);
      BOOST_TEST(ideal_bytes(c) == static_cast<double>(reads + writes));
    }
  }
  BOOST_TEST(names.contains("tensorwise codes+transposed 8192x8192"));
  BOOST_TEST((Traffic{.reads = {2, 2}, .writes = {1, 1}}.text()) == "2r + 2r + 1w + 1w");
}

BOOST_FIXTURE_TEST_CASE(every_case_runs_and_is_checked, Cpu) {
  const auto other = make_cpu_backend(1);
  for (const CastCase& c : cast_cases()) {
    BOOST_TEST_CONTEXT(name(c)) {
      const Placed placed(c.operation(37, 131), *backend);
      fill(random, placed, 5);
      placed.enqueue(stream);
      BOOST_TEST(disagreement(placed, stream, *other) == "");
      for (const Operand& operand : placed.operation().operands) {
        if (operand.role != Operand::Role::output) continue;
        auto* const last = static_cast<std::byte*>(placed.tensors()[operand.name].data) + byte_count(operand) - 1;
        // The smallest difference; of fast math one that is no matter of rounding.
        const std::byte flipped{static_cast<unsigned char>(placed.operation().exact ? 0x01 : 0x40)};
        *last ^= flipped;
        const std::string fault = disagreement(placed, stream, *other);
        const std::int64_t index = operand.rows * operand.cols - 1;
        const std::string expected = operand.name + ": first at index " + std::to_string(index) + " (row " +
                                     std::to_string(operand.rows - 1) + ", col " + std::to_string(operand.cols - 1) +
                                     "): expected 0x";
        BOOST_TEST(fault.substr(0, expected.size()) == expected);
        *last ^= flipped;
      }
      BOOST_TEST(disagreement(placed, stream, *other) == "");
    }
  }
}

// Single steps of rounding are no fault of fast math, many of them are, and so are two steps at once.
BOOST_FIXTURE_TEST_CASE(fast_math_is_checked_within_its_bound, Cpu) {
  const auto spec =
      std::get<CastSpec>(parse("cast bf16->e4m3fn of=silu(x)*gate scale=tensor out=codes,result given fast"));
  const Placed placed(cast_operation(spec, 50, 100), *backend);
  fill(random, placed, 5);
  placed.enqueue(stream);
  BOOST_TEST(disagreement(placed, stream, *backend) == "");
  // Codes from 2^-4 of the largest on: what one step changes there is more than 1e-5 of the largest.
  auto* const codes = static_cast<unsigned char*>(placed.tensors()["codes"].data);
  std::vector<unsigned char*> large;
  for (int i = 0; i < 5000; ++i) {
    const int magnitude = codes[i] & 0x7f;
    if (magnitude >= 0x5e && magnitude < 0x70) large.push_back(codes + i);
  }
  BOOST_REQUIRE(large.size() >= 7U);
  for (int i = 0; i < 6; ++i) ++*large[static_cast<std::size_t>(i)];
  BOOST_TEST(disagreement(placed, stream, *backend) == "");
  ++*large[6];
  BOOST_TEST(disagreement(placed, stream, *backend) == "codes: 7 of 5000 codes differ, but at most one in 1000 may");
  for (int i = 0; i < 6; ++i) --*large[static_cast<std::size_t>(i)];
  ++*large[6];
  const std::string fault = disagreement(placed, stream, *backend);
  BOOST_TEST(fault.starts_with("codes: first at index " + std::to_string(large[6] - codes) + " "), fault);
}

BOOST_AUTO_TEST_CASE(random_values_are_bell_shaped) {
  constexpr std::size_t kCount = 100000;
  const std::vector<std::byte> bytes = random_values(Dtype::f32, kCount, 3);
  std::vector<float> values(kCount);
  std::memcpy(values.data(), bytes.data(), bytes.size());
  double sum = 0;
  double squares = 0;
  for (const float x : values) {
    BOOST_REQUIRE(std::fabs(x) < 3.5F);
    sum += static_cast<double>(x);
    squares += static_cast<double>(x) * static_cast<double>(x);
  }
  BOOST_TEST(std::fabs(sum / kCount) < 0.02);
  BOOST_TEST(std::fabs(squares / kCount - 1) < 0.02);
  BOOST_TEST((random_values(Dtype::f32, kCount, 3) == bytes));
  BOOST_TEST((random_values(Dtype::f32, kCount, 4) != bytes));
  BOOST_TEST(random_values(Dtype::bf16, 10, 1).size() == 20U);
  const std::vector<std::byte> small = random_values(Dtype::f32, kCount, 3, 0.25F);
  std::vector<float> quarters(kCount);
  std::memcpy(quarters.data(), small.data(), small.size());
  for (std::size_t i = 0; i < kCount; ++i) BOOST_REQUIRE(quarters[i] == values[i] / 4);
  BOOST_TEST(test::refused([] { random_values(Dtype::e5m2, 10, 1); }).message ==
             "random input: is of an FP8 format; make f32, bf16 or f16 values and cast them");
}

BOOST_FIXTURE_TEST_CASE(copies_of_an_input_differ, Cpu) {
  const auto input = [](std::optional<float> value) {
    return Operation{
        .operands = {{.name = "x", .dtype = value ? Dtype::f32 : Dtype::bf16, .rows = 64, .cols = 300, .value = value}},
        .call = {}};
  };
  const Placed first(input({}), *backend);
  const Placed second(input({}), *backend);
  fill(random, first, 0);
  fill(random, second, 1000);
  const std::size_t bytes = byte_count(first.operation().operands[0]);
  BOOST_TEST(std::memcmp(first.tensors()["x"].data, second.tensors()["x"].data, bytes) != 0);
  fill(random, second, 0);
  BOOST_TEST(std::memcmp(first.tensors()["x"].data, second.tensors()["x"].data, bytes) == 0);

  const Placed given(input(0.5F), *backend);
  fill(random, given, 0);
  BOOST_TEST(static_cast<const float*>(given.tensors()["x"].data)[64 * 300 - 1] == 0.5F);
}

BOOST_AUTO_TEST_CASE(own_kernels_compile) {
  ContextOptions options = ContextOptions::from_environment();
  options.where = ContextOptions::Where::cpu;
  options.store_root = std::filesystem::path{};
  Context context(options);
  if (context.compiler() == nullptr) {
    BOOST_TEST_MESSAGE("skipped: no NVRTC");
    return;
  }
  for (const Source& source : {empty_kernel(96), empty_kernel(704), read_source()}) {
    const auto compiled = context.cache().compiled(source, context.cache().target());
    BOOST_TEST(!compiled->cubin.empty());
    BOOST_TEST(compiled->resources.spill_bytes == 0);
  }
}

BOOST_AUTO_TEST_CASE(what_a_gemm_adds_is_beyond_what_it_ends_in) {
  std::set<std::string> specs;
  for (const GemmCase& c : host_cost_cases()) specs.insert(print(KernelSpec(c.spec)));
  BOOST_TEST(specs.size() == 8U);
  BOOST_TEST(specs.contains("gemm e4m3fn*e4m3fn->bf16 nt scale=row,row fast kernel=cublaslt"));

  const GemmHostCost cost{
      .calls =
          {{.spec = "launched", .launches = 1, .limit_ns = 600, .call_ns = 3500, .bare_ns = 2800, .bare_pdl_ns = 3100},
           {.spec = "cublaslt",
            .launches = 1,
            .limit_ns = 600,
            .call_ns = 8300,
            .bare = "cublasLtMatmul",
            .bare_ns = 7800}},
      .tensor_map_ns = 101};
  const nlohmann::ordered_json json = to_json(cost);
  BOOST_TEST(json["tensor_map_ns"].get<double>() == 101);
  BOOST_TEST(json["calls"][0]["added_ns_per_launch"].get<double>() == 700);
  BOOST_TEST(json["calls"][1]["added_ns_per_launch"].get<double>() == 500);
  BOOST_TEST(json["calls"][1]["bare"].get<std::string>() == "cublasLtMatmul");
  BOOST_TEST(!json["calls"][1].contains("bare_launch_programmatic_ns"));
  const std::string text = to_text(cost);
  BOOST_TEST(text.find("600 over\n") < text.find("600 pass\n"));
  BOOST_TEST(text.find("or beyond cublasLtMatmul") != std::string::npos);
  BOOST_TEST(text.find("cuTensorMapEncodeTiled: 101 ns") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(every_gemm_is_measured_once) {
  std::set<std::string> names;
  std::set<std::string> calls;
  for (const GemmCase& c : gemm_cases()) {
    BOOST_TEST_CONTEXT(name(c)) {
      BOOST_CHECK_NO_THROW(validate(KernelSpec(c.spec)));
      BOOST_TEST(names.insert(name(c)).second);
      BOOST_TEST(
          calls.insert(print(GemmCall{.spec = c.spec, .size = c.size}) + (c.cublaslts_order ? " read" : "")).second);
    }
  }
  BOOST_TEST(names.size() > 100U);
}

BOOST_AUTO_TEST_CASE(choices_are_judged_on_sizes_that_nothing_was_fitted_on) {
  const std::vector<ChoiceCase> cases = choice_cases();
  BOOST_TEST(cases.size() == 60U);
  std::set<std::string> names;
  std::set<std::string> calls;
  std::set<std::string> kinds;
  std::int64_t least = cases.front().call.size.m;
  std::int64_t most = least;
  std::size_t biased = 0;
  std::size_t gradients = 0;
  for (const ChoiceCase& c : cases) {
    BOOST_TEST_CONTEXT(name(c)) {
      const GemmSpec& spec = c.call.spec;
      BOOST_CHECK_NO_THROW(validate(KernelSpec(spec)));
      BOOST_TEST(names.insert(name(c)).second);
      BOOST_TEST(calls.insert(print(c.call)).second);
      BOOST_TEST(c.call.size.k % 16 == 0);
      least = std::min(least, c.call.size.m);
      most = std::max(most, c.call.size.m);
      biased += spec.bias ? 1 : 0;
      gradients += spec.a == Dtype::e5m2 ? 1 : 0;
      kinds.insert(print(spec.scale_a) + (spec.fast_accumulation ? " fast " : " ") + std::string(name(spec.out)));
      for (const GemmCase& fitted : gemm_cases()) BOOST_TEST(!(fitted.size == c.call.size));
    }
  }
  BOOST_TEST(least == 42);
  BOOST_TEST(most == 15933);
  BOOST_TEST(biased >= 10U);
  BOOST_TEST(gradients >= 8U);
  BOOST_TEST(kinds.contains("tensor fast bf16"));
  BOOST_TEST(kinds.contains("row bf16"));
  BOOST_TEST(kinds.contains("1x128 bf16"));
  BOOST_TEST(kinds.contains("1x128 f32"));
  BOOST_TEST(kinds.contains("row f32"));
}

BOOST_AUTO_TEST_CASE(choices_are_counted) {
  const ChoiceCase gemm = choice_cases().front();
  const auto choice = [&](double untuned, double best) {
    return Choice{.gemm = gemm, .untuned = "cublaslt", .untuned_us = untuned, .best = "sm90", .best_us = best};
  };
  std::vector<Choice> choices(9, choice(10, 10));
  choices.push_back(choice(20, 10));
  ChoiceSummary summary = summary_of(choices);
  BOOST_TEST(summary.near == 9U);
  BOOST_TEST(summary.share() == 0.9);
  BOOST_TEST(summary.passes());
  BOOST_TEST(summary.worst == 0.5);
  BOOST_TEST(std::fabs(summary.geometric - std::pow(0.5, 0.1)) < 1e-12);
  BOOST_TEST(to_text(choices).find("9 of 10 within 5 % of the best (90.0 %; 90 % are asked for: pass)") !=
             std::string::npos);

  choices[0] = choice(100, 95);  // just near
  BOOST_TEST(summary_of(choices).near == 9U);
  choices[0] = choice(100, 94.9);
  BOOST_TEST(summary_of(choices).near == 8U);
  BOOST_TEST(!summary_of(choices).passes());

  choices[0] = {.gemm = gemm, .problem = "not reached: the budget is spent"};
  summary = summary_of(choices);
  BOOST_TEST(summary.measured == 9U);
  BOOST_TEST(!summary.passes());
  BOOST_TEST(to_text(choices).find("; 1 not measured") != std::string::npos);
  BOOST_TEST(to_json(choices[0])["problem"].get<std::string>() == "not reached: the budget is spent");
  BOOST_TEST(to_json(choices[9])["ratio"].get<double>() == 0.5);
  BOOST_TEST(to_json(summary)["measured"].get<int>() == 9);
  BOOST_TEST(!summary_of({}).passes());
}

// A compiler that takes a given time distinguishes threads that work at once from those that wait for each other.
BOOST_AUTO_TEST_CASE(compiles_are_cold_and_counted) {
  for (const CompileCase& c : compile_cases()) {
    if (!c.spec.empty()) BOOST_CHECK_NO_THROW(parse(c.spec));
  }
  class Cold final : public Compiler {
   public:
    std::string identity() const override { return "cold"; }
    std::string toolchain() const override { return slow.toolchain(); }
    CompiledKernel compile(const Source& source, Target target) const override {
      {
        const std::lock_guard lock(mutex);
        BOOST_TEST(texts.insert(source.text).second);
      }
      return slow.compile(source, target);
    }
    test::FakeCompiler slow{"slow", std::chrono::milliseconds(20)};
    mutable std::mutex mutex;
    mutable std::set<std::string> texts;
  };
  const Cold cold;
  const CompileReport report = measure_compiles(cold, 3);
  BOOST_TEST(cold.texts.size() == 1 + 3 * (compile_cases().size() + 4));
  BOOST_TEST(report.kernels.size() == compile_cases().size());
  for (const CompileCost& cost : report.kernels) {
    BOOST_TEST(cost.wall_ms.size() == 3U);
    BOOST_TEST(std::ranges::min(cost.wall_ms) >= 20);
  }
  BOOST_TEST(std::ranges::min(report.pair.serial_ms) >= 40);
  BOOST_TEST(report.pair.best_ratio() < 0.9);

  const CompileReport given{
      .kernels = {{.kernel = {.label = "quick", .spec = "s", .limit_ms = 10},
                   .wall_ms = {9, 30, 11},
                   .processor_ms = {8, 8, 9}},
                  {.kernel = {.label = "slow", .limit_ms = 10}, .wall_ms = {11}, .processor_ms = {10}}},
      .pair = {.first = "a", .second = "b", .serial_ms = {100, 200, 110}, .parallel_ms = {70, 60, 80}}};
  const nlohmann::ordered_json json = to_json(given);
  BOOST_TEST(json["kernels"][0]["wall_ms"]["best"].get<double>() == 9);
  BOOST_TEST(json["kernels"][0]["wall_ms"]["median"].get<double>() == 11);
  BOOST_TEST(std::fabs(json["two_threads"]["ratio"]["best"].get<double>() - 0.6) < 1e-12);
  BOOST_TEST(std::fabs(json["two_threads"]["ratio"]["median"].get<double>() - 70.0 / 110) < 1e-12);
  const std::string text = to_text(given);
  BOOST_TEST(text.find("10 pass") != std::string::npos);
  BOOST_TEST(text.find("10 over") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(limits) {
  BOOST_TEST(limit_columns(50, 50) == "      50 pass");
  BOOST_TEST(limit_columns(50.1, 50) == "      50 over");
  BOOST_TEST(limit_columns(1e9, std::nullopt) == "       -");
  BOOST_TEST(verdict(0.6, 0.6) == std::string("pass"));
  BOOST_TEST(verdict(0.61, 0.6) == std::string("over"));
  BOOST_TEST(limit_json(300.0).dump() == "300.0");
  BOOST_TEST(limit_json(std::nullopt).is_null());
}

BOOST_AUTO_TEST_CASE(spreads) {
  const Spread one = spread_of({7});
  BOOST_TEST(one.median == 7);
  BOOST_TEST(one.p99 == 7);
  std::vector<double> samples;
  for (int i = 200; i > 0; --i) samples.push_back(i);
  const Spread spread = spread_of(samples);
  BOOST_TEST(spread.median == 100.5);
  BOOST_TEST(spread.p99 == 198);
  BOOST_TEST(spread.samples == 200U);
}

// Every kernel that is looked up belongs to the model, and the right one is found in every way.
BOOST_AUTO_TEST_CASE(lookups_find_what_a_model_asks_for) {
  const Recording model = trained_model();
  BOOST_TEST(kernels_to_find(model).size() >= model.kernels().size());
  BOOST_TEST(model.kernels().size() > 20U);
  const LookupReport report = measure_lookups(1);
  BOOST_TEST(report.kernels == kernels_to_find(model).size());
  BOOST_TEST(report.costs.size() == 4U * 3U);
  for (const LookupCost& cost : report.costs) {
    BOOST_TEST_CONTEXT(cost.lookup << ", " << cost.threads) {
      BOOST_TEST(cost.fault == "");
      BOOST_TEST(cost.ns.median > 0);
      BOOST_TEST(cost.ns.p99 >= cost.ns.median);
      BOOST_TEST(cost.ns.samples == 300U * static_cast<std::size_t>(cost.threads));
    }
  }
}

BOOST_AUTO_TEST_CASE(lookups_are_judged) {
  const LookupReport given{
      .costs = {{.lookup = "a", .threads = 4, .ns = {.median = 49, .p99 = 80}, .limit_ns = 50},
                {.lookup = "b", .ns = {.median = 51}, .limit_ns = 50},
                {.lookup = "c", .ns = {.median = 999}},
                {.lookup = "d", .ns = {.median = 1}, .limit_ns = 50, .fault = "found another kernel"}},
      .kernels = 48,
      .gemms = 19};
  const std::string text = to_text(given);
  BOOST_TEST(text.find("49.0      80.0      50 pass\n") != std::string::npos, text);
  BOOST_TEST(text.find("50 over\n") != std::string::npos, text);
  BOOST_TEST(text.find("       -\n") != std::string::npos, text);
  BOOST_TEST(text.find("wrong: found another kernel\n") != std::string::npos, text);
  const nlohmann::ordered_json json = to_json(given);
  BOOST_TEST(json["kernels"] == 48);
  BOOST_TEST(json["costs"][0]["threads"] == 4);
  BOOST_TEST(json["costs"][0]["ns"]["p99"] == 80.0);
  BOOST_TEST(json["costs"][2]["limit_ns"].is_null());
  BOOST_TEST(json["costs"][3]["ns"].is_null());
  BOOST_TEST(json["costs"][3]["fault"] == "found another kernel");
}

BOOST_AUTO_TEST_CASE(loads_are_compared_with_what_was_stored) {
  CompiledKernel kernel{.lowered_name = "k", .cubin = {std::byte{1}}, .resources = {}, .log = {}, .toolchain = "t"};
  BOOST_TEST(load_fault(kernel, kernel) == "");
  BOOST_TEST(load_fault(std::nullopt, kernel) == "was not found");
  CompiledKernel other = kernel;
  other.cubin[0] = std::byte{2};
  BOOST_TEST(load_fault(other, kernel) == "differs from what was stored");
}

BOOST_AUTO_TEST_CASE(kernels_are_loaded_from_every_place) {
  const test::TemporaryDirectory folder;
  const std::vector<LoadCost> costs = measure_loads(nullptr, folder.path(), 20);
  BOOST_TEST(std::filesystem::is_empty(folder.path()));
  BOOST_TEST(costs.size() == 4U * load_cases().size());
  std::set<std::string> places;
  for (std::size_t i = 0; i < costs.size(); ++i) {
    const LoadCost& cost = costs[i];
    BOOST_TEST_CONTEXT(cost.from << ", " << cost.kernel) {
      places.insert(cost.from);
      BOOST_TEST(cost.fault == "");
      BOOST_TEST(cost.us.samples == 20U);
      BOOST_TEST(cost.us.median > 0);
      BOOST_TEST(cost.made_by == "synthetic bytes");
      const auto expected = static_cast<double>(load_cases()[i / 4].bytes);
      BOOST_TEST(std::fabs(static_cast<double>(cost.file_bytes) / expected - 1) < 0.1);
    }
  }
  BOOST_TEST((places == std::set<std::string>{"bundle", "plain read", "read-only store", "store"}));
  const test::FakeCompiler compiler;
  BOOST_TEST(measure_loads(&compiler, folder.path(), 20)[0].made_by == "fake 1.0");
  test::check_contains(
      test::error_of([&] { measure_loads(nullptr, folder.path() / "none", 20); }, ErrorCode::io_failed),
      {"none: a folder cannot be made in it: No such file", "name another with --folder"});
}

BOOST_AUTO_TEST_CASE(loads_are_judged) {
  const std::vector<LoadCost> given{
      {.from = "store",
       .kernel = "k",
       .made_by = "nvrtc 13.0 7-a 8-b",
       .file_bytes = 7,
       .us = {.median = 299},
       .limit_us = 300},
      {.from = "bundle", .kernel = "k", .made_by = "nvrtc", .file_bytes = 7, .us = {.median = 101}, .limit_us = 100},
      {.from = "plain read", .kernel = "k", .made_by = "nvrtc", .file_bytes = 7, .us = {.median = 5}, .fault = "no"}};
  const std::string text = to_text(given);
  BOOST_TEST(text.find("7 bytes, nvrtc 13.0: k\n") != std::string::npos, text);
  BOOST_TEST(text.find("300 pass\n") != std::string::npos, text);
  BOOST_TEST(text.find("100 over\n") != std::string::npos, text);
  BOOST_TEST(text.find("wrong: no\n") != std::string::npos, text);
  const nlohmann::ordered_json json = to_json(given);
  BOOST_TEST(json[0]["us"]["median"] == 299.0);
  BOOST_TEST(json[2]["us"].is_null());
  BOOST_TEST(json[2]["limit_us"].is_null());
}

// A copy of as many bytes as a case moves, on the CPU: it copies, and its bytes are the case's except for part of a
// row.
BOOST_FIXTURE_TEST_CASE(a_copy_has_the_bytes_of_its_case, Cpu) {
  for (const auto& [bytes, rows] : {std::pair{4, 7}, {6, 10}, {5, 8}, {3, 5}}) {
    const Operation copy = copy_operation(bytes, 7, 24);
    BOOST_TEST(working_set(copy) == static_cast<std::size_t>(2 * 2 * rows * 24));
    const Placed placed(copy, *backend);
    const Tensor input = placed.tensors()["input"];
    const Tensor output = placed.tensors()["output"];
    random.fill(input.data, byte_count(copy.operands[0]), Dtype::bf16, 1, 1.0F);
    placed.enqueue(stream);
    BOOST_TEST(std::memcmp(input.data, output.data, byte_count(copy.operands[0])) == 0);
  }
}

BOOST_AUTO_TEST_CASE(the_report_judges_by_the_larger_ceiling) {
  CastReport report{.machine = {.date = "2026-11-21", .commit = "abc", .device = "GPU"},
                    .before = {.tb_per_s = 4.2, .megabytes = 256},
                    .after = {.tb_per_s = 4.0, .megabytes = 512}};
  // 8192 x 8192 x 3 bytes in 50.45 us are 3.99 TB/s: 0.950 of 4.2, but 0.998 of 4.0.
  report.cases = {result_of("rowwise codes 8192x8192", 50.40), result_of("rowwise codes 8192x8192", 50.50),
                  result_of("rowwise codes 4096x4096", 1e9), result_of("tensorwise codes 8192x8192", 1)};
  report.cases.front().copy_us = 37.8;
  report.cases.back().fault = "codes: first at index 7";
  report.host = {{.spec = "s", .launches = 2, .call_ns = 6100, .bare_ns = 2800, .bare_pdl_ns = 3100}};
  const nlohmann::ordered_json json = to_json(report);
  BOOST_TEST(json["copy_ceiling"]["tb_per_s"].get<double>() == 4.2);
  BOOST_TEST(json["cases"][0]["pass"].get<bool>());
  BOOST_TEST(!json["cases"][1]["pass"].get<bool>());
  BOOST_TEST(json["cases"][2]["pass"].is_null());
  BOOST_TEST(json["cases"][0]["same_size_copy_us"].get<double>() == 37.8);
  BOOST_TEST(json["cases"][0]["of_same_size_copy"].get<double>() == 0.75);
  BOOST_TEST(!json["cases"][3].contains("us"));
  BOOST_TEST(json["cases"][3]["wrong"].get<std::string>() == "codes: first at index 7");
  BOOST_TEST(std::fabs(json["host_cost"][0]["added_ns_per_launch"].get<double>() - 250) < 1e-6);

  const std::string text = to_text(report);
  BOOST_TEST(text.find("4.200 TB/s before") != std::string::npos);
  BOOST_TEST(text.find("50.4") != std::string::npos);
  BOOST_TEST(text.find("     0.750") != std::string::npos);
  BOOST_TEST(text.find("short") != std::string::npos);
  BOOST_TEST(text.find("WRONG  codes: first at index 7") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(results_have_a_case_on_a_line) {
  const std::string name(100, 'x');
  const std::string curve(3'000, '0');  // a case of a curve is one line, however long
  BOOST_TEST(results_text({{"benchmark", "b"},
                           {"copy", {{"before", 1}, {"after", 2.5}}},
                           {"cases", {{{"case", name}, {"us", {1, 2}}}, {{"case", name}, {"us", 3}}}},
                           {"runs", {{{"codes", {curve}}, {"of", nullptr}}}},
                           {"none", nlohmann::ordered_json::array()}}) ==
             "{\n \"benchmark\": \"b\",\n \"copy\": {\"before\":1,\"after\":2.5},\n \"cases\": [\n  {\"case\":\"" +
                 name + "\",\"us\":[1,2]},\n  {\"case\":\"" + name +
                 "\",\"us\":3}\n ],\n \"runs\": [\n  {\n   \"codes\": [\"" + curve +
                 "\"],\n   \"of\": null\n  }\n ],\n \"none\": []\n}\n");
}

BOOST_AUTO_TEST_CASE(the_drivers_version_is_found) {
  BOOST_TEST(driver_version("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build\n"
                            "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n") == "580.159.04");
  BOOST_TEST(driver_version("") == "");
  BOOST_TEST(processor_name("processor\t: 0\nmodel name\t: A CPU @ 2 GHz\nflags\t: x\n") == "A CPU @ 2 GHz");
  BOOST_TEST(processor_name("") == "");
}

BOOST_AUTO_TEST_SUITE_END()
