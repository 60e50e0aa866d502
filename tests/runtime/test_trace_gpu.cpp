// Trace on a GPU: kernels of several passes and cuBLASLt's call, in the order of the stream; a capture is refused.
#include "support/gpu_test.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "ingot/nn/observe/monitor.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/measure/trace.h"
#include "ingot/runtime/util/error.h"
#include "support/capture.h"
#include "support/expect_error.h"
#include "support/run_case.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_trace_gpu)

namespace {

using Json = nlohmann::json;

Context& context() {
  static Context one(cuda_options());
  return one;
}

struct Fixture {
  Backend& cuda = context().backend();
  Stream stream{cuda};
  InputMaker maker;
  std::string problem;
  std::unique_ptr<Driver> driver = Driver::open(problem);
  std::optional<CurrentContext> current;

  Fixture() {
    BOOST_REQUIRE_MESSAGE(driver != nullptr, problem);
    current.emplace(*driver, context().device().index);
  }
};

std::vector<Json> launches(const Json& trace) {
  std::vector<Json> found;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("cat") == "launch") found.push_back(event);
  }
  std::ranges::stable_sort(found, {}, [](const Json& event) { return event.at("ts").get<double>(); });
  return found;
}

BOOST_FIXTURE_TEST_SUITE(trace, Fixture)

BOOST_AUTO_TEST_CASE(launches_follow_each_other) {
  const Case cast{.spec = parse("cast bf16->e4m3fn scale=tensor out=codes,transposed"), .shape = {4096, 4096}};
  const Case gemm{.spec = parse("gemm bf16*bf16->bf16 nt kernel=cublaslt"), .shape = {1024, 1024, 1024}};
  PlacedCase placed_cast(cast, maker.inputs(cast), cuda, stream);
  PlacedCase placed_gemm(gemm, maker.inputs(gemm), cuda, stream);
  placed_cast.enqueue(stream);
  placed_gemm.enqueue(stream);
  const std::int64_t before = cuda.device_api().launches();
  Trace tracing(cuda, stream);
  tracing.push("layers.0.wq", "forward");
  placed_cast.enqueue(stream);
  placed_gemm.enqueue(stream);
  tracing.pop();
  const std::vector<Json> seen = launches(Json::parse(tracing.json()));
  BOOST_TEST(static_cast<std::int64_t>(seen.size()) == cuda.device_api().launches() - before);
  BOOST_REQUIRE(seen.size() == 3U);
  BOOST_TEST(seen[0].at("name") == print(cast.spec) + " (first pass)");
  BOOST_TEST(seen[1].at("name") == print(cast.spec));
  BOOST_TEST(seen[2].at("name") == print(gemm.spec));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    const double microseconds = seen[i].at("dur").get<double>();
    BOOST_TEST_MESSAGE(seen[i].at("name").get<std::string>() << ": " << microseconds << " us");
    BOOST_TEST(microseconds > 1.0);
    BOOST_TEST(microseconds < 1e4);
    BOOST_TEST(seen[i].at("args").at("layer") == "layers.0.wq");
    if (i == 0) continue;
    const double end = seen[i - 1].at("ts").get<double>() + seen[i - 1].at("dur").get<double>();
    BOOST_TEST(end <= seen[i].at("ts").get<double>() + 1.0);  // events resolve half a microsecond
  }
}

BOOST_AUTO_TEST_CASE(a_capture_is_refused) {
  const Case c{.spec = parse("cast bf16->e4m3fn scale=row out=codes"), .shape = {64, 64}};
  PlacedCase placed(c, maker.inputs(c), cuda, stream);
  placed.enqueue(stream);
  Trace tracing(cuda, stream);
  {
    const Capture capture(*driver, stream);
    check_contains(error_of([&] { placed.enqueue(stream); }, ErrorCode::invalid_argument), {"trace", "capturing"});
  }
  placed.enqueue(stream);
  BOOST_TEST(launches(Json::parse(tracing.json())).size() == 1U);
}

// The monitor on a GPU reads back the same statistics as on the CPU backend.
BOOST_AUTO_TEST_CASE(a_monitor_reads_back_what_the_cpu_finds) {
  const Case c{.spec = parse("cast_stats bf16->e4m3fn scale=128x128 transposed"), .shape = {300, 1024}};
  const auto spec = std::get<CastStatsSpec>(c.spec);
  std::vector<std::vector<MonitorRecord>> found;
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  for (Backend* const backend : {&cuda, cpu.get()}) {
    Stream own(*backend);
    PlacedCase placed(c, maker.inputs(c), *backend, own);
    Monitor monitor(*backend);
    for (int i = 0; i < 300; ++i) {
      monitor.cast({.layer = "a",
                    .tensor = "input",
                    .gemms = "grad_weight",
                    .values = placed.tensor("input"),
                    .codes = placed.tensor("codes"),
                    .scale_inv = placed.tensor("scale_inv"),
                    .scale = spec.scale,
                    .transposed = true},
                   own);
    }
    if (backend == &cuda) {
      const Capture capture(*driver, own);
      monitor.cast({.layer = "a",
                    .tensor = "input",
                    .gemms = "",
                    .values = placed.tensor("input"),
                    .codes = placed.tensor("codes"),
                    .scale_inv = placed.tensor("scale_inv")},
                   own);
    }
    monitor.step_done(own);
    found.push_back(monitor.records());
  }
  BOOST_REQUIRE(found[0].size() == 300U);
  for (const MonitorRecord& record : found[0]) BOOST_TEST((record.stats == found[1][0].stats));
  BOOST_TEST(found[0][0].stats.saturated > 0U);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
