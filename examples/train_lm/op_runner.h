// Runs the operations of train_lm's ops.cuh and of training/ops.cuh (common/op_runner.h).
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/op_runner.h"
#include "ops.cuh"
#include "training/op_runner.h"

namespace train_lm {

// The translation unit that instantiates per_row<train_lm::op_name>.
ingot::Source source_of(std::string_view op_name);
// The names of all operations, for compiling them ahead of time.
std::vector<std::string_view> all_op_names();

class OpRunner : public examples::OpRunner {
 public:
  OpRunner(ingot::Context& context, ingot::Stream& stream);
  // Runs nothing, for a dry run.
  OpRunner();
};

struct OpRunners {
  OpRunners(ingot::Context& context, ingot::Stream& stream) : model(context, stream), training(context, stream) {}
  OpRunners() = default;

  OpRunner model;
  training::OpRunner training;

  std::int64_t launches() const { return model.launches() + training.launches(); }
};

}  // namespace train_lm
