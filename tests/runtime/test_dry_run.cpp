// The CUDA backend on a driver that does nothing: what it is given, and what it asks for.
#include "ingot/runtime/context/dry_run.h"

#include <boost/test/unit_test.hpp>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "ingot/codegen/gemm/gemm_estimate.h"
#include "ingot/codegen/generate.h"
#include "ingot/codegen/recording.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/context/cuda_backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/jit/warm_up.h"
#include "ingot/runtime/measure/trace.h"
#include "support/counting_allocator.h"
#include "support/expect_error.h"
#include "support/fake_compiler.h"

BOOST_AUTO_TEST_SUITE(test_dry_run)

using namespace ingot;
using test::check_contains;
using test::error_of;

namespace {

struct Fixture {
  DryRun dry{gpu_named("h200")};
  Backend& backend = dry.backend();
  Stream stream{backend};

  OwnedTensor tensor(Dtype dtype, std::int64_t rows, std::int64_t cols) { return {backend, dtype, rows, cols}; }
  std::vector<std::string> kernels() const {
    std::vector<std::string> lines;
    const Recording recording = dry.recording();
    for (const KernelSpec& spec : recording.kernels()) lines.push_back(print(spec));
    return lines;
  }
};

}  // namespace

BOOST_AUTO_TEST_SUITE(dry_driver)

BOOST_AUTO_TEST_CASE(it_is_the_named_gpu) {
  for (const Gpu& gpu : known_gpus()) {
    const auto driver = make_dry_driver(gpu);
    BOOST_TEST(driver->device_count() == 1);
    BOOST_TEST(driver->device_name(0) == gpu.device);
    BOOST_TEST((driver->device_target(0) == gpu.target));
    BOOST_TEST(driver->multiprocessors(0) == gpu.multiprocessors);
    BOOST_TEST(driver->overlaps_kernels(0) == (gpu.target.major >= 9));
    const CurrentContext current(*driver, 0);
    CUdevice device = -1;
    int bytes = 0;
    BOOST_TEST(driver->api().cuCtxGetDevice(&device) == CUDA_SUCCESS);
    BOOST_TEST(driver->api().cuDeviceGetAttribute(&bytes, CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN,
                                                  device) == CUDA_SUCCESS);
    BOOST_TEST(bytes == gpu.block_shared_bytes);
  }
  check_contains(error_of(
                     [] {
                       make_dry_driver(
                           {.name = "mine", .device = "", .target = {}, .multiprocessors = 1, .block_shared_bytes = 1});
                     },
                     ErrorCode::invalid_argument),
                 {"\"mine\" must be one of"});
}

// A driver that lacks a function would crash at its first use.
BOOST_AUTO_TEST_CASE(it_has_every_function) {
  const auto driver = make_dry_driver(gpu_named("h100"));
#define INGOT_CHECK(function) BOOST_TEST((driver->api().function != nullptr), #function " is missing");
  INGOT_DRIVER_FUNCTIONS(INGOT_CHECK)
#undef INGOT_CHECK
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(dry_run, Fixture)

BOOST_AUTO_TEST_CASE(memory_is_addresses) {
  std::set<std::uintptr_t> ends;
  std::vector<std::pair<std::uintptr_t, std::uintptr_t>> pieces;
  for (const std::size_t bytes : {std::size_t{1}, std::size_t{256}, std::size_t{1} << 40U, std::size_t{3}}) {
    const auto at = reinterpret_cast<std::uintptr_t>(backend.device_api().allocate(bytes));
    BOOST_TEST(at % 256 == 0U);
    for (const auto& [begin, end] : pieces) BOOST_TEST((at >= end || at + bytes <= begin));
    pieces.emplace_back(at, at + bytes);
  }
  backend.device_api().release(reinterpret_cast<void*>(pieces[0].first));
  BOOST_TEST(backend.device_api().allocate(0) == nullptr);
  check_contains(error_of([&] { backend.device_api().allocate(std::size_t{1} << 60U); }, ErrorCode::out_of_memory),
                 {"no room for 1152921504606846976 bytes"});

  void* const data = backend.device_api().allocate(16);
  std::array<unsigned char, 16> host{};
  host.fill(7);
  backend.device_api().copy_from_host(data, host.data(), host.size(), stream);
  backend.device_api().copy_to_host(host.data(), data, host.size(), stream);
  BOOST_TEST(std::ranges::all_of(host, [](unsigned char byte) { return byte == 0; }));
}

BOOST_AUTO_TEST_CASE(streams_fences_and_marks) {
  Stream other(backend);
  BOOST_TEST(other.handle() != stream.handle());
  stream.wait_for(other);
  backend.device_api().synchronize(stream);
  void* const event = backend.device_api().create_timing_event();
  backend.device_api().record_timing_event(event, stream);
  BOOST_TEST(backend.device_api().microseconds_between(event, event) == 0.0);
  backend.device_api().destroy_timing_event(event);
}

BOOST_AUTO_TEST_CASE(a_cast_is_recorded_by_its_spec) {
  const OwnedTensor input = tensor(Dtype::bf16, 4096, 4096);
  const OwnedTensor codes = tensor(Dtype::e4m3fn, 4096, 4096);
  const OwnedTensor scale_inv = tensor(Dtype::f32, 1, 4096);
  const CastSpec spec{.in = Dtype::bf16, .out = Dtype::e4m3fn, .scale = kRowwise};
  for (int i = 0; i < 2; ++i) {
    backend.cast(spec, {.input = input, .codes = codes, .scale_inv = scale_inv}, stream);
  }
  BOOST_TEST((kernels() == std::vector{print(KernelSpec(spec))}));
  BOOST_TEST(backend.device_api().launches() >= 2);
  BOOST_TEST(dry.recording().matmuls().empty());
}

// Of matrices without elements there are only zeros to fill in.
BOOST_AUTO_TEST_CASE(lists_are_one_launch_each) {
  const OwnedTensor first = tensor(Dtype::f32, 300, 128);
  const OwnedTensor second = tensor(Dtype::f32, 70, 33);
  const OwnedTensor maxima = tensor(Dtype::f32, 1, 372);
  const OwnedTensor scales = tensor(Dtype::f32, 1, 372);
  const OwnedTensor codes = tensor(Dtype::e4m3fn, 300, 128);
  const OwnedTensor scale_inv = tensor(Dtype::f32, 1, 300);
  const auto part = [&](const OwnedTensor& of, std::int64_t begin, std::int64_t count) {
    return vector(static_cast<float*>(of.view().data) + begin, Dtype::f32, count, backend.device());
  };
  const AmaxSpec spec{.in = Dtype::f32, .scale = kRowwise, .second_scale = kTensorwise, .rounded = Dtype::bf16};
  const std::vector<AmaxTensors> matrices{
      {.input = first, .amax = part(maxima, 0, 300), .second_amax = part(maxima, 300, 1)},
      {.input = second, .amax = part(maxima, 301, 70), .second_amax = part(maxima, 371, 1)}};
  const std::vector<AmaxTensors> nothing{
      {.input = {.dtype = Dtype::f32, .cols = 9, .row_stride = 9, .device = backend.device()},
       .amax = {},
       .second_amax = part(maxima, 0, 1)}};
  const CastSpec cast{
      .in = Dtype::f32, .scale = kRowwise, .source = ScaleSource::given, .list = true, .rounded = Dtype::bf16};
  const auto list = backend.make_amax_list(spec, matrices, stream);
  const auto empty = backend.make_amax_list(spec, nothing, stream);
  const auto casts = backend.make_cast_list(cast,
                                            std::vector<CastTensors>{{.input = first,
                                                                      .codes = codes,
                                                                      .scale_inv = scale_inv,
                                                                      .scales = part(scales, 0, 300),
                                                                      .amax = part(maxima, 0, 300)}},
                                            stream);
  const auto launches_of = [&](const auto& run) {
    const std::int64_t before = backend.device_api().launches();
    run();
    return backend.device_api().launches() - before;
  };
  BOOST_TEST(launches_of([&] { list->run(stream); }) == 1);
  BOOST_TEST(launches_of([&] { empty->run(stream); }) == 0);
  BOOST_TEST(launches_of([&] { backend.amax_scales({}, {.amax = maxima, .scale = scales}, stream); }) == 1);
  BOOST_TEST(launches_of([&] { casts->run(stream); }) == 1);
  BOOST_TEST((kernels() == std::vector<std::string>{"amax f32 scale=row+tensor rounded=bf16 list", "amax_scales e4m3fn",
                                                    "cast f32->e4m3fn scale=row out=codes given rounded=bf16 list"}));
}

// It asks for the kernel that runs where cuBLASLt does not, and the call gives the whole order.
BOOST_AUTO_TEST_CASE(a_gemm_is_recorded_by_spec_and_size) {
  const OwnedTensor a = tensor(Dtype::bf16, 8192, 4096);
  const OwnedTensor b = tensor(Dtype::bf16, 6144, 4096);
  const OwnedTensor out = tensor(Dtype::bf16, 8192, 6144);
  backend.gemm({.a = Dtype::bf16, .b = Dtype::bf16, .out = Dtype::bf16}, {.a = a, .b = b, .out = out}, stream);
  const Recording recording = dry.recording();
  BOOST_REQUIRE(recording.matmuls().size() == 1U);
  BOOST_TEST(print(recording.matmuls()[0]) == "gemm bf16*bf16->bf16 nt 8192 6144 4096");
  const GemmSpec bf16{.a = Dtype::bf16, .b = Dtype::bf16};
  BOOST_TEST((kernels() ==
              std::vector<std::string>{
                  "gemm bf16*bf16->bf16 nt kernel=sm90:" +
                  print(choose_sm90_tiling(bf16, {8192, 6144, 4096}, matmul_device(dry.gpu()).multiprocessors))}));
  BOOST_TEST(kernels_of(recording, matmul_device(dry.gpu())).size() == 3U);  // sm90, mma, simt
}

// Checks are the library's own.
BOOST_AUTO_TEST_CASE(errors_are_those_of_a_gpu) {
  const OwnedTensor a = tensor(Dtype::bf16, 8, 16);
  const OwnedTensor out = tensor(Dtype::bf16, 8, 8);
  check_contains(error_of(
                     [&] {
                       backend.gemm({.a = Dtype::bf16, .b = Dtype::bf16, .out = Dtype::bf16},
                                    {.a = a, .b = a, .out = a}, stream);
                     },
                     ErrorCode::invalid_argument),
                 {"out"});
  BOOST_TEST(dry.recording().empty());
}

// Nothing may be loaded during a capture: the step must have run before, as on a GPU.
BOOST_AUTO_TEST_CASE(captures_load_nothing) {
  const auto driver = make_dry_driver(gpu_named("h200"));
  const Driver::Api& api = driver->api();
  const OwnedTensor input = tensor(Dtype::bf16, 64, 64);
  const OwnedTensor sum = tensor(Dtype::f32, 1, 64);
  const auto step = [&] {
    backend.column_sum({.in = Dtype::bf16, .out = Dtype::f32}, {.input = input, .sum = sum}, stream);
  };
  BOOST_TEST(!backend.device_api().capturing(stream));
  BOOST_TEST(api.cuStreamBeginCapture(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
  BOOST_TEST(backend.device_api().capturing(stream));
  check_contains(error_of(step, ErrorCode::invalid_argument), {"run the step once before"});
  CUgraph graph = nullptr;
  BOOST_TEST(api.cuStreamEndCapture(stream.handle(), &graph) == CUDA_SUCCESS);
  BOOST_TEST(api.cuGraphDestroy(graph) == CUDA_SUCCESS);
  step();
  const Recording before = dry.recording();
  BOOST_TEST(api.cuStreamBeginCapture(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) == CUDA_SUCCESS);
  step();
  BOOST_TEST(api.cuStreamEndCapture(stream.handle(), &graph) == CUDA_SUCCESS);
  CUgraphExec executable = nullptr;
  BOOST_TEST(api.cuGraphInstantiate(&executable, graph, 0) == CUDA_SUCCESS);
  BOOST_TEST(api.cuGraphLaunch(executable, stream.handle()) == CUDA_SUCCESS);
  BOOST_TEST((dry.recording() == before));
  BOOST_TEST(api.cuGraphExecDestroy(executable) == CUDA_SUCCESS);
  BOOST_TEST(api.cuGraphDestroy(graph) == CUDA_SUCCESS);
}

// Two small GEMMs in a capture: two launches of what is loaded, or one of the kernel for both if that is.
BOOST_AUTO_TEST_CASE(a_capture_takes_a_pair_that_is_loaded) {
  const OwnedTensor gradient = tensor(Dtype::bf16, 256, 384);
  const OwnedTensor weight = tensor(Dtype::bf16, 384, 128);
  const OwnedTensor input = tensor(Dtype::bf16, 256, 128);
  const OwnedTensor grad_input = tensor(Dtype::bf16, 256, 128);
  const OwnedTensor grad_weight = tensor(Dtype::bf16, 384, 128);
  const auto bf16 = [](const char* layouts) {
    return std::get<GemmSpec>(parse(std::string("gemm bf16*bf16->bf16 ") + layouts));
  };
  const GemmWork first{.spec = bf16("nn"), .tensors = {.a = gradient, .b = weight, .out = grad_input}};
  const GemmWork second{.spec = bf16("tn"), .tensors = {.a = gradient, .b = input, .out = grad_weight}};
  BOOST_TEST(
      backend.pairs({.spec = first.spec, .size = {256, 128, 384}}, {.spec = second.spec, .size = {384, 128, 256}}));
  backend.gemm(first.spec, first.tensors, stream);
  backend.gemm(second.spec, second.tensors, stream);
  const auto launches_of_a_capture = [&] {
    const std::int64_t before = backend.device_api().launches();
    const Graph graph(stream, [&] { backend.gemm_pair(first, second, stream); });
    return backend.device_api().launches() - before;
  };
  BOOST_TEST(launches_of_a_capture() == 2);
  const std::int64_t before = backend.device_api().launches();
  backend.gemm_pair(first, second, stream);
  BOOST_TEST(backend.device_api().launches() - before == 1);
  BOOST_TEST(launches_of_a_capture() == 1);
  // Addresses that the copy engine does not take.
  GemmWork askew = first;
  askew.tensors.out.row_stride = askew.tensors.out.cols;
  askew.tensors.a =
      matrix(static_cast<std::byte*>(gradient.view().data) + 2, Dtype::bf16, 256, 384 - 8, backend.device());
  askew.tensors.a.row_stride = 384;
  askew.tensors.b = matrix(weight.view().data, Dtype::bf16, 384 - 8, 128, backend.device());
  const std::int64_t aligned = backend.device_api().launches();
  backend.gemm_pair(askew, second, stream);
  BOOST_TEST(backend.device_api().launches() - aligned == 2);
}

// Each has its own driver, and threads may share one.
BOOST_AUTO_TEST_CASE(several_at_once) {
  DryRun l40s(gpu_named("l40s"));
  const auto run = [](DryRun& on) {
    Stream own(on.backend());
    const OwnedTensor a(on.backend(), Dtype::e4m3fn, 256, 256);
    const OwnedTensor scale_inv(on.backend(), Dtype::f32, 1, 1);
    const OwnedTensor out(on.backend(), Dtype::bf16, 256, 256);
    on.backend().gemm({}, {.a = a, .b = a, .scale_inv_a = scale_inv, .scale_inv_b = scale_inv, .out = out}, own);
  };
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      run(dry);
      run(l40s);
    });
  }
  threads.clear();
  const auto kernel_on = [](const DryRun& on) { return std::get<GemmSpec>(on.recording().kernels().at(0)).kernel; };
  BOOST_TEST(dry.recording().kernels().size() == 1U);
  BOOST_TEST((kernel_on(dry) == GemmKernel::sm90));
  BOOST_TEST((kernel_on(l40s) == GemmKernel::mma));
}

// A green context has a part of its GPU's multiprocessors, and the choice of kernels goes by them.
BOOST_AUTO_TEST_CASE(the_callers_context_takes_the_primary_ones_place) {
  const std::unique_ptr<Driver> theirs = make_dry_driver(gpu_named("h200"));
  CUcontext const context = theirs->context(0);
  const std::unique_ptr<Driver> primary = make_dry_driver(gpu_named("h200"));
  const CurrentContext none(*primary, 0);
  Driver::Api api = primary->api();
  api.cuCtxGetDevResource = [](CUcontext, CUdevResource* resource, CUdevResourceType) {
    resource->sm.smCount = 16;
    return CUDA_SUCCESS;
  };
  CUdevice device = 0;
  BOOST_REQUIRE(api.cuCtxGetDevice(&device) == CUDA_SUCCESS);
  const auto driver = Driver::over(api, device, {primary->context(0), [](CUctx_st*) {}});
  BOOST_TEST(driver->multiprocessors(0) == 132);
  BOOST_TEST(driver->use_context(context) == 0);
  BOOST_TEST(driver->context(0) == context);
  BOOST_TEST(driver->multiprocessors(0) == 16);
  CUcontext found = nullptr;
  BOOST_REQUIRE(api.cuCtxGetCurrent(&found) == CUDA_SUCCESS);
  BOOST_TEST(found == primary->context(0), "the context that was current before");

  KernelStore store{std::filesystem::path()};
  KernelCache cache(nullptr, store, gpu_named("h200").target, driver.get());
  const auto own_backend = make_cuda_backend(*driver, 0, cache, {});
  const CurrentContext ours(*driver, 0);
  BOOST_REQUIRE(api.cuCtxGetCurrent(&found) == CUDA_SUCCESS);
  BOOST_TEST(found == context);
  const Buffer memory(*own_backend, 100);  // allocated there

  const std::unique_ptr<Driver> elsewhere = make_dry_driver(gpu_named("h20"));
  check_contains(
      error_of([&] { driver->use_context(elsewhere->context(0)); }, ErrorCode::not_found),
      {"ContextOptions::cuda_context: is of a device that the driver does not list", "CUDA_VISIBLE_DEVICES"});
}

BOOST_AUTO_TEST_CASE(kernels_are_prepared) {
  std::vector<KernelPass> kernels;
  for (const char* const line :
       {"amax bf16 scale=tensor", "cast bf16->e4m3fn scale=row out=codes", "cast bf16->e5m2 scale=row out=codes"}) {
    kernels.push_back({.spec = parse(line)});
  }
  const std::unique_ptr<Driver> driver = make_dry_driver(gpu_named("h200"));
  KernelStore store{std::filesystem::path()};
  const test::FakeCompiler compiler;
  KernelCache cache(&compiler, store, gpu_named("h200").target, driver.get());
  std::vector<std::string> seen;
  prepare_kernels(cache, kernels, [&](const PrepareProgress& now) {
    seen.push_back(fmt::format("{} of {}: {}", now.done, now.total, now.kernel));
    BOOST_TEST((cache.find(kernels[now.done - 1].spec) != nullptr));
  });
  const std::vector<std::string> expected{"1 of 3: amax bf16 scale=tensor",
                                          "2 of 3: cast bf16->e4m3fn scale=row out=codes",
                                          "3 of 3: cast bf16->e5m2 scale=row out=codes"};
  BOOST_TEST_CHECK(seen == expected, boost::test_tools::per_element());
  BOOST_TEST(cache.stats().compiled == 3);
  prepare_kernels(cache, kernels, {});
  BOOST_TEST(cache.stats().compiled == 3);

  KernelCache without(nullptr, store, gpu_named("h200").target, driver.get());
  int tried = 0;
  check_contains(error_of([&] { prepare_kernels(without, kernels, [&](const PrepareProgress&) { ++tried; }); },
                          ErrorCode::not_found),
                 {"amax bf16"});
  BOOST_TEST(tried == 3);
}

BOOST_AUTO_TEST_CASE(kernels_are_compiled_for_another_gpu_without_a_driver) {
  const KernelPass kernel{.spec = parse("cast bf16->e4m3fn scale=row out=codes")};
  KernelStore store{std::filesystem::path()};
  const test::FakeCompiler compiler;
  KernelCache cache(&compiler, store, gpu_named("a100").target, nullptr);
  const Target target = gpu_named("h200").target;
  int seen = 0;
  compile_kernels(cache, {kernel}, target, [&](const PrepareProgress& now) {
    ++seen;
    BOOST_TEST(now.kernel == "cast bf16->e4m3fn scale=row out=codes");
  });
  BOOST_TEST(seen == 1);
  BOOST_TEST(cache.stats().compiled == 1);
  static_cast<void>(cache.compiled(generate(kernel.spec, kernel.pass), target));
  BOOST_TEST(cache.stats().compiled == 1, "it was compiled for that target");
  static_cast<void>(cache.compiled(generate(kernel.spec, kernel.pass), gpu_named("a100").target));
  BOOST_TEST(cache.stats().compiled == 2);
}

// Threads of one program have a Stream each for the stream that they share.
BOOST_AUTO_TEST_CASE(a_trace_has_a_track_for_each_stream_of_cuda) {
  Stream first(dry.backend());
  Stream same(dry.backend(), first.handle());
  Stream other(dry.backend());
  const OwnedTensor x(dry.backend(), Dtype::f32, 8, 8);
  const OwnedTensor amax(dry.backend(), Dtype::f32, 1, 1);
  Trace trace(dry.backend(), first);
  for (Stream* const on : {&first, &same, &other}) {
    dry.backend().amax({.in = Dtype::f32}, {.input = x, .amax = amax}, *on);
  }
  const auto json = nlohmann::json::parse(trace.json());
  std::map<int, int> tracks;
  for (const auto& event : json.at("traceEvents")) {
    if (event.value("cat", "") == "launch") ++tracks[event.at("tid").get<int>()];
  }
  BOOST_REQUIRE(tracks.size() == 2U);
  BOOST_TEST(tracks.at(0) == 2 * tracks.at(1));
}

BOOST_AUTO_TEST_SUITE_END()

// Graph, on the dry driver with one function replaced at a time.
BOOST_AUTO_TEST_SUITE(graphs)

namespace {

// What the replaced functions do; libcuda's take no state.
struct Calls {
  int nodes = 1;
  int replays = 0, instantiated = 0, destroyed_graphs = 0, destroyed_executables = 0;
  CUstream replayed_on = nullptr;
  CUresult update = CUDA_SUCCESS, instantiate = CUDA_SUCCESS;
  bool broken_off = false;
  bool capturing = false;
  int cleared_in_capture = 0, words_in_capture = 0, released = 0, strict_allocations = 0;
  std::set<const void*> cleared{};
  unsigned last_word = 0;
  std::set<CUdeviceptr> freed{};
  CUresult attribute = CUDA_SUCCESS;
  CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
  decltype(Driver::Api::cuStreamBeginCapture) begin_capture = nullptr;
  decltype(Driver::Api::cuStreamEndCapture) end_capture = nullptr;
  decltype(Driver::Api::cuGraphDestroy) destroy_graph = nullptr;
  decltype(Driver::Api::cuMemAlloc) allocate = nullptr;
};
Calls calls;

Driver::Api counted(Driver::Api api) {
  calls = Calls{};
  calls.begin_capture = api.cuStreamBeginCapture;
  calls.end_capture = api.cuStreamEndCapture;
  calls.destroy_graph = api.cuGraphDestroy;
  calls.allocate = api.cuMemAlloc;
  api.cuStreamBeginCapture = [](CUstream stream, CUstreamCaptureMode mode) {
    calls.capturing = true;
    return calls.begin_capture(stream, mode);
  };
  api.cuMemsetD8Async = [](CUdeviceptr data, unsigned char, std::size_t, CUstream) {
    calls.cleared.insert(reinterpret_cast<const void*>(data));
    calls.cleared_in_capture += calls.capturing ? 1 : 0;
    return CUDA_SUCCESS;
  };
  api.cuMemsetD32Async = [](CUdeviceptr, unsigned word, std::size_t count, CUstream) {
    calls.words_in_capture += calls.capturing ? static_cast<int>(count) : 0;
    calls.last_word = word;
    return CUDA_SUCCESS;
  };
  api.cuPointerGetAttribute = [](void* type, CUpointer_attribute which, CUdeviceptr byte) {
    BOOST_TEST(which == CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
    if (calls.freed.contains(byte)) return CUDA_ERROR_INVALID_VALUE;
    *static_cast<CUmemorytype*>(type) = CU_MEMORYTYPE_DEVICE;
    return calls.attribute;
  };
  api.cuMemAlloc = [](CUdeviceptr* data, std::size_t bytes) {
    calls.strict_allocations += calls.mode == CU_STREAM_CAPTURE_MODE_RELAXED ? 0 : 1;
    return calls.allocate(data, bytes);
  };
  api.cuMemFree = [](CUdeviceptr) {
    ++calls.released;
    calls.strict_allocations += calls.mode == CU_STREAM_CAPTURE_MODE_RELAXED ? 0 : 1;
    return CUDA_SUCCESS;
  };
  api.cuThreadExchangeStreamCaptureMode = [](CUstreamCaptureMode* mode) {
    std::swap(*mode, calls.mode);
    return CUDA_SUCCESS;
  };
  api.cuGraphGetNodes = [](CUgraph, CUgraphNode*, std::size_t* count) {
    *count = static_cast<std::size_t>(calls.nodes);
    return CUDA_SUCCESS;
  };
  api.cuGraphInstantiate = [](CUgraphExec* executable, CUgraph, unsigned long long) {
    if (calls.instantiate == CUDA_SUCCESS) *executable = reinterpret_cast<CUgraphExec>(std::uintptr_t{16});
    calls.instantiated += calls.instantiate == CUDA_SUCCESS ? 1 : 0;
    return calls.instantiate;
  };
  api.cuGraphLaunch = [](CUgraphExec, CUstream stream) {
    ++calls.replays;
    calls.replayed_on = stream;
    return CUDA_SUCCESS;
  };
  api.cuGraphExecUpdate = [](CUgraphExec, CUgraph, CUgraphExecUpdateResultInfo*) { return calls.update; };
  api.cuGraphDestroy = [](CUgraph graph) {
    ++calls.destroyed_graphs;
    return calls.destroy_graph(graph);
  };
  api.cuGraphExecDestroy = [](CUgraphExec) {
    ++calls.destroyed_executables;
    return CUDA_SUCCESS;
  };
  api.cuStreamEndCapture = [](CUstream stream, CUgraph* graph) {
    calls.capturing = false;
    const CUresult result = calls.end_capture(stream, graph);
    if (!calls.broken_off) return result;
    BOOST_TEST(calls.destroy_graph(*graph) == CUDA_SUCCESS);
    *graph = nullptr;
    return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
  };
  return api;
}

struct GraphFixture {
  std::unique_ptr<Driver> dry = make_dry_driver(gpu_named("h200"));
  CurrentContext current{*dry, 0};
  std::unique_ptr<Driver> driver = over(*dry);
  KernelStore store{std::filesystem::path()};
  KernelCache cache{nullptr, store, gpu_named("h200").target, driver.get()};
  std::unique_ptr<Backend> backend = make_cuda_backend(*driver, 0, cache, {});
  Stream stream{*backend};
  Buffer memory{*backend, 256};
  int runs = 0;
  std::function<void()> work = [this] {
    ++runs;
    BOOST_TEST(backend->device_api().capturing(stream));
    backend->device_api().fill_zero(memory.data(), memory.bytes(), stream);
  };

  static std::unique_ptr<Driver> over(const Driver& dry) {
    CUdevice device = 0;
    BOOST_REQUIRE(dry.api().cuCtxGetDevice(&device) == CUDA_SUCCESS);
    return Driver::over(counted(dry.api()), device, {dry.context(0), [](CUctx_st*) {}});
  }
};

}  // namespace

BOOST_FIXTURE_TEST_CASE(work_is_recorded_once_and_replayed_on_any_stream, GraphFixture) {
  {
    Graph graph(stream, work);
    BOOST_TEST(!backend->device_api().capturing(stream));
    BOOST_TEST(calls.replays == 0);
    graph.replay(stream);
    BOOST_TEST(calls.replayed_on == stream.handle());
    Stream other(*backend);
    graph.replay(other);
    BOOST_TEST(calls.replayed_on == other.handle());
  }
  BOOST_TEST(runs == 1);
  BOOST_TEST(calls.replays == 2);
  BOOST_TEST(calls.destroyed_graphs == 1);
  BOOST_TEST(calls.destroyed_executables == 1);
}

BOOST_FIXTURE_TEST_CASE(an_update_keeps_the_instance_unless_the_driver_refuses, GraphFixture) {
  {
    Graph graph(stream, work);
    BOOST_TEST(graph.update(stream, work));
    BOOST_TEST(calls.instantiated == 1);
    calls.update = CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE;
    BOOST_TEST(!graph.update(stream, work));
    BOOST_TEST(calls.instantiated == 2);
    graph.replay(stream);

    calls.instantiate = CUDA_ERROR_OUT_OF_MEMORY;
    check_contains(error_of([&] { graph.update(stream, work); }, ErrorCode::out_of_memory), {"cuGraphInstantiate"});
    graph.replay(stream);  // as it was
  }
  BOOST_TEST(calls.replays == 2);
  BOOST_TEST(calls.destroyed_graphs == 4);
  BOOST_TEST(calls.destroyed_executables == 2);
}

BOOST_FIXTURE_TEST_CASE(a_graph_moves, GraphFixture) {
  {
    Graph graph(stream, work);
    Graph moved(std::move(graph));
    moved.replay(stream);
    check_contains(error_of([&] { graph.replay(stream); }, ErrorCode::invalid_argument),  // NOLINT: what it then says
                   {"graph: was moved from", "replay the one it moved to"});
    graph = Graph(stream, work);
    graph.replay(stream);
  }
  BOOST_TEST(calls.replays == 2);
  BOOST_TEST(calls.destroyed_graphs == 2);
}

BOOST_FIXTURE_TEST_CASE(what_cannot_be_captured_is_refused, GraphFixture) {
  const auto refusal = [&](ErrorCode code = ErrorCode::invalid_argument) {
    return error_of([&] { Graph(stream, work); }, code);
  };
  calls.nodes = 0;
  check_contains(refusal(), {"graph: the work enqueued nothing", "enqueue it on that stream"});
  calls.nodes = 1;
  calls.broken_off = true;
  check_contains(refusal(ErrorCode::cuda_failed),
                 {"graph: the capture was broken off", "cuStreamEndCapture", "run the step once before capturing it"});
  calls.broken_off = false;

  Stream the_default(*backend, nullptr);
  check_contains(error_of([&] { Graph(the_default, work); }, ErrorCode::invalid_argument),
                 {"graph: the default stream cannot be captured", "use another Stream"});

  Graph graph(stream, work);
  std::string nested, replayed;
  work = [&] {
    nested = error_of([&] { Graph(stream, [] {}); }, ErrorCode::invalid_argument);
    replayed = error_of([&] { graph.replay(stream); }, ErrorCode::invalid_argument);
  };
  Graph(stream, work);
  check_contains(nested, {"graph: the stream is being captured already", "capture on another stream"});
  check_contains(replayed, {"graph: cannot be replayed on a stream that is being captured", "after the capture"});
  BOOST_TEST(!backend->device_api().capturing(stream));
}

BOOST_FIXTURE_TEST_CASE(an_error_of_the_work_ends_the_capture, GraphFixture) {
  BOOST_CHECK_THROW(Graph(stream, [] { throw std::runtime_error("mine"); }), std::runtime_error);
  BOOST_TEST(!backend->device_api().capturing(stream));
  BOOST_TEST(calls.destroyed_graphs == 1);
  Graph(stream, work).replay(stream);
  BOOST_TEST(calls.replays == 1);
}

namespace {

bool overlap(const void* a, const void* b, std::size_t bytes) {
  const auto first = reinterpret_cast<std::uintptr_t>(a);
  const auto second = reinterpret_cast<std::uintptr_t>(b);
  return first < second + bytes && second < first + bytes;
}

}  // namespace

// A replay uses the addresses of its capture, on any stream and at any time: nobody else may have them.
BOOST_FIXTURE_TEST_CASE(scratch_memory_belongs_to_the_graph, GraphFixture) {
  constexpr std::size_t kBytes = 1000;
  std::vector<void*> seen{stream.scratch(kBytes), stream.zeros(kBytes)};
  const std::vector<void*> of_stream = seen;
  Stream side(*backend);
  const auto step = [&] {
    const auto use = [&](Stream& each) {
      seen.push_back(each.scratch(kBytes));
      seen.push_back(each.zeros(kBytes));
      BOOST_TEST(each.scratch(kBytes) == seen[seen.size() - 2]);
      BOOST_TEST(each.zeros(kBytes) == seen.back());
      BOOST_TEST(each.zeros(kBytes / 2) == seen.back());
    };
    use(stream);
    side.wait_for(stream);
    use(side);
    stream.wait_for(side);
    BOOST_TEST(stream.scratch(kBytes) == seen[seen.size() - 4]);
    {
      Stream short_lived(*backend);
      short_lived.wait_for(stream);
      use(short_lived);
    }
    seen.push_back(stream.scratch(8 * kBytes));  // as much as nothing before it
    seen.push_back(stream.zeros(8 * kBytes));
  };
  Graph first(stream, step);
  BOOST_TEST(calls.cleared_in_capture == 0);
  BOOST_TEST(calls.cleared.size() == 1 + 4, "the stream's zeros, and the graph's, of which one was too small");
  for (const void* const zeros : {seen[3], seen[5], seen[7], seen[9]}) BOOST_TEST(calls.cleared.contains(zeros));
  Graph second(stream, step);
  first.update(stream, step);
  BOOST_TEST(stream.scratch(kBytes) == of_stream[0]);
  BOOST_TEST(stream.zeros(kBytes) == of_stream[1]);
  BOOST_TEST(calls.cleared.size() == 1 + 3 * 4);
  seen.push_back(side.scratch(kBytes));
  for (std::size_t i = 0; i < seen.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      BOOST_CHECK_MESSAGE(!overlap(seen[i], seen[j], kBytes), "pieces " << j << " and " << i << " are the same memory");
    }
  }
}

BOOST_FIXTURE_TEST_CASE(scratch_memory_goes_with_the_graph, GraphFixture) {
  const auto step = [&] {
    stream.scratch(1000);
    stream.zeros(1000);
  };
  {
    Graph graph(stream, step);
    BOOST_TEST(calls.released == 0);
    graph.update(stream, step);
    BOOST_TEST(calls.released == 2);
    BOOST_CHECK_THROW(graph.update(stream,
                                   [&] {
                                     step();
                                     throw std::runtime_error("mine");
                                   }),
                      std::runtime_error);
    BOOST_TEST(calls.released == 4);
    graph = Graph(stream, step);
    BOOST_TEST(calls.released == 6);
  }
  BOOST_TEST(calls.released == 8);
  stream.scratch(1000);  // of the stream again, whatever happened
  BOOST_TEST(calls.released == 8);
}

// What calls of layers take from an allocator: a capture has it of the graph, for one call after the other, while what
// they keep is no one else's. The allocator is not asked.
BOOST_FIXTURE_TEST_CASE(memory_of_calls_belongs_to_the_graph, GraphFixture) {
  test::CountingAllocator allocator;
  allocator.expected = stream.handle();
  Stream on(*backend, stream.handle(), allocator);
  std::vector<void*> calls_at, kept_at;
  StreamBlock outlives;
  const auto step = [&] {
    work();
    for (const std::size_t bytes : {1000U, 100U, 8000U}) {
      const StreamBlock call = on.call_scratch(bytes);
      StreamBlock kept = on.kept(bytes);
      calls_at.push_back(call.data());
      kept_at.push_back(kept.data());
      BOOST_TEST(on.scratch(bytes) != call.data());
      outlives = std::move(kept);
    }
  };
  work = [&] { backend->device_api().fill_zero(memory.data(), memory.bytes(), on); };
  {
    Graph graph(on, step);
    BOOST_TEST(calls_at[1] == calls_at[0]);
    BOOST_TEST(calls_at[2] != calls_at[0]);
    const std::set<void*> apart{calls_at[0], calls_at[2], kept_at[0], kept_at[1], kept_at[2]};
    BOOST_TEST(apart.size() == 5U);
    BOOST_TEST(allocator.given == 0);
    BOOST_TEST(calls.released == 0);
    graph.replay(on);
  }
  BOOST_TEST(calls.released == 2 + 2 + 3, "with the graph: scratch of operations and of calls, and what was kept");
  outlives = StreamBlock();
  BOOST_TEST(calls.released == 7);
  BOOST_TEST(on.call_scratch(10).data() != nullptr);
  BOOST_TEST(allocator.given == 1);
}

BOOST_FIXTURE_TEST_CASE(values_are_filled_in_captures_too, GraphFixture) {
  auto* const values = static_cast<float*>(memory.data());
  Graph(stream, [&] { backend->device_api().fill(values, 1.5F, 3, stream); });
  BOOST_TEST(calls.words_in_capture == 3);
  BOOST_TEST(calls.last_word == std::bit_cast<unsigned>(1.5F));
  backend->device_api().fill(nullptr, 1, 0, stream);
  BOOST_TEST(error_of([&] { backend->device_api().fill(nullptr, 1, 3, stream); }, ErrorCode::invalid_argument) ==
             "fill: 12 bytes to a null pointer; pass memory of at least that size");
}

BOOST_FIXTURE_TEST_CASE(the_driver_knows_what_is_allocated, GraphFixture) {
  const auto begin = reinterpret_cast<CUdeviceptr>(memory.data());
  BOOST_TEST(backend->device_api().is_allocated(memory.data(), memory.bytes()));
  calls.freed = {begin + memory.bytes() - 1};
  BOOST_TEST(!backend->device_api().is_allocated(memory.data(), memory.bytes()));
  BOOST_TEST(backend->device_api().is_allocated(memory.data(), memory.bytes() - 1));
  calls.freed = {begin};
  BOOST_TEST(!backend->device_api().is_allocated(memory.data(), 1));
  BOOST_TEST(backend->device_api().is_allocated(memory.data(), 0));
  calls.freed = {};
  calls.attribute = CUDA_ERROR_INVALID_CONTEXT;
  check_contains(error_of([&] { backend->device_api().is_allocated(memory.data(), 1); }, ErrorCode::cuda_failed),
                 {"cuPointerGetAttribute"});
}

// The mode of this thread is relaxed for as long as memory is allocated or released.
BOOST_FIXTURE_TEST_CASE(memory_is_no_part_of_a_capture, GraphFixture) {
  Graph(stream, [&] {
    work();
    const Buffer beside(*backend, 100);
  });
  BOOST_TEST(calls.mode == CU_STREAM_CAPTURE_MODE_GLOBAL);
  BOOST_TEST(calls.strict_allocations == 0);
}

BOOST_FIXTURE_TEST_CASE(a_graph_is_for_its_own_backend, GraphFixture) {
  Graph graph(stream, work);
  DryRun other(gpu_named("h200"));
  Stream others(other.backend());
  check_contains(error_of([&] { graph.replay(others); }, ErrorCode::invalid_argument), {"stream", "backend"});
  check_contains(error_of([&] { graph.update(others, work); }, ErrorCode::invalid_argument), {"stream", "backend"});

  const auto cpu = make_cpu_backend(1);
  Stream of_cpu(*cpu);
  bool called = false;
  BOOST_TEST(error_of([&] { Graph(of_cpu, [&] { called = true; }); }, ErrorCode::invalid_argument) ==
             "graph: the CPU backend runs work at once, so there is nothing to capture; call the work again instead of "
             "replaying it, or make the context on a GPU");
  BOOST_TEST(!called);
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
