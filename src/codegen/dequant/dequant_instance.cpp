// The words name what the kernel depends on: a bias, batch_invariant and the split of K are its parameters. A spec
// without a kernel becomes kernel mma, which takes every call, and one without a tiling gets the first; calls and
// `ingot show` first complete the spec with dequant_order().
#include <fmt/format.h>

#include <string>

#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/dequant/dequant_sm90.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/dequant/dequant_tiling.h"
#include "ingot/codegen/pointwise/pointwise_render.h"
#include "ingot/codegen/types/template_text.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

// The text of a DequantFactors (templates/dequant/dequant_factors.cuh).
FieldText factors_field(const DequantMatmulSpec& spec, const DequantFactors& factors) {
  return field("factors", aggregate_text({field("scale", spec.scale), field("e8m0", factors.e8m0),
                                          field("into_codes", factors.into_codes)}));
}

// The text of a CodeLayout (templates/dequant/dequant_layout.cuh).
std::string text_of(WeightLayout layout) { return fmt::format("ingot::CodeLayout::{}", name(layout)); }

std::string epilogue(const DequantMatmulSpec& spec) {
  if (!spec.pointwise) return {};
  return fmt::format(", ingot::Epilogue<ingot::NoMatrix, ingot::{}, {}>", kFunctorName, type_text(spec.x));
}

TemplateInstance mma(DequantMatmulSpec spec) {
  spec.tiling->split = 1;
  const DequantTiling& t = *spec.tiling;
  const std::string tiling =
      aggregate_text({field("tokens", t.tokens), field("rows", t.rows), field("k_warps", t.k_warps)});
  const std::string config = aggregate_text(
      "DequantMmaConfig",
      {field("layout", text_of(spec.layout)), factors_field(spec, dequant_mma_factors(spec)), field("tiling", tiling)});
  return {.header = "dequant/dequant_mma.cuh",
          .kernel = fmt::format("dequant_mma<{}, {}, {}, {}{}>", type_text(spec.weight), type_text(spec.x),
                                type_text(spec.out), config, epilogue(spec)),
          .words = print_spec(spec),
          .functor = {}};
}

TemplateInstance sm90(const DequantMatmulSpec& spec) {
  const DequantSm90Tiling t = dequant_sm90_tiling(*spec.tiling);
  const std::string tiling = aggregate_text(
      {field("tokens", t.tokens), field("groups", t.groups), field("waves", t.waves), field("depth", t.depth),
       field("stages", t.stages), field("split", t.split), field("multicast", t.multicast), field("wgmma", t.wgmma),
       field("blocks_per_sm", t.blocks_per_sm), field("k_warps", t.k_warps), field("stream_k", t.stream_k)});
  const std::string config =
      aggregate_text("DequantSm90Config", {field("layout", text_of(spec.layout)),
                                           factors_field(spec, dequant_sm90_factors(spec)), field("tiling", tiling)});
  return {.header = "dequant/dequant_sm90.cuh",
          .kernel = fmt::format("dequant_sm90<{}, {}, {}, {}{}>", type_text(spec.weight), type_text(spec.x),
                                type_text(spec.out), config, epilogue(spec)),
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
