// What stands between a call and its launch copies no spec. A copy of a spec shares its expression, and counts that in
// the expression's memory: so the lookups run in a process in which that memory cannot be written.
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <boost/test/unit_test.hpp>
#include <csignal>
#include <cstddef>
#include <cstdlib>
#include <new>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/buffer.h"
#include "ingot/runtime/dequant/dequant_plans.h"
#include "ingot/runtime/dry_run.h"
#include "ingot/runtime/gemm/gemm_plans.h"
#include "ingot/runtime/jit/kernel_table.h"
#include "ingot/runtime/stream.h"

using namespace ingot;

namespace {

constexpr std::size_t kBytes = std::size_t{1} << 20U;

// Memory of its own for what is allocated while `open`; never given back.
struct Pages {
  std::byte* data = nullptr;
  std::size_t used = 0;
  bool open = false;

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

// Does `work` end where the pages can only be read?
template <class Work>
bool only_reads(const Work& work) {
  const pid_t child = fork();
  BOOST_REQUIRE(child >= 0);
  if (child == 0) {
    static_cast<void>(std::signal(SIGSEGV, SIG_DFL));
    if (mprotect(pages.data, kBytes, PROT_READ) != 0) _exit(2);
    work();
    _exit(0);
  }
  int status = 0;
  BOOST_REQUIRE(waitpid(child, &status, 0) == child);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = pages.open ? pages.take(bytes) : std::malloc(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

void operator delete(void* memory) noexcept {
  if (!pages.has(memory)) std::free(memory);
}
void operator delete(void* memory, std::size_t /*bytes*/) noexcept { operator delete(memory); }

BOOST_AUTO_TEST_CASE(a_copy_would_show) {
  const GemmSpec spec{.epilogue = {.pointwise = expression()}};
  BOOST_TEST(only_reads([&] { static_cast<void>(hash_value(spec)); }));
  BOOST_TEST(!only_reads([&] { static_cast<void>(KernelSpec(spec)); }));
}

BOOST_AUTO_TEST_CASE(gemm) {
  const GemmSpec spec{.epilogue = {.pointwise = expression()}};
  GemmPlans plans({}, target_for(9, 0), 132);
  const MatmulSize size{.m = 4096, .n = 4096, .k = 4096};
  BOOST_TEST(!plans.find(spec, size).empty());
  BOOST_TEST(only_reads([&] { plans.find(spec, size); }));
}

BOOST_AUTO_TEST_CASE(a_loaded_kernel) {
  const CastSpec spec{.in = Dtype::bf16, .out = Dtype::e4m3fn, .scale = kRowwise, .pointwise = expression()};
  KernelTable<int> kernels;
  int kernel = 0;
  kernels.insert(spec, Pass::main, &kernel);
  BOOST_TEST(kernels.find(spec, Pass::main) == &kernel);
  BOOST_TEST(kernels.find(KernelSpec(spec), Pass::main) == &kernel);
  BOOST_TEST(kernels.find(spec, Pass::first) == nullptr);
  BOOST_TEST(kernels.find(ElementwiseSpec{.pointwise = spec.pointwise}, Pass::main) == nullptr);
  BOOST_TEST(only_reads([&] { static_cast<void>(kernels.find(spec, Pass::main)); }));
}

// From the backend's function to the driver's launch.
BOOST_AUTO_TEST_CASE(a_launch) {
  DryRun dry(gpu_named("h200"));
  Backend& backend = dry.backend();
  Stream stream(backend);
  const OwnedTensor x(backend, Dtype::bf16, 64, 64), gate(backend, Dtype::bf16, 64, 64);
  const OwnedTensor out(backend, Dtype::bf16, 64, 64);
  const ElementwiseSpec spec{.in = Dtype::bf16, .pointwise = expression()};
  const ElementwiseTensors tensors{.input = x, .inputs = {gate.view()}, .output = out};
  backend.elementwise(spec, tensors, stream);
  const std::int64_t before = backend.launches();
  backend.elementwise(spec, tensors, stream);
  BOOST_TEST(backend.launches() == before + 1);
  BOOST_TEST(only_reads([&] { backend.elementwise(spec, tensors, stream); }));
}

BOOST_AUTO_TEST_CASE(dequant_matmul) {
  const DequantMatmulSpec spec{.pointwise = expression()};
  DequantPlans plans({}, {.target = target_for(9, 0), .multiprocessors = 132});
  const MatmulSize size{.m = 16, .n = 4096, .k = 4096};
  BOOST_TEST(!plans.find(spec, size).empty());
  BOOST_TEST(only_reads([&] { plans.find(spec, size); }));
}
