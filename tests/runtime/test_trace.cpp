// Trace on the CPU backend, read back as JSON: the launches, the ranges around them, and consistent times.
#include "ingot/runtime/measure/trace.h"

#include <boost/test/unit_test.hpp>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "ingot/nn/observe/observer.h"
#include "ingot/nn/observe/ranges.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/util/error.h"
#include "support/expect_error.h"
#include "support/fake_device.h"
#include "support/temporary_directory.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_trace)

namespace {

using Json = nlohmann::json;

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  OwnedTensor x{*backend, Dtype::f32, 64, 64};
  OwnedTensor amax{*backend, Dtype::f32, 1, 1};
  OwnedTensor sum{*backend, Dtype::f32, 1, 64};

  Fixture() { backend->device_api().fill_zero(x.view().data, 64 * 64 * 4, stream); }
  void launch_amax(Stream& on) { backend->amax({.in = Dtype::f32}, {.input = x, .amax = amax}, on); }
  void launch_sum(Stream& on) {
    backend->column_sum({.in = Dtype::f32, .out = Dtype::f32}, {.input = x, .sum = sum}, on);
  }
};

// The complete events of a category, ordered by their start.
std::vector<Json> events(const Json& trace, const std::string& category) {
  std::vector<Json> found;
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("cat") == category) found.push_back(event);
  }
  std::ranges::stable_sort(found, {}, [](const Json& event) { return event.at("ts").get<double>(); });
  return found;
}

double begin_of(const Json& event) { return event.at("ts").get<double>(); }
double end_of(const Json& event) { return begin_of(event) + event.at("dur").get<double>(); }
// Times are sums of other times.
bool within(const Json& inner, const Json& outer) {
  return begin_of(outer) <= begin_of(inner) + 1e-3 && end_of(inner) <= end_of(outer) + 1e-3;
}

BOOST_FIXTURE_TEST_SUITE(trace, Fixture)

BOOST_AUTO_TEST_CASE(elementwise_and_amax_history_are_launches) {
  OwnedTensor history(*backend, Dtype::f32, 1, 4);
  OwnedTensor slots(*backend, Dtype::f32, 4, 1);  // amax, scale, limit, pow2
  backend->device_api().fill_zero(history.view().data, 4 * 4, stream);
  backend->device_api().fill_zero(slots.view().data, 4 * 4, stream);
  const auto slot = [&](int which) {
    return vector(static_cast<float*>(slots.view().data) + which, Dtype::f32, 1, backend->device());
  };
  Trace tracing(*backend, stream);
  backend->elementwise({.in = Dtype::f32, .pointwise = parse_pointwise("relu(x)")},
                       {.input = x, .inputs = {}, .output = x}, stream);
  backend->amax_history({}, {.amax = slot(0), .history = history, .scale = slot(1), .limits = slot(2), .pow2 = slot(3)},
                        stream);
  const std::vector<Json> launches = events(Json::parse(tracing.json()), "launch");
  BOOST_REQUIRE(launches.size() == 2U);
  BOOST_TEST(launches[0].at("name") == "elementwise f32 of=max(x,0)");
  BOOST_TEST(launches[1].at("name") == "amax_history reduce=max");
}

BOOST_AUTO_TEST_CASE(launches_ranges_and_their_times) {
  launch_amax(stream);  // before the trace
  Trace tracing(*backend, stream);
  TraceRanges ranges(tracing);
  {
    const ObservedRange forward(&ranges, "layers.0.wq", "forward");
    launch_amax(stream);
    const ObservedRange output(&ranges, "layers.0.wq", "output");
    launch_sum(stream);
  }
  launch_amax(stream);
  const Json json = Json::parse(tracing.json());

  const std::vector<Json> launches = events(json, "launch");
  BOOST_REQUIRE(launches.size() == 3U);
  BOOST_TEST(launches[0].at("name") == "amax f32 scale=tensor");
  BOOST_TEST(launches[1].at("name") == "column_sum f32->f32");
  BOOST_TEST(launches[0].at("args").at("layer") == "layers.0.wq");
  BOOST_TEST(launches[0].at("args").at("role") == "forward");
  BOOST_TEST(launches[1].at("args").at("role") == "output");
  BOOST_TEST(!launches[2].contains("args"));
  for (std::size_t i = 0; i < 3; ++i) {
    BOOST_TEST(launches[i].at("dur").get<double>() > 0.0);
    BOOST_TEST(launches[i].at("pid") == 1);
    if (i != 0) BOOST_TEST(end_of(launches[i - 1]) <= begin_of(launches[i]) + 1e-3);
  }
  const std::vector<Json> enqueued = events(json, "enqueue");
  BOOST_REQUIRE(enqueued.size() == 3U);
  BOOST_TEST(enqueued[1].at("name") == "column_sum f32->f32");
  BOOST_TEST(enqueued[1].at("pid") == 0);

  // The host's ranges come first in time; each also spans its launches on the device.
  const auto range = [&](int process, const char* name) {
    for (const Json& event : events(json, "range")) {
      if (event.at("pid") == process && event.at("name") == name) return event;
    }
    BOOST_FAIL("there is no range " << name);
    return Json();
  };
  for (const int process : {0, 1}) {
    const std::vector<Json>& inside = process == 0 ? enqueued : launches;
    const Json forward = range(process, "layers.0.wq forward");
    const Json output = range(process, "layers.0.wq output");
    BOOST_TEST(within(output, forward));
    BOOST_TEST(within(inside[0], forward));
    BOOST_TEST(within(inside[1], output));
    BOOST_TEST(!within(inside[0], output));
    BOOST_TEST(!within(inside[2], forward));
  }
  std::set<std::string> names;
  for (const Json& event : json.at("traceEvents")) {
    if (event.at("ph") == "M") names.insert(event.at("args").at("name"));
  }
  BOOST_TEST((names == std::set<std::string>{"host", "cpu", "thread 0", "stream 0"}));
}

BOOST_AUTO_TEST_CASE(nothing_is_recorded_when_it_has_ended) {
  {
    Trace first(*backend, stream);
    launch_amax(stream);
  }
  launch_amax(stream);
  Trace second(*backend, stream);
  BOOST_TEST(events(Json::parse(second.json()), "launch").empty());
}

BOOST_AUTO_TEST_CASE(an_open_range_and_a_pop_too_many) {
  Trace tracing(*backend, stream);
  tracing.pop();
  tracing.push("a", "forward");
  launch_amax(stream);
  const Json json = Json::parse(tracing.json());
  BOOST_REQUIRE(events(json, "range").size() == 2U);
  BOOST_TEST(within(events(json, "enqueue")[0], events(json, "range")[0]));
}

BOOST_AUTO_TEST_CASE(a_layer_whose_name_is_not_utf8) {
  Trace tracing(*backend, stream);
  tracing.push("layer \xff", "forward");
  launch_amax(stream);
  tracing.pop();
  const Json json = Json::parse(tracing.json());
  BOOST_TEST(events(json, "enqueue")[0].at("args").at("layer") == "layer \xef\xbf\xbd");
}

// A refused operation leaves no launch, and the next one is recorded as usual.
BOOST_AUTO_TEST_CASE(what_fails_is_not_there) {
  Trace tracing(*backend, stream);
  BOOST_CHECK_THROW(backend->amax({.in = Dtype::f32}, {.input = x, .amax = sum}, stream), Error);
  launch_sum(stream);
  BOOST_TEST(events(Json::parse(tracing.json()), "launch").size() == 1U);
}

BOOST_AUTO_TEST_CASE(a_track_for_each_thread_and_stream) {
  Stream other(*backend);
  Trace tracing(*backend, stream);
  launch_amax(stream);
  std::thread([&] {
    tracing.push("b", "forward");
    backend->column_sum({.in = Dtype::f32, .out = Dtype::f32}, {.input = x, .sum = sum}, other);
    tracing.pop();
  }).join();
  launch_amax(stream);
  const Json json = Json::parse(tracing.json());
  const std::vector<Json> launches = events(json, "launch");
  const std::vector<Json> enqueued = events(json, "enqueue");
  BOOST_REQUIRE(launches.size() == 3U);
  for (const std::vector<Json>& all : {launches, enqueued}) {
    BOOST_TEST(all[0].at("tid") == 0);
    BOOST_TEST(all[1].at("tid") == 1);
    BOOST_TEST(all[2].at("tid") == 0);
    BOOST_TEST(!all[2].contains("args"));
  }
}

BOOST_AUTO_TEST_CASE(writes_a_file) {
  const TemporaryDirectory folder;
  Trace tracing(*backend, stream);
  launch_amax(stream);
  tracing.write(folder.path() / "step.json");
  std::ifstream file(folder.path() / "step.json");
  BOOST_TEST(events(Json::parse(file), "launch").size() == 1U);
  check_contains(error_of([&] { tracing.write(folder.path() / "missing" / "step.json"); }, ErrorCode::io_failed),
                 {"missing/step.json", "cannot be written"});
}

BOOST_AUTO_TEST_CASE(a_capture_is_refused) {
  FakeDevice fake;
  Stream capturing(fake);
  fake.is_capturing = true;
  const std::string expected =
      "trace: the stream is capturing a graph, whose launches have no separate times: trace a step that is not "
      "captured";
  BOOST_TEST(error_of([&] { Trace(fake, capturing); }, ErrorCode::invalid_argument) == expected);
  fake.is_capturing = false;
  Trace tracing(fake, capturing);
  fake.is_capturing = true;
  BOOST_TEST(error_of([&] { tracing.before(capturing); }, ErrorCode::invalid_argument) == expected);
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
