// Streams of the caller's on the CUDA backend, over a driver that computes nothing: captures in which operations fail,
// and green contexts, which have a part of the GPU. On a GPU: test_callers_streams_gpu.cpp.
#include <boost/test/unit_test.hpp>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context/cuda_backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/cuda/graph.h"
#include "ingot/runtime/jit/kernel_cache.h"
#include "ingot/runtime/jit/kernel_store.h"
#include "support/expect_error.h"
#include "support/fake_compiler.h"

BOOST_AUTO_TEST_SUITE(test_callers_streams)

using namespace ingot;
using test::check_contains;
using test::error_of;

namespace {

struct Launch {
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  unsigned cluster = 1;
  bool cooperative = false;
};

// What the driver's functions below see and do: they have no other place for it.
struct Calls {
  Driver::Api dry{};
  std::vector<Launch> launches{};
  int fails_at = -1;  // the launch of this index
  int cleared = 0;    // memsets that ran, and that a capture recorded
  int recorded = 0;
  CUresult wait = CUDA_SUCCESS;
  CUcontext primary = nullptr;
  CUcontext green_context = nullptr;  // current: the default stream is the green context's
  CUstream green_stream = nullptr;
  CUcontext event_made_in = nullptr;
};
Calls calls;

CUresult launch(const CUlaunchConfig* config, CUfunction, void**, void**) {
  if (static_cast<int>(calls.launches.size()) == calls.fails_at) {
    calls.fails_at = -1;
    return CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES;
  }
  Launch made{.stream = config->hStream};
  static_cast<void>(calls.dry.cuCtxGetCurrent(&made.context));
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const CUlaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION) made.cluster = attribute.value.clusterDim.x;
    if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) made.cooperative = true;
  }
  calls.launches.push_back(made);
  return CUDA_SUCCESS;
}

CUresult clear(CUdeviceptr, unsigned char, std::size_t, CUstream stream) {
  CUstreamCaptureStatus status{};
  static_cast<void>(calls.dry.cuStreamIsCapturing(stream, &status));
  ++(status == CU_STREAM_CAPTURE_STATUS_NONE ? calls.cleared : calls.recorded);
  return CUDA_SUCCESS;
}

CUresult context_of_stream(CUstream stream, CUcontext* context, CUgreenCtx* green) {
  CUcontext current = nullptr;
  static_cast<void>(calls.dry.cuCtxGetCurrent(&current));
  const bool is_green = stream == nullptr ? current == calls.green_context : stream == calls.green_stream;
  *context = stream == nullptr && !is_green ? current : calls.primary;
  *green = is_green ? reinterpret_cast<CUgreenCtx>(std::uintptr_t{16}) : nullptr;
  return CUDA_SUCCESS;
}

// Over the dry driver, whose context is the device's primary one.
struct Fixture {
  Fixture() {
    calls = {};
    calls.dry = dry->api();
    calls.primary = dry->context(0);
    calls.green_context = other->context(0);
    BOOST_REQUIRE(calls.dry.cuStreamCreate(&calls.green_stream, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    const CurrentContext current(*driver, 0);
  }
  ~Fixture() { static_cast<void>(calls.dry.cuStreamDestroy(calls.green_stream)); }

  static Driver::Api functions(const Driver& dry) {
    Driver::Api api = dry.api();
    api.cuLaunchKernelEx = launch;
    api.cuMemsetD8Async = clear;
    api.cuStreamWaitEvent = [](CUstream, CUevent, unsigned) { return calls.wait; };
    api.cuStreamGetCtx_v2 = context_of_stream;
    api.cuGreenCtxGetDevResource = [](CUgreenCtx, CUdevResource* resource, CUdevResourceType) {
      resource->sm.smCount = 16;
      return CUDA_SUCCESS;
    };
    api.cuEventCreate = [](CUevent* event, unsigned flags) {
      static_cast<void>(calls.dry.cuCtxGetCurrent(&calls.event_made_in));
      return calls.dry.cuEventCreate(event, flags);
    };
    return api;
  }
  static CUdevice device_of(const Driver& dry) {
    const CurrentContext current(dry, 0);
    CUdevice device = 0;
    BOOST_REQUIRE(dry.api().cuCtxGetDevice(&device) == CUDA_SUCCESS);
    return device;
  }

  // A cast of two kinds of scales: amax_tiles raises maxima in the stream's zeros, and cast_tiles clears them.
  void cast(Stream& on) {
    const CastSpec spec{.in = Dtype::bf16,
                        .out = Dtype::e4m3fn,
                        .scale = kRowwise,
                        .transposed = true,
                        .transposed_scale = kColumnwise};
    backend->cast(spec, {.input = x, .codes = q, .transposed = t, .scale_inv = rows, .transposed_scale_inv = cols}, on);
  }
  // Of a few tiles, which are cast in one launch: as a cluster, or one after the other for all.
  Launch small_cast(Stream& on, std::int64_t count, const char* expression) {
    CastSpec spec{.in = Dtype::bf16, .out = Dtype::e4m3fn, .scale = kTensorwise, .transposed = true};
    if (*expression != '\0') spec.pointwise = parse_pointwise(expression);
    const OwnedTensor in(*backend, Dtype::bf16, count, 1024);
    const OwnedTensor out(*backend, Dtype::e4m3fn, count, 1024);
    const OwnedTensor transposed(*backend, Dtype::e4m3fn, 1024, count);
    calls.launches.clear();
    backend->cast(spec, {.input = in, .codes = out, .transposed = transposed, .scale_inv = factor}, on);
    return calls.launches.front();
  }

  std::unique_ptr<Driver> dry = make_dry_driver(gpu_named("h200"));
  std::unique_ptr<Driver> other = make_dry_driver(gpu_named("h200"));
  std::unique_ptr<Driver> driver = Driver::over(functions(*dry), device_of(*dry), {dry->context(0), [](CUctx_st*) {}});
  test::FakeCompiler compiler;
  KernelStore store{std::filesystem::path()};
  KernelCache cache{&compiler, store, gpu_named("h200").target, driver.get()};
  std::unique_ptr<Backend> backend = make_cuda_backend(*driver, 0, cache, {});
  Stream stream{*backend};
  OwnedTensor x{*backend, Dtype::bf16, 2048, 4096}, q{*backend, Dtype::e4m3fn, 2048, 4096},
      t{*backend, Dtype::e4m3fn, 4096, 2048}, rows{*backend, Dtype::f32, 1, 2048}, cols{*backend, Dtype::f32, 1, 4096},
      factor{*backend, Dtype::f32, 1, 1};
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(captures, Fixture)

BOOST_AUTO_TEST_CASE(zeros_that_a_failed_cast_spoiled_are_cleared_by_the_next_work_that_runs) {
  cast(stream);
  const int before = calls.cleared;
  calls.fails_at = static_cast<int>(calls.launches.size()) + 1;  // cast_tiles, after amax_tiles has run
  BOOST_CHECK_THROW(cast(stream), Error);
  BOOST_TEST(calls.cleared == before);
  BOOST_REQUIRE(driver->api().cuStreamBeginCapture(stream.handle(), CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
                CUDA_SUCCESS);
  cast(stream);
  cast(stream);
  CUgraph graph = nullptr;
  BOOST_REQUIRE(driver->api().cuStreamEndCapture(stream.handle(), &graph) == CUDA_SUCCESS);
  BOOST_TEST(calls.recorded == 1);
  BOOST_TEST(calls.cleared == before);
  cast(stream);  // before any replay
  BOOST_TEST(calls.cleared == before + 1);
  cast(stream);
  BOOST_TEST(calls.cleared == before + 1);
  static_cast<void>(driver->api().cuGraphDestroy(graph));
}

BOOST_AUTO_TEST_CASE(a_graph_clears_what_an_operation_of_it_spoiled) {
  cast(stream);
  Graph graph(stream, [&] {
    cast(stream);
    BOOST_TEST(calls.recorded == 0);
    calls.fails_at = static_cast<int>(calls.launches.size()) + 1;
    BOOST_CHECK_THROW(cast(stream), Error);
    BOOST_TEST(calls.recorded == 1, "right after what was recorded of the operation");
    cast(stream);
  });
  BOOST_TEST(calls.recorded == 1);
  graph.replay(stream);
}

BOOST_AUTO_TEST_CASE(a_stream_that_captures_waits_for_none_outside) {
  Stream other_stream(*backend);
  stream.wait_for(other_stream);
  for (const CUresult result : {CUDA_ERROR_STREAM_CAPTURE_ISOLATION, CUDA_ERROR_STREAM_CAPTURE_MERGE}) {
    calls.wait = result;
    check_contains(error_of([&] { stream.wait_for(other_stream); }, ErrorCode::invalid_argument),
                   {"Stream::wait_for: the stream is capturing a graph", "let the other wait for this one first"});
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_FIXTURE_TEST_SUITE(green_contexts, Fixture)

// The default stream is that of the caller's context.
BOOST_AUTO_TEST_CASE(the_default_stream_is_that_of_the_callers_green_context) {
  Stream on_default(*backend, nullptr);
  cast(on_default);
  BOOST_TEST(calls.launches.back().context == calls.primary);
  {
    const CurrentContext theirs(driver->api(), calls.green_context);
    cast(on_default);
    BOOST_TEST(calls.launches.back().context == calls.green_context);
    cast(stream);
    BOOST_TEST(calls.launches.back().context == calls.primary, "one of Ingot's streams");
    BOOST_TEST(small_cast(on_default, 2048, "silu(x)").context == calls.green_context);
    BOOST_TEST(!calls.launches.front().cooperative, "128 tiles, and 16 multiprocessors");

    stream.wait_for(on_default);
    BOOST_TEST(calls.event_made_in == calls.green_context, "an event is recorded where it was made");
    on_default.wait_for(stream);
    BOOST_TEST(calls.event_made_in == calls.primary);
    CUcontext found = nullptr;
    BOOST_REQUIRE(calls.dry.cuCtxGetCurrent(&found) == CUDA_SUCCESS);
    BOOST_TEST(found == calls.green_context);
  }
  // A context of the caller's that is no green one of ours has other memory: its default stream is not meant.
  const CurrentContext foreign(driver->api(), calls.green_context);
  calls.green_context = nullptr;
  cast(on_default);
  BOOST_TEST(calls.launches.back().context == calls.primary);
}

BOOST_AUTO_TEST_CASE(a_stream_with_fewer_multiprocessors_has_no_launch_that_needs_them_all) {
  Stream green(*backend, calls.green_stream);
  BOOST_TEST(small_cast(stream, 2048, "silu(x)").cooperative);
  BOOST_TEST(!small_cast(green, 2048, "silu(x)").cooperative);
  BOOST_TEST(calls.launches.size() == 2U);
  BOOST_TEST(small_cast(green, 128, "silu(x)").cooperative, "8 tiles fit, but perhaps no cluster of 8");
  BOOST_TEST(small_cast(stream, 128, "").cluster == 8U);
  BOOST_TEST(small_cast(green, 128, "").cluster == 1U);
  CUstream whole = nullptr;
  BOOST_REQUIRE(calls.dry.cuStreamCreate(&whole, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
  {
    Stream callers(*backend, whole);
    BOOST_TEST(small_cast(callers, 2048, "silu(x)").cooperative);
  }
  static_cast<void>(calls.dry.cuStreamDestroy(whole));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
