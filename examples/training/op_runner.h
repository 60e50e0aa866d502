// Runs the operations of training/ops.cuh (common/op_runner.h).
#pragma once

#include <string_view>
#include <vector>

#include "common/op_runner.h"
#include "training/ops.cuh"

namespace training {

// The translation unit that instantiates per_row<training::op_name>.
ingot::Source source_of(std::string_view op_name);
// The names of all operations, for compiling them ahead of time.
std::vector<std::string_view> all_op_names();

class OpRunner : public examples::OpRunner {
 public:
  OpRunner(ingot::Context& context, ingot::Stream& stream);
  // Runs nothing, for a dry run.
  OpRunner();
};

}  // namespace training
