// Runs the operations of an example's ops.cuh where the context computes: on the GPU as kernels that Ingot compiles
// from the text of rows.cuh and ops.cuh and keeps in its store, on the CPU as loops over rows, on all cores.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "ingot/runtime/context/context.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/jit/kernel.h"
#include "rows.cuh"

namespace examples {

// The operations of one example.
struct Ops {
  std::string_view name;  // of the example and of its namespace
  std::string_view text;  // the content of its ops.cuh
};

// The translation unit that instantiates per_row<name::op_name>.
ingot::Source source_of(const Ops& ops, std::string_view op_name);

// Calls work(row) for each row below `rows`, on all cores.
void parallel_for(std::int64_t rows, const std::function<void(std::int64_t)>& work);

class OpRunner {
 public:
  // With `overlapping`, a kernel may begin before the previous one has ended (LaunchShape::overlapping).
  OpRunner(ingot::Context& context, ingot::Stream& stream, const Ops& ops, bool overlapping = false)
      : context_(&context), stream_(&stream), ops_(ops), overlapping_(overlapping) {}
  // Runs nothing: for a dry run of what launches the operations (ingot/runtime/context/dry_run.h).
  explicit OpRunner(const Ops& ops) : ops_(ops) {}

  template <class Op>
  void run(const Op& op) {
    if (op.rows() == 0 || context_ == nullptr) return;
    if (context_->device().type == ingot::DeviceType::cpu) {
      parallel_for(op.rows(), [&op](std::int64_t row) { op(OneLane{}, row); });
      return;
    }
    const auto blocks = static_cast<unsigned>(std::min<std::int64_t>(op.rows(), 1 << 30));
    kernel(Op::kName).launch(stream_->handle(), {.grid_x = blocks, .block = kThreads, .overlapping = overlapping_}, op);
    ++launches_;
  }

  std::int64_t launches() const { return launches_; }

 private:
  const ingot::Kernel& kernel(const char* op_name);

  ingot::Context* context_ = nullptr;
  ingot::Stream* stream_ = nullptr;
  Ops ops_;
  bool overlapping_ = false;
  std::map<std::string_view, const ingot::Kernel*> kernels_;
  std::int64_t launches_ = 0;
};

}  // namespace examples
