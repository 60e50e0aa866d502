// Row-major GEMMs on a column-major library. A row-major matrix is its transpose in column-major order, so we ask for
// the transpose of the product, out^T[N, M] = b[N, K] a[M, K]^T: cuBLASLt's A is our b, its B our a, its m our N, its n
// our M, its bias (one per row of D) our bias[N]. k-major operands, transposed twice, give the "TN" form, the only one
// that FP8 has on Hopper.
//
// A plan is everything about a call except its pointers. Plans are made once, found without a lock and never change.
// The descriptor that holds pointers is built on the stack in each call, so that threads share nothing.
#include "ingot/runtime/gemm/cublaslt.h"

#include <cublasLt.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "ingot/codegen/matmul.h"
#include "ingot/runtime/cuda/driver.h"
#include "ingot/runtime/gemm/cublaslt_rules.h"
#include "ingot/runtime/tuning/matmul_services.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/grow_only_table.h"
#include "ingot/runtime/util/library.h"

namespace ingot {
namespace {

#define INGOT_CUBLASLT_FUNCTIONS(X)           \
  X(cublasLtGetVersion)                       \
  X(cublasLtGetStatusString)                  \
  X(cublasLtCreate)                           \
  X(cublasLtDestroy)                          \
  X(cublasLtMatmul)                           \
  X(cublasLtMatmulAlgoGetHeuristic)           \
  X(cublasLtMatmulDescInit_internal)          \
  X(cublasLtMatmulDescSetAttribute)           \
  X(cublasLtMatrixLayoutInit_internal)        \
  X(cublasLtMatrixTransform)                  \
  X(cublasLtMatrixTransformDescInit_internal) \
  X(cublasLtMatrixTransformDescSetAttribute)  \
  X(cublasLtMatmulPreferenceInit_internal)    \
  X(cublasLtMatmulPreferenceSetAttribute)

struct Api {
#define INGOT_MEMBER(function) decltype(&::function) function = nullptr;
  INGOT_CUBLASLT_FUNCTIONS(INGOT_MEMBER)
#undef INGOT_MEMBER
};

// The first function that the library lacks, or null.
const char* resolve(const Library& library, Api& api) {
#define INGOT_RESOLVE(function)                                                       \
  api.function = reinterpret_cast<decltype(api.function)>(library.symbol(#function)); \
  if (api.function == nullptr) return #function;
  INGOT_CUBLASLT_FUNCTIONS(INGOT_RESOLVE)
#undef INGOT_RESOLVE
  return nullptr;
}

cudaDataType_t data_type(Dtype dtype) {
  switch (dtype) {
    case Dtype::f32: return CUDA_R_32F;
    case Dtype::bf16: return CUDA_R_16BF;
    case Dtype::f16: return CUDA_R_16F;
    case Dtype::e4m3fn: return CUDA_R_8F_E4M3;
    case Dtype::e5m2: return CUDA_R_8F_E5M2;
    default: break;
  }
  throw Error(ErrorCode::invalid_argument, std::string(name(dtype)), "data_type() in cublaslt.cpp lacks this dtype");
}

std::int32_t operation(bool transposed) { return transposed ? CUBLAS_OP_T : CUBLAS_OP_N; }

// For an operand of a GEMM whose scale_inv is not one for the whole tensor.
std::int32_t scale_mode(ScaleGranularity scale) {
  if (scale == kRowGroups) return CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;
  if (scale == kBlocks) return CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
  return CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
}

// Where cuBLASLt reads the bias, and the scale_inv of an FP8 GEMM's operands: where the call has them or, if they must
// be moved, in copies after the workspace.
struct Factors {
  CublasltScaleInv order_a{}, order_b{};  // of groups
  void* a = nullptr;
  void* b = nullptr;
  void* bias = nullptr;

  Factors(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, void* workspace)
      : a(tensors.scale_inv_a.data), b(tensors.scale_inv_b.data), bias(tensors.bias.data) {
    if (cublaslt_bias_bytes(spec, tensors) != 0) {
      bias = static_cast<std::byte*>(workspace) + CublasLt::kWorkspaceBytes +
             cublaslt_scale_inv_bytes(spec, tensors, size);
    }
    if (!has_group_scale_inv(spec)) return;
    order_a = cublaslt_scale_inv(tensors.scale_inv_a, spec.scale_a, size.m, size.k);
    order_b = cublaslt_scale_inv(tensors.scale_inv_b, spec.scale_b, size.n, size.k);
    std::byte* const copies = static_cast<std::byte*>(workspace) + CublasLt::kWorkspaceBytes;
    if (order_a.moved) a = copies;
    if (order_b.moved) b = copies + order_a.bytes();
  }
};

// A pointer's alignment, up to 256 bytes: more makes no difference to cuBLASLt.
std::uint32_t alignment(const void* data) {
  const auto address = reinterpret_cast<std::uintptr_t>(data);
  return address == 0 ? 256U : static_cast<std::uint32_t>(std::min<std::uintptr_t>(address & (~address + 1), 256));
}

// Everything that decides the algorithm. The kernel that the spec names is not part of it, so that all such specs share
// a plan.
struct PlanKey {
  GemmSpec spec;
  int device;
  std::int64_t m, n, k;
  std::int64_t stride_a, stride_b, stride_out, stride_c;
  std::uint32_t align_a, align_b, align_out, align_bias, align_c;
  int algorithm;
  bool operator==(const PlanKey&) const = default;
};

PlanKey plan_key(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, int algorithm) {
  return {.spec = without_kernel(spec),
          .device = tensors.out.device.index,
          .m = size.m,
          .n = size.n,
          .k = size.k,
          .stride_a = tensors.a.row_stride,
          .stride_b = tensors.b.row_stride,
          .stride_out = tensors.out.row_stride,
          .stride_c = tensors.c.row_stride,
          .align_a = alignment(tensors.a.data),
          .align_b = alignment(tensors.b.data),
          .align_out = alignment(tensors.out.data),
          .align_bias = cublaslt_bias_bytes(spec, tensors) != 0 ? 256U : alignment(tensors.bias.data),
          .align_c = alignment(tensors.c.data),
          .algorithm = algorithm};
}

std::size_t hash_of(const PlanKey& key) {
  std::size_t hash = hash_value(key.spec);
  const auto add = [&](auto value) { hash = hash_with(hash, static_cast<std::uint64_t>(value)); };
  for (const std::int64_t value : {key.m, key.n, key.k, key.stride_a, key.stride_b, key.stride_out, key.stride_c}) {
    add(value);
  }
  for (const std::uint32_t value : {key.align_a, key.align_b, key.align_out, key.align_bias, key.align_c}) add(value);
  add(key.device);
  add(key.algorithm);
  return hash;
}

struct Plan {
  std::size_t hash;
  PlanKey key;
  bool usable = false;  // false: the heuristic knows no algorithm
  cublasLtMatrixLayoutOpaque_t layout_a{};
  cublasLtMatrixLayoutOpaque_t layout_b{};
  cublasLtMatrixLayoutOpaque_t layout_c{};  // the output's, where there is no c
  cublasLtMatrixLayoutOpaque_t layout_out{};
  cublasLtMatmulAlgo_t algorithm{};
  std::size_t workspace_bytes = 0;
};

}  // namespace

struct CublasLt::State {
  // A handle belongs to the device that was current when it was made.
  struct PerDevice {
    Target target;
    std::atomic<cublasLtHandle_t> handle{nullptr};
  };

  State(Library opened, const Driver& with) : library(std::move(opened)), driver(&with) {}
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void check(cublasStatus_t status, const char* call) const;
  template <class Value>
  void set(cublasLtMatmulDescOpaque_t& description, cublasLtMatmulDescAttributes_t attribute, const Value& value) const;
  template <class Value>
  void set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute,
           const Value& value) const;

  cublasLtMatmulDescOpaque_t describe(const GemmSpec& spec, const Factors& scale_inv) const;
  void describe(cublasLtMatrixLayoutOpaque_t& layout, const Tensor& tensor) const;
  void describe(cublasLtMatrixLayoutOpaque_t& layout, const ScaleInvMatrix& matrix) const;
  void move(const CublasltScaleInv& order, const void* from, void* to, cublasLtHandle_t handle,
            CUstream_st* stream) const;
  void copy_bias(const GemmSpec& spec, const GemmTensors& tensors, const Factors& scale_inv, CUstream_st* stream) const;
  Plan make_plan(std::size_t hash, const PlanKey& key, const GemmTensors& tensors, const Factors& scale_inv,
                 CUstream_st* stream);
  cublasLtHandle_t handle_of(PerDevice& device);

  Library library;
  const Driver* driver;
  Api api{};
  std::size_t version = 0;
  std::vector<PerDevice> devices;
  PlanTable<Plan> plans{kMostPlans};
  std::mutex making;  // of plans and handles
};

CublasLt::State::~State() {
  for (PerDevice& device : devices) {
    if (const cublasLtHandle_t handle = device.handle.load()) static_cast<void>(api.cublasLtDestroy(handle));
  }
}

void CublasLt::State::check(cublasStatus_t status, const char* call) const {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(status == CUBLAS_STATUS_ALLOC_FAILED ? ErrorCode::out_of_memory : ErrorCode::cuda_failed, call,
              fmt::format("{} ({})", api.cublasLtGetStatusString(status), library.path()));
}

template <class Value>
void CublasLt::State::set(cublasLtMatmulDescOpaque_t& description, cublasLtMatmulDescAttributes_t attribute,
                          const Value& value) const {
  check(api.cublasLtMatmulDescSetAttribute(&description, attribute, &value, sizeof(value)),
        "cublasLtMatmulDescSetAttribute");
}

template <class Value>
void CublasLt::State::set(cublasLtMatmulPreferenceOpaque_t& preference, cublasLtMatmulPreferenceAttributes_t attribute,
                          const Value& value) const {
  check(api.cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof(value)),
        "cublasLtMatmulPreferenceSetAttribute");
}

cublasLtMatmulDescOpaque_t CublasLt::State::describe(const GemmSpec& spec, const Factors& scale_inv) const {
  cublasLtMatmulDescOpaque_t description{};
  check(api.cublasLtMatmulDescInit_internal(&description, sizeof(description), CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "cublasLtMatmulDescInit");
  set(description, CUBLASLT_MATMUL_DESC_TRANSA, operation(spec.layout_b == Layout::k_major));
  set(description, CUBLASLT_MATMUL_DESC_TRANSB, operation(spec.layout_a == Layout::mn_major));
  if (is_fp8(spec.a)) {
    if (spec.scale_a != kTensorwise) {
      set(description, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, scale_mode(spec.scale_b));
      set(description, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, scale_mode(spec.scale_a));
    }
    set(description, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scale_inv.b);
    set(description, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scale_inv.a);
    set(description, CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<std::int8_t>(spec.fast_accumulation));
  }
  if (spec.bias) {
    set(description, CUBLASLT_MATMUL_DESC_EPILOGUE, std::uint32_t{CUBLASLT_EPILOGUE_BIAS});
    set(description, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, std::int32_t{data_type(bias_dtype(spec))});
    set(description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, scale_inv.bias);
  }
  return description;
}

// Swaps rows and columns: see the top of the file.
void CublasLt::State::describe(cublasLtMatrixLayoutOpaque_t& layout, const Tensor& tensor) const {
  check(api.cublasLtMatrixLayoutInit_internal(&layout, sizeof(layout), data_type(tensor.dtype),
                                              static_cast<std::uint64_t>(tensor.cols),
                                              static_cast<std::uint64_t>(tensor.rows), tensor.row_stride),
        "cublasLtMatrixLayoutInit");
}

void CublasLt::State::describe(cublasLtMatrixLayoutOpaque_t& layout, const ScaleInvMatrix& matrix) const {
  check(api.cublasLtMatrixLayoutInit_internal(&layout, sizeof(layout), CUDA_R_32F,
                                              static_cast<std::uint64_t>(matrix.cols),
                                              static_cast<std::uint64_t>(matrix.rows), matrix.pitch),
        "cublasLtMatrixLayoutInit");
}

void CublasLt::State::move(const CublasltScaleInv& order, const void* from, void* to, cublasLtHandle_t handle,
                           CUstream_st* stream) const {
  if (!order.moved) return;
  cublasLtMatrixTransformDescOpaque_t transform{};
  check(api.cublasLtMatrixTransformDescInit_internal(&transform, sizeof(transform), CUDA_R_32F),
        "cublasLtMatrixTransformDescInit");
  const std::int32_t transposed = operation(order.transposed);
  check(api.cublasLtMatrixTransformDescSetAttribute(&transform, CUBLASLT_MATRIX_TRANSFORM_DESC_TRANSA, &transposed,
                                                    sizeof(transposed)),
        "cublasLtMatrixTransformDescSetAttribute");
  cublasLtMatrixLayoutOpaque_t given{};
  cublasLtMatrixLayoutOpaque_t read{};
  describe(given, order.given);
  describe(read, order.read);
  const float one = 1.0F;
  const float zero = 0.0F;
  check(api.cublasLtMatrixTransform(handle, &transform, &one, from, &given, &zero, nullptr, nullptr, to, &read, stream),
        "cublasLtMatrixTransform");
}

void CublasLt::State::copy_bias(const GemmSpec& spec, const GemmTensors& tensors, const Factors& scale_inv,
                                CUstream_st* stream) const {
  if (cublaslt_bias_bytes(spec, tensors) == 0) return;
  const auto bytes = static_cast<std::size_t>(tensors.bias.cols * size_of(tensors.bias.dtype));
  driver->check(driver->api().cuMemcpyDtoDAsync(reinterpret_cast<CUdeviceptr>(scale_inv.bias),
                                                reinterpret_cast<CUdeviceptr>(tensors.bias.data), bytes, stream),
                "cuMemcpyDtoDAsync");
}

// It is made in the context that outlives a caller's green one.
cublasLtHandle_t CublasLt::State::handle_of(PerDevice& device) {
  cublasLtHandle_t handle = device.handle.load(std::memory_order_acquire);
  if (handle != nullptr) return handle;
  const CurrentContext current(*driver, static_cast<int>(&device - devices.data()));
  check(api.cublasLtCreate(&handle), "cublasLtCreate");
  device.handle.store(handle, std::memory_order_release);
  return handle;
}

Plan CublasLt::State::make_plan(std::size_t hash, const PlanKey& key, const GemmTensors& tensors,
                                const Factors& scale_inv, CUstream_st* stream) {
  CUstreamCaptureStatus capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  driver->check(driver->api().cuStreamIsCapturing(stream, &capturing), "cuStreamIsCapturing");
  if (capturing != CU_STREAM_CAPTURE_STATUS_NONE) {
    throw Error(
        ErrorCode::invalid_argument, print(key.spec),
        fmt::format("cuBLASLt has no plan for M = {}, N = {}, K = {} yet, and none can be made while the stream "
                    "is capturing a graph; run the step once before capturing it",
                    key.m, key.n, key.k));
  }

  const std::lock_guard lock(making);
  const auto matches = [&](const Plan& kept) { return kept.key == key; };
  if (const Plan* const there = plans.find(hash, matches)) return *there;
  if (const std::optional<Plan> there = plans.find_latest(hash, matches)) return *there;

  Plan plan{.hash = hash, .key = key};
  cublasLtMatmulDescOpaque_t description = describe(key.spec, scale_inv);
  describe(plan.layout_a, tensors.b);
  describe(plan.layout_b, tensors.a);
  describe(plan.layout_c, key.spec.epilogue.c ? tensors.c : tensors.out);
  describe(plan.layout_out, tensors.out);
  cublasLtMatmulPreferenceOpaque_t preference{};
  check(api.cublasLtMatmulPreferenceInit_internal(&preference, sizeof(preference)), "cublasLtMatmulPreferenceInit");
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{kWorkspaceBytes});
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.spec.epilogue.c ? key.align_c : key.align_out);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_out);

  std::array<cublasLtMatmulHeuristicResult_t, kAlgorithms> candidates{};
  int count = 0;
  const cublasLtHandle_t handle = handle_of(devices[static_cast<std::size_t>(key.device)]);
  const cublasStatus_t status = api.cublasLtMatmulAlgoGetHeuristic(
      handle, &description, &plan.layout_a, &plan.layout_b, &plan.layout_c, &plan.layout_out, &preference,
      static_cast<int>(candidates.size()), candidates.data(), &count);
  if (status != CUBLAS_STATUS_NOT_SUPPORTED) check(status, "cublasLtMatmulAlgoGetHeuristic");
  int usable = 0;
  for (int i = 0; i < count && !plan.usable; ++i) {
    const cublasLtMatmulHeuristicResult_t& candidate = candidates[static_cast<std::size_t>(i)];
    if (candidate.state != CUBLAS_STATUS_SUCCESS || candidate.workspaceSize > kWorkspaceBytes) continue;
    if (usable++ < key.algorithm) continue;
    plan.algorithm = candidate.algo;
    plan.workspace_bytes = candidate.workspaceSize;
    plan.usable = true;
  }
  plans.insert(plan, matches);
  return plan;
}

CublasLt::CublasLt() = default;
CublasLt::~CublasLt() = default;

std::unique_ptr<CublasLt> CublasLt::open(const std::string& cuda_root, const Driver& driver, std::string& problem) {
  Library library = Library::open_cuda("libcublasLt.so", driver.cuda_version(), cuda_root, problem);
  if (!library) return nullptr;
  std::unique_ptr<CublasLt> opened(new CublasLt);
  opened->state_ = std::make_unique<State>(std::move(library), driver);
  State& state = *opened->state_;
  if (const char* missing = resolve(state.library, state.api)) {
    problem = fmt::format("{} lacks {}; cuBLASLt 12.9 or newer is needed", state.library.path(), missing);
    return nullptr;
  }
  state.version = state.api.cublasLtGetVersion();
  state.devices = std::vector<State::PerDevice>(static_cast<std::size_t>(driver.device_count()));
  for (std::size_t i = 0; i < state.devices.size(); ++i) {
    state.devices[i].target = driver.device_target(static_cast<int>(i));
  }
  return opened;
}

const char* CublasLt::refusal(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size) const {
  const Target target = state_->devices[static_cast<std::size_t>(tensors.out.device.index)].target;
  return cublaslt_refusal(spec, tensors, size, target, state_->version);
}

std::size_t CublasLt::workspace_bytes(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size) {
  return kWorkspaceBytes + cublaslt_scale_inv_bytes(spec, tensors, size) + cublaslt_bias_bytes(spec, tensors);
}

bool CublasLt::matmul(const GemmSpec& spec, const GemmTensors& tensors, const MatmulSize& size, void* workspace,
                      CUstream_st* stream, int algorithm) {
  const PlanKey key = plan_key(spec, tensors, size, algorithm);
  const Factors scale_inv(spec, tensors, size, workspace);
  const std::size_t hash = hash_of(key);
  const auto matches = [&](const Plan& kept) { return kept.key == key; };
  const Plan* plan = state_->plans.find(hash, matches);
  std::optional<Plan> own;
  if (plan == nullptr) {
    own = state_->plans.find_latest(hash, matches);
    if (!own) own = state_->make_plan(hash, key, tensors, scale_inv, stream);
    plan = &*own;
  }
  if (!plan->usable) return false;

  cublasLtMatmulDescOpaque_t description = state_->describe(spec, scale_inv);
  // The library takes layouts by pointers to non-const and does not write to them.
  const auto layout = [](const cublasLtMatrixLayoutOpaque_t& l) { return const_cast<cublasLtMatrixLayout_t>(&l); };
  const float alpha = 1.0F;
  const bool adds_c = spec.epilogue.c.has_value();
  const float beta = adds_c ? tensors.beta : 0.0F;
  const cublasLtHandle_t handle = state_->handle_of(state_->devices[static_cast<std::size_t>(key.device)]);
  state_->copy_bias(spec, tensors, scale_inv, stream);
  state_->move(scale_inv.order_a, tensors.scale_inv_a.data, scale_inv.a, handle, stream);
  state_->move(scale_inv.order_b, tensors.scale_inv_b.data, scale_inv.b, handle, stream);
  const cublasStatus_t status = state_->api.cublasLtMatmul(
      handle, &description, &alpha, tensors.b.data, layout(plan->layout_a), tensors.a.data, layout(plan->layout_b),
      &beta, adds_c ? tensors.c.data : tensors.out.data, layout(plan->layout_c), tensors.out.data,
      layout(plan->layout_out), &plan->algorithm, workspace, plan->workspace_bytes, stream);
  state_->check(status, "cublasLtMatmul");
  return true;
}

std::string CublasLt::version() const {
  const std::size_t number = state_->version;  // 130100
  return fmt::format("{}.{}.{}", number / 10000, number / 100 % 100, number % 100);
}

const std::string& CublasLt::path() const { return state_->library.path(); }

}  // namespace ingot
