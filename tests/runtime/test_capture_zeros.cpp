// Zeros of captures (runtime/cuda/capture_zeros.h) with a driver that computes nothing: whose a region is, how long,
// and what happens without memory. On a GPU python_bindings/tests/test_torch_cuda.py replays such graphs.
#include <boost/test/unit_test.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <thread>
#include <vector>

#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context/dry_run.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/capture_zeros.h"
#include "ingot/runtime/cuda/driver.h"
#include "support/counting_allocator.h"

BOOST_AUTO_TEST_SUITE(test_capture_zeros)

using namespace ingot;
using namespace ingot::test;

namespace {

struct Fixture {
  std::unique_ptr<Driver> driver = make_dry_driver(gpu_named("h200"));
  const Driver::Api& api = driver->api();
  CurrentContext current{*driver, 0};
  std::unique_ptr<CaptureZeros> zeros = std::make_unique<CaptureZeros>(*driver, 0);
  std::vector<CUstream> streams{};

  CUstream stream() {
    CUstream made = nullptr;
    BOOST_REQUIRE(api.cuStreamCreate(&made, CU_STREAM_NON_BLOCKING) == CUDA_SUCCESS);
    streams.push_back(made);
    return made;
  }
  CUstream capturing() {
    CUstream made = stream();
    begin(made);
    return made;
  }
  void begin(CUstream on) {
    BOOST_REQUIRE(api.cuStreamBeginCapture(on, CU_STREAM_CAPTURE_MODE_GLOBAL) == CUDA_SUCCESS);
  }
  CUgraph end(CUstream on) {
    CUgraph graph = nullptr;
    BOOST_REQUIRE(api.cuStreamEndCapture(on, &graph) == CUDA_SUCCESS);
    return graph;
  }
  void destroy(CUgraph graph) { BOOST_TEST((api.cuGraphDestroy(graph) == CUDA_SUCCESS)); }
  ~Fixture() {
    zeros.reset();
    for (CUstream each : streams) static_cast<void>(api.cuStreamDestroy(each));
  }
};

}  // namespace

BOOST_FIXTURE_TEST_SUITE(capture_zeros, Fixture)

BOOST_AUTO_TEST_CASE(are_there_only_in_a_capture_and_only_small_ones) {
  CUstream one = stream();
  BOOST_TEST(zeros->of(one, 4) == nullptr);
  BOOST_TEST(zeros->of(nullptr, 4) == nullptr);
  begin(one);
  BOOST_TEST(zeros->of(one, CaptureZeros::kBytes + 1) == nullptr);
  BOOST_TEST(zeros->used() == 0U);
  void* const region = zeros->of(one, CaptureZeros::kBytes);
  BOOST_TEST(region != nullptr);
  BOOST_TEST(reinterpret_cast<std::uintptr_t>(region) % 256 == 0U);
  destroy(end(one));
  BOOST_TEST(zeros->of(one, 4) == nullptr);
}

BOOST_AUTO_TEST_CASE(belong_to_one_stream_of_one_capture_until_its_graph_goes) {
  CUstream one = capturing();
  CUstream two = capturing();
  void* const of_one = zeros->of(one, 4);
  void* const of_two = zeros->of(two, 4);
  BOOST_TEST(of_one != of_two);
  BOOST_TEST(zeros->of(one, 400) == of_one);
  BOOST_TEST(zeros->used() == 2U);
  CUgraph first = end(one);
  BOOST_TEST(zeros->used() == 2U);
  begin(one);  // the next capture of the same stream, while the first graph is there
  void* const next = zeros->of(one, 4);
  BOOST_TEST(next != of_one);
  BOOST_TEST(next != of_two);
  destroy(first);
  BOOST_TEST(zeros->used() == 2U);
  CUstream three = capturing();
  BOOST_TEST(zeros->of(three, 4) == of_one);  // which is free again
  for (CUstream each : {one, two, three}) destroy(end(each));
  BOOST_TEST(zeros->used() == 0U);
}

BOOST_AUTO_TEST_CASE(do_not_overlap_however_many_graphs_there_are) {
  std::set<std::uintptr_t> regions;
  std::vector<CUgraph> graphs;
  for (std::size_t i = 0; i < 3 * CaptureZeros::kRegions; ++i) {
    CUstream each = capturing();
    regions.insert(reinterpret_cast<std::uintptr_t>(zeros->of(each, 4)));
    graphs.push_back(end(each));
  }
  BOOST_TEST(regions.size() == 3 * CaptureZeros::kRegions);
  std::uintptr_t before = 0;
  for (const std::uintptr_t region : regions) {
    BOOST_TEST((before == 0 || region - before >= CaptureZeros::kBytes));
    before = region;
  }
  for (CUgraph graph : graphs) destroy(graph);
  CUstream again = capturing();
  BOOST_TEST(regions.contains(reinterpret_cast<std::uintptr_t>(zeros->of(again, 4))));
  destroy(end(again));
}

BOOST_AUTO_TEST_CASE(that_are_spoiled_are_not_given_again_in_this_capture) {
  CUstream one = capturing();
  void* const before = zeros->of(one, 4);
  zeros->spoil(one);
  void* const after = zeros->of(one, 4);
  BOOST_TEST(after != before);
  BOOST_TEST(zeros->of(one, 4) == after);
  BOOST_TEST(zeros->used() == 2U);
  destroy(end(one));
  BOOST_TEST(zeros->used() == 0U);
  zeros->spoil(one);  // nobody captures it now
  zeros->spoil(nullptr);
}

// Each replay would spoil the region again for what the capture recorded before.
BOOST_AUTO_TEST_CASE(that_are_spoiled_are_cleared_in_the_capture) {
  static CUstream cleared = nullptr;
  Driver::Api counting = api;
  counting.cuMemsetD8Async = [](CUdeviceptr, unsigned char, std::size_t, CUstream on) {
    cleared = on;
    return CUDA_SUCCESS;
  };
  const auto over = Driver::over(counting, 0, {driver->context(0), [](CUctx_st*) {}});
  CaptureZeros regions(*over, 0);
  CUstream one = capturing();
  BOOST_TEST(regions.of(one, 4) != nullptr);
  cleared = nullptr;
  regions.spoil(one);
  BOOST_TEST(cleared == one);
  cleared = nullptr;
  regions.spoil(one);  // the next region has not been given yet
  BOOST_TEST(cleared == nullptr);
  BOOST_TEST(regions.capture_number(one) != 0U);
  destroy(end(one));
  BOOST_TEST(regions.capture_number(one) == 0U);
}

BOOST_AUTO_TEST_CASE(of_graphs_that_outlive_them_are_given_back_to_nobody) {
  CUstream one = capturing();
  BOOST_TEST(zeros->of(one, 4) != nullptr);
  CUgraph graph = end(one);
  zeros.reset();
  destroy(graph);
}

// Boost.Test's checks are for one thread: the threads count.
BOOST_AUTO_TEST_CASE(are_given_to_threads_side_by_side) {
  std::vector<std::thread> threads;
  std::vector<CUstream> ours;
  for (int i = 0; i < 8; ++i) ours.push_back(stream());
  threads.reserve(ours.size());
  std::atomic<int> right = 0;
  for (CUstream each : ours) {
    threads.emplace_back([&, each] {
      const CurrentContext here(*driver, 0);
      for (int round = 0; round < 50; ++round) {
        if (api.cuStreamBeginCapture(each, CU_STREAM_CAPTURE_MODE_GLOBAL) != CUDA_SUCCESS) return;
        void* const region = zeros->of(each, 4);
        const bool is_one = region != nullptr && zeros->of(each, 8) == region;
        CUgraph graph = nullptr;
        if (api.cuStreamEndCapture(each, &graph) != CUDA_SUCCESS || api.cuGraphDestroy(graph) != CUDA_SUCCESS) return;
        if (is_one) ++right;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  BOOST_TEST(right == 50 * static_cast<int>(ours.size()));
  BOOST_TEST(zeros->used() == 0U);
}

// A stream with an allocator: small zeros are the capture's, others the allocator's, and outside of captures all are.
BOOST_AUTO_TEST_CASE(serve_streams_with_an_allocator) {
  DryRun dry(gpu_named("h200"));
  CUstream handle = stream();
  CountingAllocator allocator;
  allocator.expected = handle;
  {
    Stream on(dry.backend(), handle, allocator);
    BOOST_TEST(on.zeros(100) != nullptr);
    BOOST_TEST(allocator.given == 1);
  }
  begin(handle);
  void* region = nullptr;
  {
    Stream on(dry.backend(), handle, allocator);
    region = on.zeros(100);
    BOOST_TEST(on.zeros(2000) == region);
    BOOST_TEST(allocator.given == 1);
    on.zeros(CaptureZeros::kBytes + 1);
    BOOST_TEST(allocator.given == 2);
    on.spoil_zeros();
  }
  Stream on(dry.backend(), handle, allocator);
  BOOST_TEST(on.zeros(100) != region);
  BOOST_TEST(allocator.given == 2);
  destroy(end(handle));
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()
