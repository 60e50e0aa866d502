#include "ingot/runtime/dequant/dequant_plans.h"
#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <limits>
#include <utility>
#include <variant>
#include "ingot/codegen/kernel_spec.h"
#include "ingot/codegen/matmul.h"
#include "ingot/runtime/jit/recorder.h"
#include "ingot/runtime/tuning/matmul_choices.h"
#include "ingot/runtime/util/error.h"

namespace ingot {

KernelOrder<DequantMatmulSpec> DequantPlans::find(const DequantMatmulSpec& spec, const MatmulSize& size) {
  const std::size_t hash = hash_with(hash_value(spec), size);
  const auto matches = [&](const Entry& entry) { return entry.size == size && entry.spec == spec; };
  if (const Entry* const entry = table_.find(hash, matches)) return KernelOrder<DequantMatmulSpec>(entry->order);
  Entry made = make(hash, spec, size);
  if (const Entry* const kept = table_.insert(made, matches, most_)) return KernelOrder<DequantMatmulSpec>(kept->order);
  return KernelOrder<DequantMatmulSpec>(std::move(made.order));
}

DequantPlans::Entry DequantPlans::make(std::size_t hash, const DequantMatmulSpec& spec, const MatmulSize& size) const {
  if (services_.recorder != nullptr) services_.recorder->note(spec, size);
  Entry entry{.hash = hash, .spec = spec, .size = size, .order = {}};
  if (services_.choices != nullptr && is_tuned(spec) && !names_kernel(spec)) {
    if (const MatmulSpec* const chosen = services_.choices->find({.spec = spec, .size = size})) {
      const auto* const named = std::get_if<DequantMatmulSpec>(chosen);
      if (named != nullptr && named->tiling) entry.order.push_back(*named);
    }
  }
  for (const DequantMatmulSpec& each : dequant_order(spec, size, device_)) entry.order.push_back(each);
  return entry;
}

void refuse_dequant(const DequantMatmulSpec& asked, const char* reason) {
  if (reason == nullptr) {
    throw Error(ErrorCode::invalid_argument, print(asked), "no kernel on this GPU supports the spec; the CPU does");
  }
  throw Error(ErrorCode::invalid_argument, print(asked),
              fmt::format("{}; leave kernel out to have the library choose one", reason));
}

namespace {

constexpr std::int64_t kMost = std::numeric_limits<std::int32_t>::max() - 1024;

// The most tiles along M. Of each expert, one may not be full.
std::int64_t most_tiles_m(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors) {
  const std::int64_t m = dequant_size(tensors).m;
  return m / spec.tiling->tokens + (spec.experts ? std::min(tensors.ends.experts, m) : 1);
}

}  // namespace

// Sizes, tiles and the copy engine's coordinates have 32 bits.
const char* dequant_sm90_refusal(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Target device) {
  const MatmulSize size = dequant_size(tensors);
  if (device != target_for(9, 0)) return "kernel sm90 runs on sm_90a only";
  if (size.k == 0) return "kernel sm90 needs a K of at least 1";
  const Tensor& x = tensors.x;
  // The stride of a single row does not matter; but for batch-invariant matmuls the kernel must not depend on M.
  const bool strides_matter = size.m > 1 || spec.batch_invariant;
  if (reinterpret_cast<std::uintptr_t>(x.data) % 16 != 0 || (strides_matter && x.row_stride % 8 != 0)) {
    return "kernel sm90 needs rows of x at multiples of 16 bytes";
  }
  const std::int64_t tiles_m = most_tiles_m(spec, tensors);
  const std::int64_t tiles_n = size.n / spec.tiling->rows + 1;
  if (size.m > kMost || size.n > kMost || size.k > kMost || tiles_m > kMost / (8 * tiles_n)) {
    return "kernel sm90 takes sizes below 2^31 and as many tiles";
  }
  return nullptr;
}

// Tiles and stages are counted in 32 bits; a grid has fewer than 2^31 blocks.
const char* dequant_mma_refusal(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, Target device) {
  const MatmulSize size = dequant_size(tensors);
  if (device.major < 8) return "kernel mma runs on sm_80 and later";
  const std::int64_t tiles_m = most_tiles_m(spec, tensors);
  const std::int64_t tiles_n = size.n / spec.tiling->rows + 1;
  const bool counts_rows = spec.experts && size.m > kMost;  // in their table
  if (counts_rows || size.k > kMost || size.n > kMost || tiles_m > kMost ||
      tiles_m > kMost / spec.tiling->split / tiles_n) {
    return "kernel mma takes fewer than 2^31 tiles, rows of the weight, and K";
  }
  return nullptr;
}

}  // namespace ingot
