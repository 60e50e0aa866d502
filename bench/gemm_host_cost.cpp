// The calls are timed alternately with what they end in: a bare launch with a parameter of the same size, or a bare
// cublasLtMatmul on the same operands (bare_calls.h). Each call's result is checked first.
#include "gemm_host_cost.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <span>
#include <utility>

#include "bare_calls.h"
#include "gemm_buffers.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/runtime/util/error.h"

#include "gemm/gemm_mma.cuh"
#include "gemm/gemm_sm90.cuh"

namespace ingot::bench {
namespace {

constexpr std::int64_t kSize = 256;
constexpr double kAddedNsLimit = 600;

// The kernel that the library takes for this GEMM without a tuning record.
GemmKernel kernel_of(const GemmCase& c) {
  return gemm_order({c.spec, c.size}, {.target = target_for(9, 0), .multiprocessors = 132}).front().kernel;
}

// A case's operands on the GPU, and a bare cublasLtMatmul on the same operands.
struct GemmSetup {
  GemmSetup(MeasuredGpu& gpu, RandomData& random, const std::string& cuda_root, const GemmCase& c)
      : buffers(random, c), tensors(buffers.tensors(buffers.copies() - 1)), matmul(gpu, cuda_root, c.spec, tensors) {}

  GemmBuffers buffers;
  GemmTensors tensors;  // of the last copy, which fault() checks
  BareMatmul matmul;
};

void check(MeasuredGpu& gpu, const GemmSetup& setup, const GemmCase& c, const std::function<void()>& call) {
  setup.buffers.poison(gpu);
  call();
  const std::string fault = setup.buffers.fault(gpu);
  if (!fault.empty()) throw Error(ErrorCode::invalid_argument, name(c), fault);
}

// The launches that calls of gemm_sm90 and gemm_mma end in, without and with programmatic stream serialisation.
class BareLaunches {
 public:
  static constexpr std::size_t kSm90 = 0;  // indices in calls(); the next one is programmatic
  static constexpr std::size_t kMma = 2;

  explicit BareLaunches(MeasuredGpu& gpu) : sm90_(gpu, sizeof(Sm90GemmParams)), mma_(gpu, sizeof(GemmMmaParams)) {}

  // They refer to this object.
  std::vector<std::function<void()>> calls() {
    return {[this] { sm90_.launch(false); }, [this] { sm90_.launch(true); }, [this] { mma_.launch(false); },
            [this] { mma_.launch(true); }};
  }

 private:
  BareKernel sm90_;
  BareKernel mma_;
};

// A case, and the indices of its call and of its bare cublasLtMatmul among all timed calls.
struct Row {
  GemmCase gemm_case;
  std::size_t call;
  std::size_t matmul;
};

// `ns`: the time of each call.
HostCost host_cost_of(const Row& row, std::span<const double> ns) {
  HostCost cost{
      .spec = print(KernelSpec(row.gemm_case.spec)), .launches = 1, .limit_ns = kAddedNsLimit, .call_ns = ns[row.call]};
  const GemmKernel kernel = kernel_of(row.gemm_case);
  if (kernel == GemmKernel::cublaslt) {
    cost.bare = "cublasLtMatmul";
    cost.bare_ns = ns[row.matmul];
    return cost;
  }
  const bool is_sm90 = kernel == GemmKernel::sm90;
  const std::size_t bare = is_sm90 ? BareLaunches::kSm90 : BareLaunches::kMma;
  cost.bare = fmt::format("empty kernel, {} bytes", is_sm90 ? sizeof(Sm90GemmParams) : sizeof(GemmMmaParams));
  cost.bare_ns = ns[bare];
  cost.bare_pdl_ns = ns[bare + 1];
  return cost;
}

}  // namespace

std::vector<GemmCase> host_cost_cases() {
  std::vector<GemmCase> cases;
  for (const bool rowwise : {false, true}) {
    for (const GemmKernel kernel : {GemmKernel::automatic, GemmKernel::sm90, GemmKernel::mma, GemmKernel::cublaslt}) {
      const ScaleGranularity scale = rowwise ? kRowwise : kTensorwise;
      cases.push_back({.shape = fmt::format("{0}x{0}x{0}", kSize),
                       .mode = rowwise ? "row fast" : "tensor fast",
                       .spec = {.scale_a = scale, .scale_b = scale, .fast_accumulation = true, .kernel = kernel},
                       .size = {.m = kSize, .n = kSize, .k = kSize}});
    }
  }
  return cases;
}

GemmHostCost measure_gemm_host_cost(MeasuredGpu& gpu, RandomData& random, const std::string& cuda_root,
                                    const MeasureOptions& options) {
  BareLaunches bare(gpu);
  std::vector<std::function<void()>> calls = bare.calls();
  const auto add = [&](std::function<void()> call) {
    calls.push_back(std::move(call));
    return calls.size() - 1;
  };
  std::vector<std::unique_ptr<GemmSetup>> setups;
  std::vector<Row> rows;
  std::size_t matmul = 0;
  for (const GemmCase& c : host_cost_cases()) {
    if (rows.empty() || rows.back().gemm_case.mode != c.mode) {
      setups.push_back(std::make_unique<GemmSetup>(gpu, random, cuda_root, c));
      matmul = add([setup = setups.back().get()] { setup->matmul.call(); });
      check(gpu, *setups.back(), c, calls.back());
    }
    const GemmSetup& setup = *setups.back();
    const std::size_t call =
        add([&gpu, &setup, spec = c.spec] { gpu.backend().gemm(spec, setup.tensors, gpu.stream()); });
    check(gpu, setup, c, calls.back());
    rows.push_back({.gemm_case = c, .call = call, .matmul = matmul});
  }
  const Tensor codes = setups.front()->tensors.a;
  const std::size_t map = add([&] { encode_tensor_map(gpu, codes); });

  const std::vector<double> ns = host_ns(gpu, calls, options.rounds);
  GemmHostCost cost{.tensor_map_ns = ns[map]};
  for (const Row& row : rows) cost.calls.push_back(host_cost_of(row, ns));
  return cost;
}

std::string to_text(const GemmHostCost& cost) {
  return to_text(std::span<const HostCost>(cost.calls)) +
         fmt::format("cuTensorMapEncodeTiled: {:.0f} ns; a call of gemm_sm90 makes three to five\n",
                     cost.tensor_map_ns);
}

nlohmann::ordered_json to_json(const GemmHostCost& cost) {
  nlohmann::ordered_json json{{"calls", nlohmann::ordered_json::array()}, {"tensor_map_ns", cost.tensor_map_ns}};
  for (const HostCost& call : cost.calls) json["calls"].push_back(to_json(call));
  return json;
}

}  // namespace ingot::bench
