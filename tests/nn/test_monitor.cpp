// Monitor on the CPU backend: the statistics of casts with known values, the names in its warnings, and the files that
// it writes.
#include "ingot/nn/observe/monitor.h"

#include <boost/test/unit_test.hpp>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <vector>

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/util/error.h"
#include "nn/counting_backend.h"
#include "support/expect_error.h"
#include "support/temporary_directory.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_monitor)

namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

struct Fixture {
  std::unique_ptr<Backend> backend = make_cpu_backend();
  Stream stream{*backend};
  std::vector<std::string> warnings;

  MonitorOptions options(int every = 1, int history = 1) {
    return {.every = every, .history = history, .warn = [this](const std::string& line) { warnings.push_back(line); }};
  }

  // Casts x[2, 4] of f32 with given scales of 1 and reports the cast to the monitor as a layer would.
  void cast(Monitor& monitor, std::vector<float> x, const char* layer, const char* tensor = "input",
            bool transposed = false) {
    const Device cpu = backend->device();
    std::vector<std::uint8_t> codes(8);
    float scale = 1;
    float amax = 0;
    float factor = 0;
    CastSpec spec{.in = Dtype::f32, .codes = !transposed, .transposed = transposed, .source = ScaleSource::given};
    const Tensor values = matrix(x.data(), Dtype::f32, 2, 4, cpu);
    const Tensor written = matrix(codes.data(), Dtype::e4m3fn, transposed ? 4 : 2, transposed ? 2 : 4, cpu);
    CastTensors tensors{.input = values, .scale_inv = vector(&factor, Dtype::f32, 1, cpu)};
    (transposed ? tensors.transposed : tensors.codes) = written;
    tensors.scales = vector(&scale, Dtype::f32, 1, cpu);
    tensors.amax = vector(&amax, Dtype::f32, 1, cpu);
    backend->cast(spec, tensors, stream);
    monitor.cast({.layer = layer,
                  .tensor = tensor,
                  .gemms = transposed ? "grad_weight" : "output",
                  .values = values,
                  .codes = written,
                  .scale_inv = tensors.scale_inv,
                  .scale = spec.scale,
                  .transposed = transposed},
                 stream);
  }

  void gemm(Monitor& monitor, std::vector<float> out, const char* layer) {
    const GemmSpec spec{.out = Dtype::f32};
    GemmTensors tensors{.a = {}, .b = {}, .out = matrix(out.data(), Dtype::f32, 2, 2, backend->device())};
    monitor.gemm({.layer = layer, .role = "output", .spec = spec, .tensors = tensors}, stream);
  }
};

const std::vector<float> kOrdinary{448.0F, 512.0F, -1e4F, 0x1p-9F, 0x1p-10F, -0x1p-12F, 0.0F, 1.0F};

BOOST_FIXTURE_TEST_SUITE(monitor, Fixture)

BOOST_AUTO_TEST_CASE(says_what_a_cast_did) {
  Monitor watching(*backend, options());
  BOOST_TEST(watching.table() == "no step has been observed\n");
  BOOST_TEST(watching.json_lines() == "");
  cast(watching, kOrdinary, "layers.0.wq");
  gemm(watching, {1, -3, 2, 0}, "layers.0.wq");
  BOOST_TEST(watching.records().empty());
  watching.step_done(stream);
  const std::vector<MonitorRecord> records = watching.records();
  BOOST_REQUIRE(records.size() == 2U);
  const MonitorRecord& of_cast = records[0];
  BOOST_TEST(of_cast.layer == "layers.0.wq");
  BOOST_TEST(of_cast.tensor == "input");
  BOOST_TEST(of_cast.gemms == "output");
  BOOST_TEST(of_cast.is_cast());
  BOOST_TEST(!of_cast.is_broken());
  BOOST_TEST(of_cast.elements == 8);
  BOOST_TEST(of_cast.stats.amax == 1e4F);
  BOOST_TEST(of_cast.saturated_fraction() == 0.25);
  BOOST_TEST(of_cast.flushed_fraction() == 0.25);
  const double signal = 448.0 * 448 + 512.0 * 512 + 1e8 + 0x1p-18 + 0x1p-20 + 0x1p-24 + 1;
  const double noise = 64.0 * 64 + 9552.0 * 9552 + 0x1p-20 + 0x1p-24;
  BOOST_TEST(std::fabs(of_cast.sqnr() - 10 * std::log10(signal / noise)) < 1e-9);
  BOOST_TEST(!records[1].is_cast());
  BOOST_TEST(records[1].tensor == "output");
  BOOST_TEST(records[1].stats.amax == 3.0F);
  BOOST_TEST(records[1].stats.smallest == 1.0F);
  BOOST_TEST(warnings.empty());

  std::istringstream table(watching.table());
  std::string line;
  std::getline(table, line);
  BOOST_TEST(line == "step 0");
  std::getline(table, line);
  for (const char* const column :
       {"layer", "tensor", "amax", "scale_inv", "saturated", "flushed", "nan", "inf", "SQNR"}) {
    BOOST_TEST(line.find(column) != std::string::npos, line);
  }
  std::getline(table, line);
  std::istringstream cells(line);
  const std::vector<std::string> words{std::istream_iterator<std::string>(cells), {}};
  const std::vector<std::string> expected{"layers.0.wq", "input", "f32->e4m3fn", "scale=tensor", "1e+04", "1", "25%",
                                          "25%",         "0",     "0",           "0.4"};
  BOOST_TEST_CHECK(words == expected, boost::test_tools::per_element());

  std::istringstream lines(watching.json_lines());
  std::getline(lines, line);
  const Json of_json = Json::parse(line);
  BOOST_TEST(of_json.at("layer") == "layers.0.wq");
  BOOST_TEST(of_json.at("kind") == "cast");
  BOOST_TEST(of_json.at("codes") == "e4m3fn");
  BOOST_TEST(of_json.at("saturated") == 2);
  BOOST_TEST(of_json.at("amax") == 1e4);
  std::getline(lines, line);
  BOOST_TEST(Json::parse(line).at("kind") == "gemm");
  BOOST_TEST(!std::getline(lines, line));
}

BOOST_AUTO_TEST_CASE(the_columns_of_the_table_are_as_wide_as_their_longest_cell) {
  Monitor watching(*backend, options());
  cast(watching, kOrdinary, "model.layers.0.self_attn.q_proj");
  cast(watching, kOrdinary, "l");
  watching.step_done(stream);
  std::istringstream table(watching.table());
  std::vector<std::size_t> ends;
  for (std::string line; std::getline(table, line);) ends.push_back(line.size());
  BOOST_TEST(ends.size() == 4);
  BOOST_TEST(ends[2] == ends[1]);
  BOOST_TEST(ends[3] == ends[1]);
}

BOOST_AUTO_TEST_CASE(a_layer_whose_name_is_not_utf8) {
  Monitor watching(*backend, options());
  cast(watching, kOrdinary, "layer \xff");
  watching.step_done(stream);
  const std::string lines = watching.json_lines();
  BOOST_TEST(Json::parse(lines.substr(0, lines.find('\n'))).at("layer") == "layer \xef\xbf\xbd");
  BOOST_TEST(watching.table().find("layer \xff") != std::string::npos);
}

BOOST_AUTO_TEST_CASE(names_the_tensor_that_has_a_nan) {
  Monitor watching(*backend, options());
  cast(watching, kOrdinary, "layers.0.wq");
  std::vector<float> broken = kOrdinary;
  broken[3] = std::numeric_limits<float>::quiet_NaN();
  cast(watching, broken, "layers.1.w2");
  cast(watching, broken, "layers.1.w2", "input", true);  // the same tensor, and no second line
  gemm(watching, {1, std::numeric_limits<float>::infinity(), 2, 0}, "layers.1.w2");
  BOOST_TEST(warnings.empty());
  watching.step_done(stream);
  BOOST_REQUIRE(warnings.size() == 2U);
  BOOST_TEST(warnings[0] == "step 0: tensor input of layers.1.w2 has 1 NaN and 0 Inf among its 8 elements");
  BOOST_TEST(warnings[1] == "step 0: the result output of layers.1.w2 has 0 NaN and 1 Inf among its 4 elements");
  const Json line = Json::parse(watching.json_lines().substr(0, watching.json_lines().find('\n')));
  BOOST_TEST(line.at("nan") == 0);
  const std::string json = watching.json_lines();
  BOOST_TEST(json.find("\"amax\":null") != std::string::npos, json);
}

BOOST_AUTO_TEST_CASE(observes_every_so_many_steps_and_keeps_some) {
  Monitor watching(*backend, options(3, 2));
  for (int step = 0; step < 10; ++step) {
    BOOST_TEST(watching.step() == step);
    BOOST_TEST(watching.observing() == (step % 3 == 0));
    cast(watching, kOrdinary, "a");
    gemm(watching, {1, 2, 3, 4}, "a");
    watching.step_done(stream);
  }
  const std::vector<MonitorRecord> records = watching.records();
  BOOST_REQUIRE(records.size() == 4U);
  BOOST_TEST(records[0].step == 6);
  BOOST_TEST(records[3].step == 9);
  BOOST_TEST(watching.table().starts_with("step 9\n"));
}

// More results than one block of device memory holds, each in its own record.
BOOST_AUTO_TEST_CASE(takes_any_number_of_tensors) {
  Monitor watching(*backend, options());
  for (int step = 0; step < 2; ++step) {
    for (int i = 0; i < 600; ++i) gemm(watching, {static_cast<float>(i + step), 0, 0, 0}, "a");
    watching.step_done(stream);
    const auto records = watching.records();
    BOOST_REQUIRE(records.size() == 600U);
    for (int i = 0; i < 600; ++i) {
      BOOST_TEST(records[static_cast<std::size_t>(i)].stats.amax == static_cast<float>(i + step));
    }
  }
}

BOOST_AUTO_TEST_CASE(leaves_out_what_is_nowhere_in_memory) {
  Monitor watching(*backend, options());
  watching.cast({.layer = "a", .tensor = "input", .gemms = "output", .values = {}, .codes = {}, .scale_inv = {}},
                stream);
  const GemmSpec spec{.out = Dtype::e4m3fn};
  std::uint8_t code = 0;
  const GemmTensors tensors{.a = {}, .b = {}, .out = matrix(&code, Dtype::e4m3fn, 1, 1, backend->device())};
  watching.gemm({.layer = "a", .role = "output", .spec = spec, .tensors = tensors}, stream);
  watching.step_done(stream);
  BOOST_TEST(watching.records().empty());
}

BOOST_AUTO_TEST_CASE(options_and_streams_that_make_no_sense) {
  BOOST_TEST(error_of([&] { Monitor(*backend, options(0)); }, ErrorCode::invalid_argument) ==
             "Monitor every: is 0, but must be 1 or more steps");
  BOOST_TEST(error_of([&] { Monitor(*backend, options(1, 0)); }, ErrorCode::invalid_argument) ==
             "Monitor history: is 0, but must be 1 or more steps");
  Monitor watching(*backend, options());
  cast(watching, kOrdinary, "a");
  const std::unique_ptr<Backend> stranger = make_cpu_backend();
  Stream strange(*stranger);
  check_contains(error_of([&] { watching.step_done(strange); }, ErrorCode::invalid_argument),
                 {"Monitor stream", "another backend"});
}

// Forward and backward may come from two threads, which have a Stream each.
BOOST_AUTO_TEST_CASE(a_step_is_on_one_stream_of_cuda) {
  DryRun dry(gpu_named("h200"));
  Backend& cuda = dry.backend();
  Stream first(cuda);
  Stream same(cuda, first.handle());
  Stream other(cuda);
  BOOST_REQUIRE(first.handle() != other.handle());
  const OwnedTensor values(cuda, Dtype::bf16, 8, 16);
  Monitor watching(cuda, options());
  const GemmSpec spec{.a = Dtype::bf16, .b = Dtype::bf16, .out = Dtype::bf16};
  const GemmTensors tensors{.a = {}, .b = {}, .out = values};
  const auto report = [&](Stream& on) {
    watching.gemm({.layer = "a", .role = "output", .spec = spec, .tensors = tensors}, on);
  };
  report(first);
  report(same);
  check_contains(error_of([&] { report(other); }, ErrorCode::invalid_argument),
                 {"Monitor stream", "observes the layers of one stream"});
  check_contains(error_of([&] { watching.step_done(other); }, ErrorCode::invalid_argument), {"Monitor stream"});
  watching.step_done(same);
  BOOST_TEST(watching.records().size() == 2U);
  report(other);
}

// The CPU's work is done when its call returns.
BOOST_AUTO_TEST_CASE(a_step_may_be_on_several_streams_of_the_cpu) {
  Monitor watching(*backend, options());
  cast(watching, kOrdinary, "a");
  Stream other(*backend);
  watching.step_done(other);
  BOOST_TEST(watching.records().size() == 1U);
}

BOOST_AUTO_TEST_CASE(observes_nothing_during_a_capture_and_says_so_once) {
  CountingBackend counting(*backend, &stream);
  Stream capturing(counting);
  Monitor watching(counting, options());
  counting.is_capturing = true;
  float x = 1;
  const GemmSpec spec{.out = Dtype::f32};
  const GemmTensors tensors{.a = {}, .b = {}, .out = matrix(&x, Dtype::f32, 1, 1, counting.device())};
  for (int i = 0; i < 3; ++i) {
    watching.gemm({.layer = "a", .role = "output", .spec = spec, .tensors = tensors}, capturing);
  }
  watching.step_done(capturing);
  BOOST_TEST(watching.records().empty());
  BOOST_TEST(counting.allocations == 0);
  BOOST_REQUIRE(warnings.size() == 1U);
  BOOST_TEST(warnings[0] == "the monitor observes nothing while the stream is capturing a graph");
}

// In a step that is not observed, the monitor does not even ask whether the stream is capturing.
BOOST_AUTO_TEST_CASE(costs_nothing_between_its_steps) {
  CountingBackend counting(*backend, &stream);
  Stream own(counting);
  Monitor watching(counting, options(2));
  watching.step_done(own);
  float x = 1;
  const GemmSpec spec{.out = Dtype::f32};
  const GemmTensors tensors{.a = {}, .b = {}, .out = matrix(&x, Dtype::f32, 1, 1, counting.device())};
  watching.gemm({.layer = "a", .role = "output", .spec = spec, .tensors = tensors}, own);
  watching.cast(
      {.layer = "a", .tensor = "input", .gemms = "output", .values = tensors.out, .codes = {}, .scale_inv = {}}, own);
  BOOST_TEST(counting.capture_questions == 0);
  BOOST_TEST(counting.allocations == 0);
}

std::vector<unsigned char> bytes_of(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  BOOST_REQUIRE_MESSAGE(stream, file);
  return {std::istreambuf_iterator<char>(stream), {}};
}

// The rules of the format: magic, version, a header that ends at a multiple of 64 bytes, then the elements.
std::vector<unsigned char> check_npy(const fs::path& file, const std::string& dictionary) {
  const std::vector<unsigned char> bytes = bytes_of(file);
  BOOST_REQUIRE(bytes.size() > 10U);
  BOOST_TEST(std::string(bytes.begin(), bytes.begin() + 6) == "\x93NUMPY");
  BOOST_TEST(bytes[6] == 1);
  BOOST_TEST(bytes[7] == 0);
  const std::size_t length = bytes[8] + 256U * bytes[9];
  BOOST_TEST((10 + length) % 64 == 0U);
  const std::string header(bytes.begin() + 10, bytes.begin() + 10 + static_cast<std::ptrdiff_t>(length));
  BOOST_TEST(header.starts_with(dictionary), header);
  BOOST_TEST(header.back() == '\n');
  return {bytes.begin() + 10 + static_cast<std::ptrdiff_t>(length), bytes.end()};
}

BOOST_AUTO_TEST_CASE(dumps_a_tensor_before_and_after_its_cast) {
  const TemporaryDirectory folder;
  Monitor watching(*backend, options(100));
  watching.step_done(stream);
  watching.dump("layers/0.wq", "input", folder.path());
  cast(watching, kOrdinary, "layers/0.wq", "grad_output");
  BOOST_TEST(fs::is_empty(folder.path()));
  cast(watching, kOrdinary, "layers/0.wq");
  cast(watching, kOrdinary, "layers/0.wq", "input", true);
  const std::string file = "layers_0.wq.input.step1.";
  const auto values =
      check_npy(folder.path() / (file + "values.npy"), "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 4), }");
  BOOST_REQUIRE(values.size() == 32U);
  BOOST_TEST(std::memcmp(values.data(), kOrdinary.data(), 32) == 0);
  const auto codes =
      check_npy(folder.path() / (file + "codes.npy"), "{'descr': '|u1', 'fortran_order': False, 'shape': (2, 4), }");
  const std::vector<unsigned char> expected{0x7e, 0x7e, 0xfe, 0x01, 0x00, 0x80, 0x00, 0x38};
  BOOST_TEST_CHECK(codes == expected, boost::test_tools::per_element());
  const auto transposed = check_npy(folder.path() / (file + "transposed.npy"),
                                    "{'descr': '|u1', 'fortran_order': False, 'shape': (4, 2), }");
  BOOST_REQUIRE(transposed.size() == 8U);
  BOOST_TEST(transposed[1] == expected[4]);
  const auto scale_inv = check_npy(folder.path() / (file + "transposed_scale_inv.npy"),
                                   "{'descr': '<f4', 'fortran_order': False, 'shape': (1, 1), }");
  const float one = 1;
  BOOST_REQUIRE(scale_inv.size() == 4U);
  BOOST_TEST(std::memcmp(scale_inv.data(), &one, 4) == 0);

  // A dump happens only once.
  fs::remove(folder.path() / (file + "values.npy"));
  watching.step_done(stream);
  cast(watching, kOrdinary, "layers/0.wq");
  BOOST_TEST(!fs::exists(folder.path() / "layers_0.wq.input.step2.values.npy"));

  watching.dump("a", "input", folder.path() / "missing");
  check_contains(error_of([&] { cast(watching, kOrdinary, "a"); }, ErrorCode::io_failed),
                 {"missing/a.input.step2.values.npy", "cannot be written"});
}

// A layer that computes a tensor's values within its cast writes them only for an observer that wants them.
BOOST_AUTO_TEST_CASE(wants_fused_values_until_a_dump_is_written) {
  const TemporaryDirectory folder;
  Monitor watching(*backend, options(100));
  BOOST_TEST(watching.wants_values());  // step 0 is observed
  watching.step_done(stream);
  BOOST_TEST(!watching.wants_values());
  watching.dump("a", "input", folder.path());
  BOOST_TEST(watching.wants_values());
  cast(watching, kOrdinary, "b");
  watching.step_done(stream);
  BOOST_TEST(watching.wants_values());  // "a" has not been cast yet
  cast(watching, kOrdinary, "a");
  BOOST_TEST(watching.wants_values());  // its transposed codes may follow
  watching.step_done(stream);
  BOOST_TEST(!watching.wants_values());
}

// 16-bit rows with gaps between them convert exactly to f32.
BOOST_AUTO_TEST_CASE(dumps_16_bits_with_a_row_stride) {
  const TemporaryDirectory folder;
  Monitor watching(*backend, options(100));
  for (const bool half : {false, true}) {
    // 1, -2.5, 2^-24 or 2^-133, Inf; NaN between the rows
    std::vector<std::uint16_t> x = half ? std::vector<std::uint16_t>{0x3c00, 0xc100, 0x7e00, 0x0001, 0x7c00}
                                        : std::vector<std::uint16_t>{0x3f80, 0xc020, 0x7fff, 0x0001, 0x7f80};
    Tensor values = matrix(x.data(), half ? Dtype::f16 : Dtype::bf16, 2, 2, backend->device());
    values.row_stride = 3;
    std::vector<std::uint8_t> codes(4);
    float factor = 1;
    const char* const layer = half ? "half" : "brain";
    watching.dump(layer, "weight", folder.path());
    watching.cast({.layer = layer,
                   .tensor = "weight",
                   .gemms = "output",
                   .values = values,
                   .codes = matrix(codes.data(), Dtype::e5m2, 2, 2, backend->device()),
                   .scale_inv = vector(&factor, Dtype::f32, 1, backend->device())},
                  stream);
    const auto bytes = check_npy(folder.path() / (std::string(layer) + ".weight.step0.values.npy"),
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 2), }");
    const std::vector<float> expected{1.0F, -2.5F, half ? 0x1p-24F : 0x1p-133F, std::numeric_limits<float>::infinity()};
    BOOST_REQUIRE(bytes.size() == 16U);
    BOOST_TEST(std::memcmp(bytes.data(), expected.data(), 16) == 0, layer);
  }
}

BOOST_AUTO_TEST_SUITE_END()

}  // namespace

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
