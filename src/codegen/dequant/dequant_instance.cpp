// Which weights can be packed and which products with them are valid; and the instantiations for those that are.
//
// The words name what the kernel depends on: a bias, batch_invariant and the split of K are its parameters. A spec
// without a kernel becomes kernel mma, which takes every call, and one without a tiling gets the first; calls and
// `ingot show` first complete the spec with dequant_order().
#include <fmt/format.h>
#include <algorithm>
#include <string>
#include "ingot/codegen/dequant/dequant_candidates.h"
#include "ingot/codegen/dequant/dequant_sm90.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/pointwise/pointwise_lowering.h"
#include "ingot/codegen/types/spec_reader.h"
#include "ingot/codegen/types/template_text.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

bool is_layout(WeightLayout layout) { return layout <= WeightLayout::packed_f16; }

void require_scale_inv(const DequantMatmulSpec& spec) {
  require_scale(spec, "scale", spec.scale, kDequantGranularities);
  if (spec.scale_inv != Dtype::f32 && spec.scale_inv != Dtype::e8m0fnu) {
    refuse(spec, fmt::format("factors is {}, but must be f32 or e8m0fnu", name(spec.scale_inv)));
  }
  if (spec.scale_inv == Dtype::e8m0fnu && spec.scale != kRowGroups32) {
    refuse(spec, fmt::format("factors is e8m0fnu and scale is {}, but MX's factors are of groups of 32: write "
                             "scale=1x32, or factors of f32",
                             print(spec.scale)));
  }
}

void require_kernel(const DequantMatmulSpec& spec) {
  if (spec.kernel > DequantKernel::mma) {
    refuse(spec, fmt::format("kernel is {}, which is not valid; it must be automatic, sm90 or mma",
                             static_cast<unsigned>(spec.kernel)));
  }
  if (spec.kernel == DequantKernel::automatic) {
    if (!spec.tiling) return;
    refuse(spec, fmt::format("tiling is {}, but kernel is automatic: name the kernel that it is of",
                             print(spec.kernel, *spec.tiling)));
  }
  if (spec.kernel == DequantKernel::sm90 && spec.layout == WeightLayout::row_major) {
    refuse(spec, "layout is row_major, but kernel sm90 reads packed weights: pack the weight, or leave kernel out");
  }
  if (!spec.tiling) return;
  if (const std::string fault = dequant_tiling_fault(spec, *spec.tiling); !fault.empty()) {
    refuse(spec, fmt::format("tiling has {}", fault));
  }
  if (spec.tiling->stream_k && spec.batch_invariant) {
    refuse(
        spec,
        "tiling has stream-K, whose cuts depend on the number of tokens, but batch_invariant is asked for: leave one "
        "of the two out");
  }
}

void require_of_experts(const DequantMatmulSpec& spec) {
  if (spec.pointwise) refuse(spec, "it has an epilogue, but matmuls of experts have none");
  if (spec.batch_invariant) {
    refuse(spec,
           "batch_invariant is asked for, but the tiling of matmuls of experts follows from the number of rows: "
           "leave one of the two out");
  }
}

}  // namespace

void validate_spec(const PackWeightSpec& spec) {
  require_dtype(spec, "weight", spec.weight, kWeightDtypes);
  if (!is_layout(spec.layout) || !is_packed(spec.layout)) {
    refuse(spec, "layout is not a packed one; it must be packed or packed_f16");
  }
}

void validate_spec(const DequantMatmulSpec& spec) {
  require_dtype(spec, "x", spec.x, kDequantActivations);
  require_dtype(spec, "weight", spec.weight, kWeightDtypes);
  if (spec.out != spec.x && spec.out != Dtype::f32) {
    refuse(spec, fmt::format("out is {}, but must be {}, as x is, or f32", name(spec.out), name(spec.x)));
  }
  require_scale_inv(spec);
  if (!is_layout(spec.layout)) {
    refuse(spec, fmt::format("layout is {}, which is not valid; it must be {}", static_cast<unsigned>(spec.layout),
                             kWeightLayoutNames));
  }
  for (const PointwiseInput& input : spec.pointwise.inputs()) {
    if (input.kind != PointwiseInput::Kind::column_f32) continue;
    refuse(spec,
           fmt::format("epilogue reads {0}[col:f32], but vectors along the columns are of {1} here: write {0}[col]",
                       input.name, name(spec.x)));
  }
  if (spec.experts) require_of_experts(spec);
  require_kernel(spec);
}

namespace {

// The text of a DequantFactors (templates/dequant/dequant_factors.cuh).
FieldText scale_inv_field(const DequantMatmulSpec& spec, const DequantFactors& scale_inv) {
  return field("factors", aggregate_text({field("scale", spec.scale), field("e8m0", scale_inv.e8m0),
                                          field("into_codes", scale_inv.into_codes)}));
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
      "DequantMmaConfig", {field("layout", text_of(spec.layout)), scale_inv_field(spec, dequant_mma_scale_inv(spec)),
                           field("tiling", tiling), field("experts", spec.experts)});
  return {.header = "dequant/dequant_mma.cuh",
          .kernel = fmt::format("dequant_mma<{}, {}, {}, {}{}>", type_text(spec.weight), type_text(spec.x),
                                type_text(spec.out), config, epilogue(spec)),
          .words = print_spec(spec),
          .functor = {}};
}

TemplateInstance sm90(const DequantMatmulSpec& spec) {
  const DequantSm90Tiling t = dequant_sm90_tiling(spec, *spec.tiling);
  const std::string tiling =
      aggregate_text({field("tokens", t.tokens), field("groups", t.groups), field("waves", t.waves),
                      field("depth", t.depth), field("stages", t.stages), field("split", t.split),
                      field("multicast", t.multicast), field("wgmma", t.wgmma), field("blocks_per_sm", t.blocks_per_sm),
                      field("k_warps", t.k_warps), field("stream_k", t.stream_k), field("experts", t.experts)});
  const std::string config =
      aggregate_text("DequantSm90Config", {field("layout", text_of(spec.layout)),
                                           scale_inv_field(spec, dequant_sm90_factors(spec)), field("tiling", tiling)});
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
      throw Error(ErrorCode::invalid_spec, print_spec(given), "the kernel has no tiling for such scale_inv");
    spec.tiling = all.front();
  }
  TemplateInstance made = spec.kernel == DequantKernel::sm90 ? sm90(spec) : mma(spec);
  if (spec.pointwise) made.functor = render(spec.pointwise, kFunctorName, PointwisePrecision::fast);
  return made;
}

}  // namespace ingot
