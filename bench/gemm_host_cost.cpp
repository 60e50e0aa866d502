#include "gemm_host_cost.h"

#include <fmt/format.h>

#include <memory>
#include <utility>

#include "bare_calls.h"
#include "gemm_buffers.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/runtime/error.h"

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
struct Product {
  Product(Gpu& gpu, RandomData& random, const std::string& cuda_root, const GemmCase& c)
      : buffers(random, c), tensors(buffers.tensors(buffers.copies() - 1)), matmul(gpu, cuda_root, c.spec, tensors) {}

  GemmBuffers buffers;
  GemmTensors tensors;  // of the last copy, which fault() checks
  BareMatmul matmul;
};

void check(Gpu& gpu, const Product& product, const GemmCase& c, const std::function<void()>& call) {
  product.buffers.poison(gpu);
  call();
  const std::string fault = product.buffers.fault(gpu);
  if (!fault.empty()) throw Error(ErrorCode::invalid_argument, name(c), fault);
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

GemmHostCost measure_gemm_host_cost(Gpu& gpu, RandomData& random, const std::string& cuda_root,
                                    const MeasureOptions& options) {
  BareKernel sm90(gpu, sizeof(Sm90GemmParams));
  BareKernel mma(gpu, sizeof(GemmMmaParams));
  std::vector<std::function<void()>> calls{[&] { sm90.launch(false); }, [&] { sm90.launch(true); },
                                           [&] { mma.launch(false); }, [&] { mma.launch(true); }};
  const std::size_t bare_sm90 = 0;
  const std::size_t bare_mma = 2;
  const auto add = [&](std::function<void()> call) {
    calls.push_back(std::move(call));
    return calls.size() - 1;
  };
  struct Row {
    GemmCase gemm_case;
    std::size_t call;
    std::size_t matmul;
  };
  std::vector<std::unique_ptr<Product>> products;
  std::vector<Row> rows;
  std::size_t matmul = 0;
  for (const GemmCase& c : host_cost_cases()) {
    if (rows.empty() || rows.back().gemm_case.mode != c.mode) {
      products.push_back(std::make_unique<Product>(gpu, random, cuda_root, c));
      matmul = add([product = products.back().get()] { product->matmul.call(); });
      check(gpu, *products.back(), c, calls.back());
    }
    const Product& product = *products.back();
    const std::size_t call =
        add([&gpu, &product, spec = c.spec] { gpu.backend().gemm(spec, product.tensors, gpu.stream()); });
    check(gpu, product, c, calls.back());
    rows.push_back({.gemm_case = c, .call = call, .matmul = matmul});
  }
  const Tensor codes = products.front()->tensors.a;
  const std::size_t map = add([&] { encode_tensor_map(gpu, codes); });

  const std::vector<double> ns = host_ns(gpu, calls, options.rounds);
  GemmHostCost cost{.tensor_map_ns = ns[map]};
  for (const Row& row : rows) {
    HostCost made{.spec = print(KernelSpec(row.gemm_case.spec)),
                  .launches = 1,
                  .limit_ns = kAddedNsLimit,
                  .call_ns = ns[row.call]};
    const GemmKernel kernel = kernel_of(row.gemm_case);
    if (kernel == GemmKernel::cublaslt) {
      made.bare = "cublasLtMatmul";
      made.bare_ns = ns[row.matmul];
    } else {
      const std::size_t bare = kernel == GemmKernel::sm90 ? bare_sm90 : bare_mma;
      made.bare = fmt::format("empty kernel, {} bytes",
                              kernel == GemmKernel::sm90 ? sizeof(Sm90GemmParams) : sizeof(GemmMmaParams));
      made.bare_ns = ns[bare];
      made.bare_pdl_ns = ns[bare + 1];
    }
    cost.calls.push_back(made);
  }
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
