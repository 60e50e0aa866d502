// Checks which GEMMs are valid.
#include <fmt/format.h>
#include <algorithm>
#include <utility>
#include "ingot/codegen/gemm/gemm_sm90.h"
#include "ingot/codegen/gemm/gemm_spec.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/runtime/util/count_of.h"

namespace ingot {
namespace {

// Why no GEMM has this tiling, for messages; empty if some have it.
std::string tiling_fault(const GemmTiling& t) {
  const bool shares_columns = !t.pingpong && t.m == 64;
  if (t.m < 64 || t.m > 256 || t.m % 64 != 0) {
    return t.pingpong ? fmt::format("a tile of {} rows, but pingpong takes a multiple of 64 up to 256", t.m)
                      : fmt::format("a tile of {} rows, but cooperative takes 64, 128, 192 or 256", t.m);
  }
  if (t.n != 160 && (t.n < 64 || t.n > 256 || t.n % 64 != 0)) {
    return fmt::format("a tile of {} columns, but it must be 64, 128, 160, 192 or 256", t.n);
  }
  if (shares_columns && t.n % 128 != 0) {
    return fmt::format("a tile of 64 rows, whose {} columns cooperative shares out: it takes 128 or 256", t.n);
  }
  if (t.cluster_m < 1 || t.cluster_n < 1 || t.cluster_m > 2 || t.cluster_n > 2 || t.cluster_m + t.cluster_n > 3) {
    return fmt::format("a cluster of {}x{}, but it must be 1x1, 2x1 or 1x2", t.cluster_m, t.cluster_n);
  }
  if (t.stream_k && (t.pingpong || t.cluster_m + t.cluster_n > 2)) {
    return "stream-K, but that takes cooperative tiles and a cluster of 1x1";
  }
  if (t.stream_k && t.n % 64 != 0) {
    return fmt::format("a tile of {} columns, but stream-K takes a multiple of 64", t.n);
  }
  if (t.stages < 2 || t.stages > 16) return count_of(t.stages, "stage") + ", but there must be 2 to 16";
  if (const u32 bytes = sm90_shared_bytes({.tiling = sm90_tiling(t)}); bytes > kSm90SharedLimit) {
    return fmt::format("{} bytes of shared memory, but a block has {}: fewer stages or a smaller tile", bytes,
                       kSm90SharedLimit);
  }
  return {};
}

// "1x128,128x128 or 1x128,1x128".
std::string grouped_scales() {
  std::string all;
  for (const ScaleGranularity scale_b : kGroupedScalesOfB) {
    all += fmt::format("{}{},{}", all.empty() ? "" : " or ", print(kRowGroups), print(scale_b));
  }
  return all;
}

void require_scale(const GemmSpec& spec, const char* field, ScaleGranularity scale) {
  if (scale != kTensorwise && scale != kRowwise) {
    refuse(spec,
           fmt::format("{} is {}, but must be tensor or row, or {} for both", field, print(scale), grouped_scales()));
  }
}

void require_layout(const GemmSpec& spec, const char* field, Layout layout) {
  if (layout != Layout::k_major && layout != Layout::mn_major) {
    refuse(spec, fmt::format("{} is {}, which is no layout; it must be k_major or mn_major", field,
                             static_cast<unsigned>(layout)));
  }
}

void validate_fp8_gemm(const GemmSpec& spec) {
  require_dtype(spec, "a", spec.a, kFp8Dtypes);
  require_dtype(spec, "b", spec.b, kFp8Dtypes);
  if (!among(kHighPrecisionDtypes, spec.out) && !among(kFp8Dtypes, spec.out)) {
    refuse(spec, fmt::format("out is {}, but must be one of {}, {}", name(spec.out), list(kHighPrecisionDtypes),
                             list(kFp8Dtypes)));
  }
  if (!has_group_scale_inv(spec)) {
    require_scale(spec, "scale_a", spec.scale_a);
    require_scale(spec, "scale_b", spec.scale_b);
    return;
  }
  if (spec.scale_a != kRowGroups || !among(kGroupedScalesOfB, spec.scale_b)) {
    refuse(spec, fmt::format("scale is {},{}, but scale_inv of groups of K are {}", print(spec.scale_a),
                             print(spec.scale_b), grouped_scales()));
  }
  if (spec.fast_accumulation) {
    refuse(spec, "fast_accumulation is set, but each 128 of K has its own scale_inv here and is summed separately");
  }
}

void validate_high_precision_gemm(const GemmSpec& spec) {
  require_dtype(spec, "a", spec.a, kHighPrecisionDtypes);
  require_dtype(spec, "b", spec.b, kHighPrecisionDtypes);
  if (spec.a != spec.b) {
    refuse(spec, fmt::format("b is {}, but must be {} as a is: high-precision operands are of one dtype", name(spec.b),
                             name(spec.a)));
  }
  if (spec.out != spec.a && spec.out != Dtype::f32) {
    refuse(spec, fmt::format("out is {}, but must be {}{}", name(spec.out), name(spec.a),
                             spec.a == Dtype::f32 ? ", as the operands are" : " (as the operands are) or f32"));
  }
  for (const auto& [field, scale] : {std::pair{"scale_a", spec.scale_a}, std::pair{"scale_b", spec.scale_b}}) {
    if (scale != kTensorwise) {
      refuse(spec, fmt::format("{} is {}, but must be tensor: a high-precision operand has no scale_inv", field,
                               print(scale)));
    }
  }
  if (spec.fast_accumulation) {
    refuse(spec, "fast_accumulation is set, but is for FP8 operands only: high-precision ones always sum in f32");
  }
}

// One operand is bf16 or f16, the other FP8.
void validate_mixed_gemm(const GemmSpec& spec) {
  const bool a_is_fp8 = is_fp8(spec.a);
  const Dtype high = a_is_fp8 ? spec.b : spec.a;
  if (high == Dtype::f32) {
    refuse(spec, fmt::format("{} is f32 and {} is {}, but with an FP8 operand the other must be FP8, bf16 or f16",
                             a_is_fp8 ? "b" : "a", a_is_fp8 ? "a" : "b", name(a_is_fp8 ? spec.a : spec.b)));
  }
  if (spec.out != high && spec.out != Dtype::f32) {
    refuse(spec, fmt::format("out is {}, but must be {} (as the high-precision operand is) or f32", name(spec.out),
                             name(high)));
  }
  if ((a_is_fp8 ? spec.scale_b : spec.scale_a) != kTensorwise) {
    refuse(spec, fmt::format("{} is {}, but must be tensor: a high-precision operand has no scale_inv",
                             a_is_fp8 ? "scale_b" : "scale_a", print(a_is_fp8 ? spec.scale_b : spec.scale_a)));
  }
  require_scale(spec, a_is_fp8 ? "scale_a" : "scale_b", a_is_fp8 ? spec.scale_a : spec.scale_b);
  if (spec.fast_accumulation) {
    refuse(spec, "fast_accumulation is set, but is for two FP8 operands only: others always sum in f32");
  }
}

void validate_mma(const GemmSpec& spec) {
  if (spec.a == Dtype::f32) {
    refuse(spec, "a is f32, but kernel mma multiplies FP8, bf16 and f16 only: leave kernel out");
  }
  if (spec.tiling && std::ranges::find(kMmaTilings, *spec.tiling) == kMmaTilings.end()) {
    refuse(spec, fmt::format("tiling is {}, but kernel mma has 128x128 and 64x64 only", print(*spec.tiling)));
  }
}

void validate_tiling_of_groups(const GemmSpec& spec, const GemmSm90Config& config) {
  if (sm90_part_columns(config.tiling, true) > 128) {
    refuse(spec, fmt::format("tiling has a tile of {} columns, but with scale_inv of groups it must be 64 or 128, or "
                             "128x256 cooperative without stream-K",
                             spec.tiling->n));
  }
  const u32 bytes = sm90_shared_bytes(config);
  if (bytes > kSm90SharedLimit) {
    refuse(spec, fmt::format("tiling has {} bytes of shared memory with its scale_inv of groups, but a block has {}: "
                             "fewer stages or a smaller tile",
                             bytes, kSm90SharedLimit));
  }
  // Two sets of accumulators, the scale_inv of rows of b and the coordinate along K need more registers than a thread
  // has.
  if (spec.tiling->stream_k && spec.tiling->m > 128) {
    refuse(spec,
           fmt::format("tiling has a tile of {} rows in stream-K, but with scale_inv of groups it must be 64 or 128",
                       spec.tiling->m));
  }
}

void validate_sm90(const GemmSpec& spec) {
  if (!sm90_multiplies(spec)) {
    refuse(spec, fmt::format("a is {} and b is {}, but kernel sm90 multiplies e4m3fn and e5m2, or two operands of bf16 "
                             "or of f16, only: leave kernel out",
                             name(spec.a), name(spec.b)));
  }
  if (!is_fp8(spec.a) && (spec.staged_a || spec.staged_b)) {
    refuse(spec,
           fmt::format("staged is set, but kernel sm90 reads {} as it is stored: leave staged out", name(spec.a)));
  }
  if (!spec.tiling) return;
  const std::string fault = tiling_fault(*spec.tiling);
  if (!fault.empty()) refuse(spec, fmt::format("tiling has {}", fault));
  const GemmSm90Config config = sm90_scale_inv_config(spec);
  if (sm90_consumers(config.tiling) == 3 && !sm90_has_three(config)) {
    refuse(
        spec,
        "tiling has a cooperative tile of 192 rows, but that takes scale_inv of groups, 64 or 128 columns, a cluster "
        "of 1x1 and no stream-K");
  }
  if (spec.tiling->n % 64 != 0 && (size_of(spec.out) != 2 || spec.layout_b == Layout::mn_major)) {
    refuse(spec, fmt::format("tiling has a tile of {} columns, but {} takes a multiple of 64", spec.tiling->n,
                             size_of(spec.out) != 2 ? "an output of FP8 or f32" : "b in rows across k"));
  }
  if (has_group_scale_inv(spec)) validate_tiling_of_groups(spec, config);
}

void validate_kernel(const GemmSpec& spec) {
  if (spec.kernel > GemmKernel::simt) {
    refuse(spec, fmt::format("kernel is {}, which is not valid; it must be automatic, cublaslt, sm90, mma or simt",
                             static_cast<unsigned>(spec.kernel)));
  }
  if (spec.tiling && spec.kernel != GemmKernel::sm90 && spec.kernel != GemmKernel::mma) {
    refuse(spec, fmt::format("tiling is {}, but kernel is {}: sm90 and mma alone have one", print(*spec.tiling),
                             name(spec.kernel)));
  }
  if (spec.algorithm != 0 && spec.kernel != GemmKernel::cublaslt) {
    refuse(spec, fmt::format("algorithm is {}, but kernel is {}: cublaslt alone has algorithms", spec.algorithm,
                             name(spec.kernel)));
  }
  if (spec.algorithm < 0 || spec.algorithm >= kCublasltAlgorithms) {
    refuse(spec, fmt::format("algorithm is {}, but must be 0 to {}", spec.algorithm, kCublasltAlgorithms - 1));
  }
  if ((spec.staged_a || spec.staged_b) && spec.kernel != GemmKernel::sm90) {
    refuse(spec, fmt::format("staged is set, but kernel is {}: sm90 alone has staged operands", name(spec.kernel)));
  }
  if (spec.kernel == GemmKernel::mma) return validate_mma(spec);
  if (spec.kernel == GemmKernel::sm90) return validate_sm90(spec);
}

void validate_epilogue(const GemmSpec& spec) {
  const GemmEpilogue& epilogue = spec.epilogue;
  if (epilogue.c) require_dtype(spec, "c", *epilogue.c, kHighPrecisionDtypes);
  if (epilogue.preactivation && !epilogue.pointwise) {
    refuse(spec, "preactivation is set, but there is no pointwise expression: the output is what it would be");
  }
  for (const PointwiseInput& input : epilogue.pointwise.inputs()) {
    if (input.kind != PointwiseInput::Kind::column_f32) continue;
    refuse(spec, fmt::format("epilogue reads {0}[col:f32], but a GEMM's vectors along the columns are of {1}: write "
                             "{0}[col], or make it a factor of b",
                             input.name, name(epilogue_dtype(spec))));
  }
}

}  // namespace

void validate_but_sums(const GemmSpec& spec) {
  require_layout(spec, "layout_a", spec.layout_a);
  require_layout(spec, "layout_b", spec.layout_b);
  const bool a_high = among(kHighPrecisionDtypes, spec.a);
  const bool b_high = among(kHighPrecisionDtypes, spec.b);
  if (a_high != b_high && among(kFp8Dtypes, spec.a) != among(kFp8Dtypes, spec.b)) {
    validate_mixed_gemm(spec);
  } else if (a_high) {
    validate_high_precision_gemm(spec);
  } else {
    validate_fp8_gemm(spec);
  }
  validate_epilogue(spec);
  validate_kernel(spec);
}

std::string sums_fault(const GemmSpec& spec) {
  if (spec.kernel != GemmKernel::sm90 || !spec.tiling) return {};
  // A thread's 232 registers must hold the sums of its waves and, where tensor cores do not sum all of K, a part's,
  // which are added to them.
  constexpr u32 kMostSums = 192;
  const Sm90Tiling tiling = sm90_tiling(*spec.tiling);
  const bool groups = has_group_scale_inv(spec);
  const u32 alone = sm90_sums(tiling, 0);
  const u32 sums = sums_in_tensor_cores(spec) ? alone : sm90_sums(tiling, sm90_part_columns(tiling, groups));
  if (sums <= kMostSums) return {};
  const char* const fast = alone <= kMostSums && !groups ? "set fast, which needs fewer, or " : "";
  return fmt::format("{} sums in each thread, but its registers hold {}: {}take a smaller tile", sums, kMostSums, fast);
}

void validate_spec(const GemmSpec& spec) {
  validate_but_sums(spec);
  if (const std::string fault = sums_fault(spec); !fault.empty()) refuse(spec, fmt::format("tiling has {}", fault));
}

}  // namespace ingot
