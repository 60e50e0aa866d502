// The words name what the kernel depends on: a bias, batch_invariant and the split of K are its parameters. A spec
// without a kernel becomes kernel mma, which takes every call, and one without a tiling gets the first; calls and
// `ingot show` first complete the spec with dequant_order().
#include <fmt/format.h>

#include <array>
#include <cstddef>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/dequant/dequant_sm90.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/dequant/dequant_tiling.h"
#include "ingot/codegen/pointwise/pointwise_render.h"
#include "ingot/codegen/types/template_instance.h"
#include "ingot/codegen/types/template_text.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

// Of templates/dequant/dequant_factors.cuh, in its order.
std::string text_of(DequantFactors factors) {
  constexpr std::array kNames{"tensor", "row", "groups128", "groups64", "groups32", "blocks128", "mx32", "mx32_codes"};
  return fmt::format("ingot::DequantFactors::{}", kNames[static_cast<std::size_t>(factors)]);
}

// Of templates/dequant/dequant_layout.cuh.
std::string text_of(WeightLayout layout) { return fmt::format("ingot::CodeLayout::{}", name(layout)); }

std::string epilogue(const DequantMatmulSpec& spec) {
  if (!spec.pointwise) return {};
  return fmt::format(", ingot::Epilogue<ingot::NoMatrix, ingot::{}, {}, false, false>", kFunctorName,
                     type_text(spec.x));
}

TemplateInstance mma(DequantMatmulSpec spec) {
  spec.tiling->split = 1;
  const DequantTiling& t = *spec.tiling;
  return {.header = "dequant/dequant_mma.cuh",
          .kernel = fmt::format("dequant_mma<{}, {}, {}, {}, {}, ingot::DequantMmaTiling{{{}, {}, {}}}{}>",
                                type_text(spec.weight), text_of(spec.layout), type_text(spec.x), type_text(spec.out),
                                text_of(dequant_mma_factors(spec)), t.tokens, t.rows, t.k_warps, epilogue(spec)),
          .words = print_spec(spec),
          .functor = {}};
}

TemplateInstance sm90(const DequantMatmulSpec& spec) {
  const DequantSm90Tiling t = dequant_sm90_tiling(*spec.tiling);
  return {.header = "dequant/dequant_sm90.cuh",
          .kernel =
              fmt::format("dequant_sm90<{}, {}, {}, {}, {}, ingot::DequantSm90Tiling{{{}, {}, {}, {}, {}, {}, {}, {}, "
                          "{}, {}{}}}{}>",
                          type_text(spec.weight), text_of(spec.layout), type_text(spec.x), type_text(spec.out),
                          text_of(dequant_sm90_factors(spec)), t.tokens, t.groups, t.waves, t.depth, t.stages, t.split,
                          t.multicast, t.wgmma, t.blocks_per_sm, t.k_warps, t.stream_k ? ", true" : "", epilogue(spec)),
          .words = print_spec(spec),
          .functor = {}};
}

}  // namespace

ExtraPasses extra_passes(const PackWeightSpec&) { return {}; }

TemplateInstance template_instance(const PackWeightSpec& given, Pass) {
  PackWeightSpec spec = given;
  spec.layout = layout_of_bits(spec.weight, spec.layout);
  return {.header = "dequant/pack_weight.cuh",
          .kernel = fmt::format("{}<{}, {}>", spec.unpack ? "unpack_weight" : "pack_weight", type_text(spec.weight),
                                text_of(spec.layout)),
          .words = print_spec(spec),
          .functor = {}};
}

ExtraPasses extra_passes(const DequantMatmulSpec&) { return {}; }

TemplateInstance template_instance(const DequantMatmulSpec& given, Pass) {
  DequantMatmulSpec spec = given;
  spec.bias = false;
  spec.batch_invariant = false;
  spec.layout = layout_of_bits(spec.weight, spec.layout);
  if (spec.kernel == DequantKernel::automatic) spec.kernel = DequantKernel::mma;
  if (!spec.tiling) {
    const MatmulDevice device{.target = target_for(9, 0), .multiprocessors = 132};
    const std::vector<DequantTiling> all = dequant_tilings(spec, {.m = 16, .n = 4096, .k = 4096}, device);
    if (all.empty())
      throw Error(ErrorCode::invalid_spec, print_spec(given), "the kernel has no tiling for such factors");
    spec.tiling = all.front();
  }
  TemplateInstance made = spec.kernel == DequantKernel::sm90 ? sm90(spec) : mma(spec);
  if (spec.pointwise) made.functor = render(spec.pointwise, kFunctorName, PointwisePrecision::fast);
  return made;
}

}  // namespace ingot
