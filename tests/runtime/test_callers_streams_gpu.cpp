// Green contexts on a GPU: work on the default stream of the caller's runs after the caller's own there, and operations
// run on streams that have a part of the multiprocessors.
#include "support/gpu_test.h"

#include <dlfcn.h>

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/cuda/driver.h"

namespace ingot::test {
BOOST_AUTO_TEST_SUITE(test_callers_streams_gpu)

namespace {

Context& context() {
  static Context made(cuda_options());
  return made;
}

// A function of libcuda's that Ingot does not call.
template <class Function>
Function function_of(const char* name) {
  static void* const library = ::dlopen("libcuda.so.1", RTLD_NOW);
  const auto found = reinterpret_cast<Function>(::dlsym(library, name));
  BOOST_REQUIRE_MESSAGE(found != nullptr, name);
  return found;
}

void require(CUresult result, const char* call) {
  BOOST_REQUIRE_MESSAGE(result == CUDA_SUCCESS, call << " " << result);
}

// A part of the device's multiprocessors, of its primary context.
struct GreenContext {
  explicit GreenContext(const Driver& driver) {
    static_cast<void>(driver.context(0));  // keeps the primary context
    CUdevResource all{};
    CUdevResource rest{};
    CUdevResourceDesc description{};
    unsigned groups = 1;
    require(function_of<decltype(&cuDeviceGetDevResource)>("cuDeviceGetDevResource")(0, &all, CU_DEV_RESOURCE_TYPE_SM),
            "cuDeviceGetDevResource");
    require(function_of<decltype(&cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount")(&part, &groups, &all,
                                                                                               &rest, 0, 16),
            "cuDevSmResourceSplitByCount");
    require(function_of<decltype(&cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc")(&description, &part, 1),
            "cuDevResourceGenerateDesc");
    require(function_of<decltype(&cuGreenCtxCreate)>("cuGreenCtxCreate")(&green, description, 0,
                                                                         CU_GREEN_CTX_DEFAULT_STREAM),
            "cuGreenCtxCreate");
    require(function_of<decltype(&cuCtxFromGreenCtx)>("cuCtxFromGreenCtx")(&context, green), "cuCtxFromGreenCtx");
    require(function_of<decltype(&cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate")(&stream, green,
                                                                                     CU_STREAM_NON_BLOCKING, 0),
            "cuGreenCtxStreamCreate");
  }
  ~GreenContext() {
    static_cast<void>(function_of<decltype(&cuStreamDestroy)>("cuStreamDestroy_v2")(stream));
    static_cast<void>(function_of<decltype(&cuGreenCtxDestroy)>("cuGreenCtxDestroy")(green));
  }
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;

  CUdevResource part{};
  CUgreenCtx green = nullptr;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
};

struct Fixture {
  std::string problem{};
  std::unique_ptr<Driver> driver = Driver::open(problem);
  Backend& backend = context().backend();
  GreenContext green{*driver};
};

std::vector<std::uint8_t> codes_of(Backend& backend, const OwnedTensor& codes) {
  std::vector<std::uint8_t> host(static_cast<std::size_t>(codes.view().rows * codes.view().cols));
  Stream fetch(backend);
  backend.device_api().copy_to_host(host.data(), codes.view().data, host.size(), fetch);
  return host;
}

}  // namespace

BOOST_FIXTURE_TEST_SUITE(small, Fixture)

// The caller writes x there after copies that take long. Then on the way back, by wait_for().
BOOST_AUTO_TEST_CASE(work_on_the_default_stream_runs_after_the_callers) {
  constexpr std::int64_t kSize = 1024;
  constexpr std::size_t kBytes = std::size_t{1} << 30U;
  const Driver::Api& api = driver->api();
  const OwnedTensor x(backend, Dtype::bf16, kSize, kSize);
  const OwnedTensor codes(backend, Dtype::e4m3fn, kSize, kSize);
  const OwnedTensor scale_inv(backend, Dtype::f32, 1, kSize);
  const Buffer from(backend, kBytes);
  const Buffer to(backend, kBytes);
  const CastSpec spec{.in = Dtype::bf16, .out = Dtype::e4m3fn, .scale = kRowwise};
  const CastTensors tensors{.input = x, .codes = codes, .scale_inv = scale_inv};
  Stream own(backend);
  backend.device_api().fill_zero(x.view().data, kSize * kSize * 2, own);
  backend.cast(spec, tensors, own);  // loads the kernel
  backend.device_api().synchronize(own);
  const auto address = [](const void* data) { return reinterpret_cast<CUdeviceptr>(data); };
  for (const bool by_own_stream : {false, true}) {
    const CurrentContext current(api, green.context);
    Stream on_default(backend, nullptr);
    require(api.cuMemsetD8Async(address(x.view().data), 0, kSize * kSize * 2, nullptr), "cuMemsetD8Async");
    backend.device_api().synchronize(on_default);
    for (int i = 0; i < 100; ++i) {
      require(api.cuMemcpyDtoDAsync(address(to.data()), address(from.data()), kBytes, nullptr), "cuMemcpyDtoDAsync");
    }
    require(api.cuMemsetD8Async(address(x.view().data), 0x3f, kSize * kSize * 2, nullptr), "cuMemsetD8Async");
    if (by_own_stream) {
      own.wait_for(on_default);
      backend.cast(spec, tensors, own);
      on_default.wait_for(own);
    } else {
      backend.cast(spec, tensors, on_default);
    }
    backend.device_api().synchronize(on_default);
    std::int64_t zeros = 0;
    for (const std::uint8_t code : codes_of(backend, codes)) zeros += code == 0;
    BOOST_TEST(zeros == 0, "codes of the old x");
  }
}

BOOST_AUTO_TEST_CASE(operations_run_on_a_part_of_the_multiprocessors) {
  BOOST_TEST_MESSAGE(green.part.sm.smCount << " multiprocessors");
  Stream on_green(backend, green.stream);
  Stream whole(backend);
  for (const std::int64_t rows : {128, 1024, 2048}) {
    for (const char* expression : {"", "silu(x)"}) {
      CastSpec spec{.in = Dtype::bf16, .out = Dtype::e4m3fn, .scale = kTensorwise, .transposed = true};
      if (*expression != '\0') spec.pointwise = parse_pointwise(expression);
      const OwnedTensor x(backend, Dtype::bf16, rows, 1024);
      const OwnedTensor codes(backend, Dtype::e4m3fn, rows, 1024);
      const OwnedTensor transposed(backend, Dtype::e4m3fn, 1024, rows);
      const OwnedTensor scale_inv(backend, Dtype::f32, 1, 1);
      std::vector<std::uint16_t> host(static_cast<std::size_t>(rows * 1024));
      for (std::size_t i = 0; i < host.size(); ++i) host[i] = static_cast<std::uint16_t>(0x3f80U + i % 512);
      backend.device_api().copy_from_host(x.view().data, host.data(), host.size() * 2, whole);
      const CastTensors tensors{.input = x, .codes = codes, .transposed = transposed, .scale_inv = scale_inv};
      backend.cast(spec, tensors, whole);
      backend.device_api().synchronize(whole);
      const std::vector<std::uint8_t> expected = codes_of(backend, codes);
      backend.device_api().fill_zero(codes.view().data, expected.size(), whole);
      backend.device_api().synchronize(whole);
      backend.cast(spec, tensors, on_green);
      backend.device_api().synchronize(on_green);
      BOOST_TEST((codes_of(backend, codes) == expected), rows << " " << expression);
    }
  }
  for (const char* line : {"gemm bf16*bf16->bf16", "gemm e4m3fn*e4m3fn->bf16 scale=row,row"}) {
    const auto spec = std::get<GemmSpec>(parse(line));
    const OwnedTensor a(backend, spec.a, 1024, 1024);
    const OwnedTensor b(backend, spec.b, 1024, 1024);
    const OwnedTensor out(backend, spec.out, 1024, 1024);
    const OwnedTensor scale_inv(backend, Dtype::f32, 1, 1024);
    GemmTensors tensors{.a = a, .b = b, .out = out};
    if (is_fp8(spec.a)) tensors.scale_inv_a = tensors.scale_inv_b = scale_inv;
    BOOST_CHECK_NO_THROW(backend.gemm(spec, tensors, on_green));
    BOOST_CHECK_NO_THROW(backend.device_api().synchronize(on_green));
  }
}

BOOST_AUTO_TEST_SUITE_END()

BOOST_AUTO_TEST_SUITE_END()

}  // namespace ingot::test
