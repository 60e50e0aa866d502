#include "ingot/nn/dist/gathered_codes.h"

namespace ingot {

bool gathers_codes(const LinearCast& cast, bool reads_values) {
  const CastSpec& spec = cast.spec;
  const bool serve_all = cast.any && !reads_values && !spec.transposed_scale;
  const bool by_row = spec.scale == kRowwise && spec.codes;
  return serve_all && (spec.scale == kTensorwise || by_row);
}

bool gathers_input_codes(const LinearPlan& plan, LinearPass pass) {
  const bool reads_again = pass == LinearPass::training && plan.trains_weight && plan.grad_weight_reads_input();
  return gathers_codes(plan.input_of(pass), reads_again || plan.output_reads_weight());
}

bool gathers_grad_output_codes(const LinearPlan& plan, const LinearGradients& wants) {
  const LinearGradOutputCast& order = plan.grad_output_of(wants);
  const bool reads_values = order.folds || (wants.input && !order.codes) || (wants.weight && !order.transposed);
  return gathers_codes(order.cast, reads_values || wants.bias);
}

}  // namespace ingot
