// Runs the operations of this example's ops.cuh (common/op_runner.h).
#pragma once

#include <string_view>
#include <vector>

#include "common/op_runner.h"
#include "ops.cuh"

namespace generate {

// The translation unit that instantiates per_row<generate::op_name>.
ingot::Source source_of(std::string_view op_name);
// The names of all operations.
std::vector<std::string_view> all_op_names();

class OpRunner : public examples::OpRunner {
 public:
  OpRunner(ingot::Context& context, ingot::Stream& stream, bool overlapping);
};

}  // namespace generate
