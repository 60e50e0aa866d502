// No figure without a right result: what the measured device left in its outputs, bit for bit against the CPU
// reference, every element. Of fast math a bound: values may differ by 1e-4 of themselves, or, where the expression
// cancels, by 1e-5 of the largest: 16-bit results and codes by one step, factors and maxima by one of bf16's, and sums,
// which collect such differences, by 1e-3 of the largest. With given scales at most one code in a thousand differs (a
// scale made from a maximum that was rounded the other way moves more).
#pragma once

#include <string>

#include "ingot/runtime/backend.h"
#include "operation.h"

namespace ingot::bench {

// Runs the operation again on `reference`, over the inputs that `placed` holds, and compares all outputs. The first
// difference in words; empty if there is none. Waits for the stream.
std::string disagreement(const Placed& placed, Stream& stream, Backend& reference);

}  // namespace ingot::bench
