// Layers with an observer: which events it gets, and that observing changes no results.
#include <boost/test/unit_test.hpp>

#include <cmath>
#include <filesystem>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/norm_linear.h"
#include "ingot/nn/observe/monitor.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/util/read_file.h"
#include "nn/linear_case.h"
#include "support/temporary_directory.h"

BOOST_AUTO_TEST_SUITE(test_observed_layers)

using namespace ingot;
using namespace ingot::test;

namespace {

constexpr CaseShape kShape{32, 48, 40};

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend(2);
  Stream stream{*backend};
};

class Log final : public LayerObserver {
 public:
  bool wants_values() const override { return true; }
  void begin(std::string_view layer, std::string_view what) override { add("begin", layer, what); }
  void end() noexcept override { lines.emplace_back("end"); }
  void cast(const CastEvent& event, Stream&) override {
    add(event.transposed ? "transposed" : "codes", event.tensor, event.gemms);
    BOOST_TEST(event.layer == "layers.0.wq");
    BOOST_TEST(event.values.data != nullptr);
  }
  void gemm(const GemmEvent& event, Stream&) override { add("gemm", event.layer, event.role); }

  std::vector<std::string> lines;

 private:
  void add(std::string_view what, std::string_view of, std::string_view which) {
    lines.push_back(std::string(what) + " " + std::string(of) + " " + std::string(which));
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(observed_layers, Fixture)

BOOST_AUTO_TEST_CASE(casts_and_gemms_come_in_order_with_their_names) {
  Log log;
  const LinearCase device(make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, *backend, stream);
  Float8Linear linear(*backend, {kShape.in_features, kShape.out_features, true}, rowwise(),
                      {.name = "layers.0.wq", .observer = &log});
  linear.forward(device.forward(true), stream);
  linear.backward(device.backward(true), stream);
  BOOST_TEST_CHECK(log.lines == (std::vector<std::string>{
                                    "begin layers.0.wq forward", "codes input output", "transposed input grad_weight",
                                    "codes weight output", "transposed weight grad_input", "begin layers.0.wq output",
                                    "gemm layers.0.wq output", "end", "end", "begin layers.0.wq backward",
                                    "codes grad_output grad_input", "transposed grad_output grad_weight",
                                    "begin layers.0.wq grad_input", "gemm layers.0.wq grad_input", "end",
                                    "begin layers.0.wq grad_weight", "gemm layers.0.wq grad_weight", "end", "end"}),
                   boost::test_tools::per_element());
}

// Observed and unobserved layers give the same bits, for every config, plain and fused.
BOOST_AUTO_TEST_CASE(observing_changes_nothing) {
  for (const LinearConfig& config : every_config()) {
    for (const char* epilogue : {"", "silu(x)"}) {
      BOOST_TEST_CONTEXT(ingot::print(config) << " " << epilogue) {
        const HostInputs host = make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1);
        const auto run = [&](LayerObserver* observer) {
          const LinearCase device(host, Dtype::bf16, Dtype::bf16, *backend, stream);
          DelayedScaling scales(*backend);
          LinearFusion fusion{.prologue = parse_pointwise("tanh(x)")};
          if (*epilogue != 0) fusion.epilogue = parse_pointwise(epilogue);
          Float8Linear linear(*backend, {kShape.in_features, kShape.out_features, true}, config,
                              {.name = "layers.0.wq", .fusion = fusion, .delayed = &scales, .observer = observer});
          linear.forward(device.forward(true), stream);
          linear.backward(device.backward(true), stream);
          return device.result_bytes(stream);
        };
        Log log;
        Monitor monitor(*backend, {.warn = [](const std::string&) {}});
        LayerObservers both({&log, &monitor});
        const auto observed = run(&both);
        BOOST_TEST((observed == run(nullptr)));
        monitor.step_done(stream);
        for (const MonitorRecord& record : monitor.records()) {
          BOOST_TEST(!record.is_broken(), record.tensor);
          if (record.is_cast())
            BOOST_TEST(record.sqnr() > 10, record.tensor << " " << record.gemms << ": " << record.sqnr());
        }
      }
    }
  }
}

// A NaN or an Inf in one activation: the Monitor names it, and it is in the output.
BOOST_AUTO_TEST_CASE(what_is_not_finite_is_named_and_stays) {
  for (const Recipe& recipe : recipes()) {
    for (const double bad : {std::nan(""), std::numeric_limits<double>::infinity()}) {
      BOOST_TEST_CONTEXT(recipe.name << " " << bad) {
        HostInputs host = make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1);
        DelayedScaling scales(*backend);
        std::vector<std::string> warnings;
        Monitor monitor(*backend, {.warn = [&](const std::string& line) { warnings.push_back(line); }});
        Float8Linear linear(*backend, {kShape.in_features, kShape.out_features, true}, recipe.config,
                            {.name = "layers.0.wq", .delayed = &scales, .observer = &monitor});
        const auto step = [&] {
          const LinearCase device(host, Dtype::bf16, Dtype::bf16, *backend, stream);
          linear.forward(device.forward(true), stream);
          monitor.step_done(stream);
          scales.sync_amax_history(stream);
          return device.output.read(stream);
        };
        step();
        BOOST_TEST(warnings.empty());
        host.input.at(3, 5) = bad;
        const Matrix output = step();
        bool input_named = false;
        bool output_named = false;
        for (const std::string& line : warnings) {
          if (line.find("layers.0.wq") == std::string::npos) continue;
          input_named = input_named || line.find("input") != std::string::npos;
          output_named = output_named || line.find("output") != std::string::npos;
        }
        bool row_is_finite = true;
        for (std::int64_t n = 0; n < kShape.out_features; ++n)
          row_is_finite = row_is_finite && std::isfinite(output.at(3, n));
        if (recipe.name != "high_precision") BOOST_TEST(input_named);
        BOOST_TEST(!row_is_finite);
        BOOST_TEST(output_named);
      }
    }
  }
}

// The observer also sees the values of a norm that is computed within the cast.
BOOST_AUTO_TEST_CASE(fused_values_are_seen) {
  Monitor monitor(*backend);
  const LinearCase device(make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1), Dtype::bf16, Dtype::bf16, *backend, stream);
  LayerNormLinear layer(*backend, {.linear = {kShape.in_features, kShape.out_features}, .affine = false}, tensorwise(),
                        {.name = "layers.0.wq", .observer = &monitor});
  layer.forward({.input = device.input, .weight = device.weight, .output = device.output}, stream);
  monitor.step_done(stream);
  const std::vector<MonitorRecord> records = monitor.records();
  BOOST_REQUIRE(!records.empty());
  BOOST_TEST(records[0].tensor == "input");
  BOOST_TEST(records[0].sqnr() > 20);
  BOOST_TEST_CHECK(records[0].stats.sum_of_squares == static_cast<double>(kShape.tokens * kShape.in_features),
                   boost::test_tools::tolerance(0.02));  // the variance after a LayerNorm is 1
}

// A dump writes the values that a layer computes within its casts, in a step that is not observed too, and changes no
// results.
BOOST_AUTO_TEST_CASE(a_dump_in_an_unobserved_step_has_the_fused_values) {
  const HostInputs host = make_inputs(kShape, Dtype::bf16, Dtype::bf16, 1);
  const LinearCase device(host, Dtype::bf16, Dtype::bf16, *backend, stream);
  const auto files = [&](bool observed, const std::filesystem::path& folder) {
    Monitor monitor(*backend, {.every = 100});
    const LinearOptions options{.name = "wq", .fusion = {.epilogue = parse_pointwise("silu(x)")}, .observer = &monitor};
    LayerNormLinear layer(*backend, {.linear = {kShape.in_features, kShape.out_features}, .affine = false},
                          tensorwise(), options);
    if (!observed) monitor.step_done(stream);
    for (const char* tensor : {"input", "grad_output"}) monitor.dump("wq", tensor, folder);
    layer.forward({.input = device.input, .weight = device.weight, .output = device.output}, stream);
    layer.backward({.grad_output = device.grad_output, .grad_input = device.grad_input}, stream);
    monitor.step_done(stream);
    BOOST_TEST(monitor.records().empty() == !observed);
    return device.result_bytes(stream);
  };
  const TemporaryDirectory seen;
  const TemporaryDirectory unseen;
  BOOST_TEST((files(true, seen.path()) == files(false, unseen.path())));
  int count = 0;
  for (const auto& file : std::filesystem::directory_iterator(seen.path())) {
    std::string name = file.path().filename().string();
    const std::string content = read_file(file.path(), 1 << 20, "");
    name.replace(name.find("step0"), 5, "step1");
    BOOST_REQUIRE_MESSAGE(std::filesystem::exists(unseen.path() / name), name);
    BOOST_TEST(read_file(unseen.path() / name, 1 << 20, "") == content, name);
    ++count;
  }
  BOOST_TEST(count >= 6);  // values, codes and scale_inv of both tensors
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
