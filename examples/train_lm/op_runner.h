// Runs the operations of ops.cuh where the context computes: on the GPU as kernels that Ingot compiles from ops.cuh's
// text and keeps in its store, on the CPU as loops over rows, on all cores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/runtime/context.h"
#include "ingot/runtime/cuda/kernel.h"
#include "ingot/runtime/stream.h"
#include "ops.cuh"

namespace train_lm {

// The unit that instantiates per_row<train_lm::op_name>.
ingot::Source source_of(std::string_view op_name);
// The names of all operations, for compiling them ahead of time.
std::vector<std::string_view> all_op_names();

// Calls work(row) for each row below `rows`, on all cores.
void parallel_for(std::int64_t rows, const std::function<void(std::int64_t)>& work);

class OpRunner {
 public:
  OpRunner(ingot::Context& context, ingot::Stream& stream) : context_(&context), stream_(&stream) {}

  template <class Op>
  void run(const Op& op) {
    if (op.rows() == 0) return;
    if (context_->device().type == ingot::DeviceType::cpu) {
      parallel_for(op.rows(), [&op](std::int64_t row) { op(OneLane{}, row); });
      return;
    }
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(op.rows(), 1 << 30));
    kernel(Op::kName).launch(stream_->handle(), {.grid_x = blocks, .block = kThreads}, op);
    ++launches_;
  }

  std::int64_t launches() const { return launches_; }

 private:
  const ingot::Kernel& kernel(const char* op_name);

  ingot::Context* context_;
  ingot::Stream* stream_;
  std::map<std::string_view, const ingot::Kernel*> kernels_;
  std::int64_t launches_ = 0;
};

}  // namespace train_lm
