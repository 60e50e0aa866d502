// cuBLASLt's matrices are column-major and Ingot's row-major, so cuBLASLt's A is b here, and its B is a, as in
// runtime/gemm/cublaslt.cpp.
#include "bare_calls.h"

#include <cublasLt.h>

#include <cstdint>

#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/gemm/cublaslt.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/library.h"

namespace ingot::bench {
namespace {

void check_cublaslt(cublasStatus_t status, const char* call) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(ErrorCode::cuda_failed, call, "cuBLASLt gave status " + std::to_string(status));
}

cudaDataType_t data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::e4m3fn: return CUDA_R_8F_E4M3;
    case Dtype::e5m2: return CUDA_R_8F_E5M2;
    case Dtype::f16: return CUDA_R_16F;
    case Dtype::f32: return CUDA_R_32F;
    default: return CUDA_R_16BF;
  }
}

}  // namespace

Source empty_kernel(std::size_t parameter_bytes) {
  return {.name = "empty kernel",
          .text = "struct Parameter { unsigned char bytes[" + std::to_string(parameter_bytes) +
                  "]; };\n"
                  "__global__ void nothing(Parameter) {}\n"
                  "constexpr auto kKernel = &nothing;\n"};
}

BareKernel::BareKernel(MeasuredGpu& gpu, std::size_t parameter_bytes) : gpu_(&gpu), parameter_(parameter_bytes) {
  KernelCache& cache = gpu.context().cache();
  const auto compiled = cache.compiled(empty_kernel(parameter_bytes), cache.target());
  const Driver::Api& api = gpu.api();
  gpu.check(api.cuLibraryLoadData(&library_, compiled->cubin.data(), nullptr, nullptr, 0, nullptr, nullptr, 0),
            "cuLibraryLoadData");
  const CUresult result = api.cuLibraryGetKernel(&kernel_, library_, compiled->lowered_name.c_str());
  if (result != CUDA_SUCCESS) static_cast<void>(api.cuLibraryUnload(library_));
  gpu.check(result, "cuLibraryGetKernel");
  attribute_.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
  attribute_.value.programmaticStreamSerializationAllowed = 1;
}

BareKernel::~BareKernel() { static_cast<void>(gpu_->api().cuLibraryUnload(library_)); }

void BareKernel::launch(bool programmatic) {
  CUlaunchConfig config{};
  config.gridDimX = config.gridDimY = config.gridDimZ = 1;
  config.blockDimX = 32;
  config.blockDimY = config.blockDimZ = 1;
  config.hStream = gpu_->stream().handle();
  config.attrs = programmatic ? &attribute_ : nullptr;
  config.numAttrs = programmatic ? 1 : 0;
  void* arguments[] = {parameter_.data()};
  gpu_->check(gpu_->api().cuLaunchKernelEx(&config, reinterpret_cast<CUfunction>(kernel_), arguments, nullptr),
              "cuLaunchKernelEx");
}

void encode_tensor_map(MeasuredGpu& gpu, const Tensor& codes) {
  CUtensorMap map;
  const cuuint64_t sizes[] = {static_cast<cuuint64_t>(codes.cols), static_cast<cuuint64_t>(codes.rows)};
  const cuuint64_t strides[] = {static_cast<cuuint64_t>(codes.row_stride)};
  const cuuint32_t extents[] = {128, 128};
  const cuuint32_t steps[] = {1, 1};
  gpu.check(gpu.api().cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_UINT8, 2, codes.data, sizes, strides,
                                             extents, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            "cuTensorMapEncodeTiled");
}

struct BareMatmul::State {
  struct Api {
    decltype(&::cublasLtCreate) create = nullptr;
    decltype(&::cublasLtDestroy) destroy = nullptr;
    decltype(&::cublasLtMatmul) matmul = nullptr;
    decltype(&::cublasLtMatmulAlgoGetHeuristic) heuristic = nullptr;
    decltype(&::cublasLtMatmulDescInit_internal) init_description = nullptr;
    decltype(&::cublasLtMatmulDescSetAttribute) set_description = nullptr;
    decltype(&::cublasLtMatrixLayoutInit_internal) init_layout = nullptr;
    decltype(&::cublasLtMatmulPreferenceInit_internal) init_preference = nullptr;
    decltype(&::cublasLtMatmulPreferenceSetAttribute) set_preference = nullptr;
  };

  State(MeasuredGpu& with, const std::string& cuda_root, const GemmTensors& of)
      : gpu(&with), tensors(of), workspace(with.backend(), CublasLt::kWorkspaceBytes) {
    std::string problem;
    library = Library::open_cuda("libcublasLt.so", 0, cuda_root, problem);
    if (!library) throw Error(ErrorCode::not_found, "cuBLASLt", problem);
    resolve();
    check_cublaslt(api.create(&handle), "cublasLtCreate");
  }
  ~State() {
    if (handle != nullptr) static_cast<void>(api.destroy(handle));
  }
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void resolve() {
    const auto find = [&]<class Function>(Function*& function, const char* name) {
      function = reinterpret_cast<Function*>(library.symbol(name));
      if (function == nullptr) throw Error(ErrorCode::not_found, name, "is missing in " + library.path());
    };
    find(api.create, "cublasLtCreate");
    find(api.destroy, "cublasLtDestroy");
    find(api.matmul, "cublasLtMatmul");
    find(api.heuristic, "cublasLtMatmulAlgoGetHeuristic");
    find(api.init_description, "cublasLtMatmulDescInit_internal");
    find(api.set_description, "cublasLtMatmulDescSetAttribute");
    find(api.init_layout, "cublasLtMatrixLayoutInit_internal");
    find(api.init_preference, "cublasLtMatmulPreferenceInit_internal");
    find(api.set_preference, "cublasLtMatmulPreferenceSetAttribute");
  }

  template <class Value>
  void set(cublasLtMatmulDescAttributes_t attribute, Value value) {
    check_cublaslt(api.set_description(&description, attribute, &value, sizeof(value)),
                   "cublasLtMatmulDescSetAttribute");
  }

  void describe(cublasLtMatrixLayoutOpaque_t& layout, const Tensor& tensor) const {
    check_cublaslt(
        api.init_layout(&layout, sizeof(layout), data_type(tensor.dtype), static_cast<std::uint64_t>(tensor.cols),
                        static_cast<std::uint64_t>(tensor.rows), tensor.row_stride),
        "cublasLtMatrixLayoutInit");
  }

  void describe(const GemmSpec& spec) {
    check_cublaslt(api.init_description(&description, sizeof(description), CUBLAS_COMPUTE_32F, CUDA_R_32F),
                   "cublasLtMatmulDescInit");
    set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{CUBLAS_OP_T});
    set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{CUBLAS_OP_N});
    if (spec.scale_a == kRowwise) {
      set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, std::int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F});
      set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, std::int32_t{CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F});
    }
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, tensors.scale_inv_b.data);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, tensors.scale_inv_a.data);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(spec.fast_accumulation));
    describe(layout_a, tensors.b);
    describe(layout_b, tensors.a);
    describe(layout_out, tensors.out);
  }

  void choose_algorithm() {
    cublasLtMatmulPreferenceOpaque_t preference{};
    check_cublaslt(api.init_preference(&preference, sizeof(preference)), "cublasLtMatmulPreferenceInit");
    const std::uint64_t bytes = CublasLt::kWorkspaceBytes;
    check_cublaslt(api.set_preference(&preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof(bytes)),
                   "cublasLtMatmulPreferenceSetAttribute");
    int count = 0;
    check_cublaslt(api.heuristic(handle, &description, &layout_a, &layout_b, &layout_out, &layout_out, &preference, 1,
                                 &chosen, &count),
                   "cublasLtMatmulAlgoGetHeuristic");
    if (count == 0) throw Error(ErrorCode::not_found, "cublasLtMatmulAlgoGetHeuristic", "cuBLASLt has no algorithm");
  }

  MeasuredGpu* gpu;
  GemmTensors tensors;
  Buffer workspace;
  Library library;
  Api api;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDescOpaque_t description{};
  cublasLtMatrixLayoutOpaque_t layout_a{}, layout_b{}, layout_out{};
  cublasLtMatmulHeuristicResult_t chosen{};
};

BareMatmul::BareMatmul(MeasuredGpu& gpu, const std::string& cuda_root, const GemmSpec& spec, const GemmTensors& tensors)
    : state_(std::make_unique<State>(gpu, cuda_root, tensors)) {
  state_->describe(spec);
  state_->choose_algorithm();
}

BareMatmul::~BareMatmul() = default;

void BareMatmul::call() {
  State& s = *state_;
  const float alpha = 1.0F;
  const float beta = 0.0F;
  check_cublaslt(s.api.matmul(s.handle, &s.description, &alpha, s.tensors.b.data, &s.layout_a, s.tensors.a.data,
                              &s.layout_b, &beta, s.tensors.out.data, &s.layout_out, s.tensors.out.data, &s.layout_out,
                              &s.chosen.algo, s.workspace.data(), s.chosen.workspaceSize, s.gpu->stream().handle()),
                 "cublasLtMatmul");
}

}  // namespace ingot::bench
