// No figure without a right result: what the measured device left in its outputs, bit for bit against the CPU
// reference, every element.
#pragma once

#include <string>

#include "ingot/runtime/backend.h"
#include "operation.h"

namespace ingot::bench {

// Runs the operation again on `reference`, over the inputs that `placed` holds, and compares all outputs. The first
// difference in words; empty if there is none. Waits for the stream.
std::string disagreement(const Placed& placed, Stream& stream, Backend& reference);

}  // namespace ingot::bench
