// Which tensors of a linear layer may cross the wire as FP8 codes, one byte an element, where the ranks divide their
// rows: those of which one set of codes, with one scale or one for each row, serves everything that reads them. A
// second set would cost what the first one saves, so the others cross as values.
#pragma once

#include "ingot/nn/linear/linear_plan.h"

namespace ingot {

// reads_values: something reads the values, too.
bool gathers_codes(const LinearCast& cast, bool reads_values);
// The input of a forward of this plan, and of its backward.
bool gathers_input_codes(const LinearPlan& plan, LinearPass pass);
// grad_output, for these gradients; without that of a bias, which is the sum of values.
bool gathers_grad_output_codes(const LinearPlan& plan, const LinearGradients& wants);

}  // namespace ingot
