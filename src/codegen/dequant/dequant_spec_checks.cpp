// Which weights can be packed, and which products with them are valid.
#include <fmt/format.h>

#include <algorithm>

#include "ingot/codegen/dequant/dequant_sm90.h"
#include "ingot/codegen/dequant/dequant_spec.h"
#include "ingot/codegen/types/spec_checks.h"
#include "ingot/codegen/types/spec_words.h"

namespace ingot {
namespace {

bool is_layout(WeightLayout layout) { return layout <= WeightLayout::packed_f16; }

void require_factors(const DequantMatmulSpec& spec) {
  if (std::ranges::find(kDequantGranularities, spec.scale) == kDequantGranularities.end()) {
    refuse(spec, fmt::format("scale is {}, but must be {}", print(spec.scale), one_of(kDequantGranularities)));
  }
  if (spec.factors != Dtype::f32 && spec.factors != Dtype::e8m0fnu) {
    refuse(spec, fmt::format("factors is {}, but must be f32 or e8m0fnu", name(spec.factors)));
  }
  if (spec.factors == Dtype::e8m0fnu && spec.scale != kRowGroups32) {
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
  require_factors(spec);
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
  require_kernel(spec);
}

}  // namespace ingot
