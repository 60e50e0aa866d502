// Compares the outputs of a measured operation with the CPU reference, so that no figure is published without a right
// result. Every element must have the same bits. For fast math there are bounds instead: values may differ by 1e-4 of
// themselves or, where the expression cancels, by 1e-5 of the largest value; 16-bit results and codes by one step;
// scale_inv and maxima by one bf16 step; and sums, which collect such differences, by 1e-3 of the largest. With given
// scales at most one code in a thousand may differ (a scale made from a maximum that was rounded the other way moves
// more).
#pragma once

#include <string>

#include "ingot/runtime/context/backend.h"
#include "operation.h"

namespace ingot::bench {

// Runs the operation again on `reference` with the inputs that `placed` holds, and compares all outputs. Describes the
// first difference; empty if there is none. Waits for the stream.
std::string disagreement(const Placed& placed, Stream& stream, Backend& reference);

}  // namespace ingot::bench
