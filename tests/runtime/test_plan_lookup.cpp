// The code between a call and its launch copies no spec and allocates nothing. A copy of a spec shares its expression,
// and counts that in the expression's memory: so the lookups run in a process in which that memory cannot be written,
// and allocations are counted there.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/types/target.h"
#include "ingot/runtime/context/cuda_backend.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/dequant/dequant_plans.h"
#include "ingot/runtime/gemm/gemm_plans.h"
#include "ingot/runtime/jit/launcher.h"
#include "ingot/runtime/util/grow_only_table.h"
#include "support/fake_compiler.h"

using namespace ingot;

namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20U;

// Separate memory for what is allocated while `open`; never given back.
struct Pages {
  std::byte* data = nullptr;
  std::size_t used = 0;
  bool open = false;
  std::size_t allocations = 0;  // of the process, in these pages or not

  void* take(std::size_t bytes) {
    void* const taken = data + used;
    used += (bytes + 15) / 16 * 16;
    return used <= kBytes ? taken : nullptr;
  }
  bool has(const void* memory) const { return data != nullptr && memory >= data && memory < data + kBytes; }
};
Pages pages;

// An expression in the pages.
Pointwise expression() {
  if (pages.data == nullptr) {
    void* const mapped = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    BOOST_REQUIRE(mapped != MAP_FAILED);
    pages.data = static_cast<std::byte*>(mapped);
  }
  pages.open = true;
  Pointwise made = parse_pointwise("silu(x)*gate");
  pages.open = false;
  BOOST_REQUIRE(pages.has(made.steps().data()));
  return made;
}

// Does `work` end where the pages can only be read, and allocate nothing?
template <class Work>
bool only_reads(const Work& work) {
  const pid_t child = fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    static_cast<void>(std::signal(SIGSEGV, SIG_DFL));
    if (mprotect(pages.data, kBytes, PROT_READ) != 0) _exit(2);
    const std::size_t before = pages.allocations;
    work();
    _exit(pages.allocations == before ? 0 : 3);
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

void* operator new(std::size_t bytes) {
  ++pages.allocations;
  void* const memory = pages.open ? pages.take(bytes) : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept {
  if (!pages.has(memory)) std::free(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { operator delete(memory); }

BOOST_AUTO_TEST_SUITE(test_plan_lookup)

BOOST_AUTO_TEST_CASE(a_copy_would_show) {
  const GemmSpec spec{.epilogue = {.pointwise = expression()}};
  BOOST_TEST(only_reads([&] { static_cast<void>(hash_value(spec)); }));
  BOOST_TEST(!only_reads([&] { static_cast<void>(KernelSpec(spec)); }));
  BOOST_TEST(!only_reads([] { delete new int; }));
}

BOOST_AUTO_TEST_CASE(gemm) {
  const GemmSpec spec{.epilogue = {.pointwise = expression()}};
  GemmPlans plans({}, target_for(9, 0), 132);
  const MatmulSize size{.m = 4096, .n = 4096, .k = 4096};
  BOOST_TEST(!plans.find(spec, size).empty());
  BOOST_TEST(only_reads([&] { plans.find(spec, size); }));
}

// However many sizes a program goes through, what is kept is bounded, and the answers are the same.
BOOST_AUTO_TEST_CASE(a_full_table_of_gemms_keeps_what_it_has) {
  const GemmSpec spec{.epilogue = {.pointwise = expression()}};
  GemmPlans few({}, target_for(9, 0), 132, 2);
  GemmPlans many({}, target_for(9, 0), 132);
  const auto size = [](std::int64_t m) { return MatmulSize{.m = m, .n = 4096, .k = 4096}; };
  for (std::int64_t m = 1; m <= 5; ++m) {
    const auto order = few.find(spec, size(m));
    const auto expected = many.find(spec, size(m));
    BOOST_REQUIRE(order.size() == expected.size());
    for (std::size_t i = 0; i < expected.size(); ++i) BOOST_TEST((order[i] == expected[i]));
  }
  for (std::int64_t m = 1; m <= 5; ++m) {
    BOOST_TEST(only_reads([&] { few.find(spec, size(m)); }) == (m <= 2));
    BOOST_TEST(only_reads([&] { many.find(spec, size(m)); }));
  }
}

BOOST_AUTO_TEST_CASE(dequant_matmul) {
  const DequantMatmulSpec spec{.pointwise = expression()};
  DequantPlans plans({}, {.target = target_for(9, 0), .multiprocessors = 132});
  const MatmulSize size{.m = 16, .n = 4096, .k = 4096};
  BOOST_TEST(!plans.find(spec, size).empty());
  BOOST_TEST(only_reads([&] { plans.find(spec, size); }));
}

namespace {

// Launches on a GPU that does not exist: everything that a launch does except for the GPU's work.
struct DryLaunches {
  const Gpu& gpu = gpu_named("h200");
  std::unique_ptr<Driver> driver = make_dry_driver(gpu);
  test::FakeCompiler compiler;
  KernelStore store{std::filesystem::path()};
  KernelCache cache{&compiler, store, gpu.target, driver.get()};
  std::unique_ptr<Backend> backend = make_cuda_backend(*driver, 0, cache, {});
  Stream stream{*backend};
  CudaDevice device{*driver, 0};
  Launcher launcher{device, cache};

  // One of a call's matrices. Nothing reads or writes it.
  Tensor at(int index, Dtype dtype, std::int64_t rows, std::int64_t cols) const {
    constexpr std::int64_t kApart = std::int64_t{1} << 30U;
    return matrix(reinterpret_cast<void*>(kApart * (index + 1)), dtype, rows, cols, backend->device());
  }
};

struct Params {
  int value = 0;
};

}  // namespace

// The kernel that a spec finds by itself is the one that it finds as a KernelSpec.
BOOST_FIXTURE_TEST_CASE(kernel, DryLaunches) {
  const GemmSpec spec{.epilogue = {.pointwise = expression()}, .kernel = GemmKernel::simt};
  const Kernel* const loaded = &cache.get(KernelSpec(spec));
  BOOST_TEST(&cache.get(spec) == loaded);
  BOOST_TEST(cache.find(spec) == loaded);
  BOOST_TEST(&launcher.kernel(spec, Pass::main, stream) == loaded);
  BOOST_TEST(only_reads([&] {
    if (&cache.get(spec) != loaded || cache.find(spec) != loaded || !launcher.is_loaded(spec, Pass::main)) _exit(1);
    if (&launcher.kernel(spec, Pass::main, stream) != loaded) _exit(1);
  }));
}

BOOST_FIXTURE_TEST_CASE(launch, DryLaunches) {
  const GemmSpec spec{.epilogue = {.pointwise = expression()}, .kernel = GemmKernel::simt};
  launcher.launch(spec, Pass::main, 1, 32, Params{}, stream);
  const std::int64_t launches = device.launches();
  BOOST_TEST(only_reads([&] {
    launcher.launch(spec, Pass::main, 1, 32, Params{}, stream);
    if (device.launches() != launches + 1) _exit(1);
  }));
}

// Whole calls: in one launch, in two, and of rows that have their own blocks.
BOOST_FIXTURE_TEST_CASE(cast, DryLaunches) {
  const auto check = [&](const CastSpec& spec, std::int64_t rows, std::int64_t cols) {
    CastTensors tensors;
    tensors.input = at(0, spec.in, rows, cols);
    tensors.codes = at(1, spec.out, rows, cols);
    tensors.inputs[0] = at(2, spec.in, rows, cols);
    if (spec.transposed) tensors.transposed = at(3, spec.out, cols, rows);
    tensors.scale_inv = at(4, Dtype::f32, 1, spec.scale == kRowwise ? rows : 1);
    backend->cast(spec, tensors, stream);
    BOOST_TEST(only_reads([&] { backend->cast(spec, tensors, stream); }));
  };
  const Pointwise pointwise = expression();
  for (const std::int64_t size : {256, 4096}) {
    check({.scale = kTensorwise, .pointwise = pointwise}, size, size);
    check({.scale = kTensorwise, .transposed = true, .pointwise = pointwise}, size, size);
    check({.scale = kRowwise, .pointwise = pointwise}, size, size);
    check({.scale = kRowwise, .transposed = true, .pointwise = pointwise}, size, size);
  }
}

BOOST_FIXTURE_TEST_CASE(elementwise, DryLaunches) {
  const ElementwiseSpec spec{.pointwise = expression()};
  ElementwiseTensors tensors;
  tensors.input = at(0, Dtype::bf16, 256, 256);
  tensors.inputs[0] = at(1, Dtype::bf16, 256, 256);
  tensors.output = at(2, Dtype::bf16, 256, 256);
  backend->elementwise(spec, tensors, stream);
  BOOST_TEST(only_reads([&] { backend->elementwise(spec, tensors, stream); }));
  ElementwiseSpec pair = spec;
  pair.second = parse_pointwise("x * 2");
  tensors.second = at(3, Dtype::bf16, 256, 256);
  backend->elementwise(pair, tensors, stream);
  BOOST_TEST(only_reads([&] { backend->elementwise(pair, tensors, stream); }));
  pair.amax = true;
  tensors.amax = at(4, Dtype::f32, 1, 1);
  backend->elementwise(pair, tensors, stream);
  BOOST_TEST(only_reads([&] { backend->elementwise(pair, tensors, stream); }));
}

BOOST_FIXTURE_TEST_CASE(whole_gemm, DryLaunches) {
  const GemmSpec spec{.epilogue = {.pointwise = expression()}};
  for (const std::int64_t size : {256, 4096}) {
    GemmTensors tensors;
    tensors.a = at(0, spec.a, size, size);
    tensors.b = at(1, spec.b, size, size);
    tensors.scale_inv_a = at(2, Dtype::f32, 1, 1);
    tensors.scale_inv_b = at(3, Dtype::f32, 1, 1);
    tensors.out = at(4, spec.out, size, size);
    tensors.inputs[0] = at(5, spec.out, size, size);
    backend->gemm(spec, tensors, stream);
    BOOST_TEST(only_reads([&] { backend->gemm(spec, tensors, stream); }));
  }
}

// All passes of a cast, as a call loads them before its first launch.
BOOST_FIXTURE_TEST_CASE(load, DryLaunches) {
  const CastSpec spec{.scale = kTensorwise, .transposed = true, .pointwise = expression()};
  launcher.load(spec, stream);
  BOOST_TEST(only_reads([&] { launcher.load(spec, stream); }));
}

namespace {

struct Entry {
  std::size_t hash;
  int key;
  int value;
};

}  // namespace

// The first plans for ever; of further ones the latest, so that a step that ran once is found while it is captured.
BOOST_AUTO_TEST_CASE(a_full_table_of_plans_keeps_the_latest_too) {
  PlanTable<Entry> table(3);
  const auto is = [](int key) { return [key](const Entry& entry) { return entry.key == key; }; };
  const auto hash = [](int key) { return static_cast<std::size_t>(key % 2); };  // many share one
  const auto add = [&](int key) { table.insert({hash(key), key, 10 * key}, is(key)); };
  const auto value = [&](int key) {
    if (const Entry* const first = table.find(hash(key), is(key))) return first->value;
    const std::optional<Entry> latest = table.find_latest(hash(key), is(key));
    return latest ? latest->value : 0;
  };
  for (int key = 1; key <= 6; ++key) add(key);
  for (int key = 1; key <= 6; ++key) BOOST_TEST(value(key) == 10 * key);
  BOOST_TEST(value(4) == 40);  // now 5 is the one that was used last
  add(7);
  BOOST_TEST(value(5) == 0);
  for (const int key : {1, 2, 3, 4, 6, 7}) BOOST_TEST(value(key) == 10 * key);
  add(7);
  for (int key = 100; key < 1000; ++key) add(key);
  for (const int key : {1, 2, 3, 997, 998, 999}) BOOST_TEST(value(key) == 10 * key);
  BOOST_TEST(value(996) == 0);
}

BOOST_AUTO_TEST_SUITE_END()
