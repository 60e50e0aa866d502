#include "show_choice.h"

#include <fmt/format.h>

#include <algorithm>
#include <variant>
#include <vector>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/gemm/gemm_candidates.h"
#include "ingot/codegen/matmul.h"
#include "ingot/runtime/error.h"

namespace ingot::tools {
namespace {

constexpr MatmulSize kTrainingSize{.m = 8192, .n = 4096, .k = 4096};
constexpr MatmulSize kDecodingSize{.m = 16, .n = 4096, .k = 4096};

bool is_valid(const GemmSpec& spec) {
  try {
    validate(spec);
    return true;
  } catch (const Error&) {
    return false;
  }
}

// "this is what M = 16, N = 4096, K = 4096 takes on a GPU with 132 multiprocessors; other sizes take other tilings"
std::string note_of(const MatmulSize& size, const MatmulDevice& device, bool names_kernel) {
  return fmt::format(
      "this is what M = {}, N = {}, K = {} takes on a GPU with {} multiprocessors; other sizes take "
      "other {}",
      size.m, size.n, size.k, device.multiprocessors, names_kernel ? "tilings" : "kernels and tilings");
}

// Hopper has kernels that the plain target sm_90 cannot be given.
std::string hopper_note(const MatmulDevice& device) {
  return device.target == Target{9, 0, false} ? "; kernel sm90 is for target sm_90a, which a Hopper GPU is" : "";
}

constexpr const char* kTuningFirst = ", and on a GPU what tuning found comes first";

ShowChoice choose(const GemmSpec& asked, const MatmulDevice& device) {
  const bool is_automatic = asked.kernel == GemmKernel::automatic;
  const bool has_tilings = asked.kernel == GemmKernel::sm90 || asked.kernel == GemmKernel::mma;
  if (!is_automatic && (!has_tilings || asked.tiling)) return {.spec = asked};
  std::vector<GemmSpec> order = gemm_order({.spec = asked, .size = kTrainingSize}, device);
  const bool cublaslt_first = order.front().kernel == GemmKernel::cublaslt;
  std::erase_if(order, [](const GemmSpec& spec) { return spec.kernel == GemmKernel::cublaslt || !is_valid(spec); });
  if (order.empty()) return {.spec = asked};
  std::string note = note_of(kTrainingSize, device, !is_automatic);
  if (is_automatic && is_tuned(asked)) note += kTuningFirst;
  if (is_automatic) note += hopper_note(device);
  if (cublaslt_first) note += "; cuBLASLt is tried before it, but its kernels have no source to show";
  return {.spec = order.front(), .size = kTrainingSize, .note = note};
}

ShowChoice choose(const DequantMatmulSpec& asked, const MatmulDevice& device) {
  if (asked.tiling) return {.spec = asked};
  const std::vector<DequantMatmulSpec> order = dequant_order(asked, kDecodingSize, device);
  if (order.empty()) return {.spec = asked};
  const bool is_automatic = asked.kernel == DequantKernel::automatic;
  std::string note = note_of(kDecodingSize, device, !is_automatic);
  if (is_automatic && is_tuned(asked)) note += kTuningFirst;
  if (is_automatic) note += hopper_note(device);
  return {.spec = order.front(), .size = kDecodingSize, .note = note};
}

}  // namespace

ShowChoice choose_shown(const KernelSpec& asked, const MatmulDevice& device) {
  if (const auto* const gemm = std::get_if<GemmSpec>(&asked)) return choose(*gemm, device);
  if (const auto* const dequant = std::get_if<DequantMatmulSpec>(&asked)) return choose(*dequant, device);
  return {.spec = asked};
}

}  // namespace ingot::tools
