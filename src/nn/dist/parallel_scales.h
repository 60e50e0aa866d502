// The scales of a layer's tensors of which each rank has a part. One scale for the whole tensor must come of the
// largest maximum of all parts, so that all ranks cast as one rank that had the whole would: the maximum of the rank's
// part is found, reduced over the ranks, and made a scale, all on the device, before the cast.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/linear/linear_plan.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/dist/comm.h"

namespace ingot {

class DelayedScaling;

enum class LinearTensor : std::uint8_t { input, weight, grad_output };

// Which tensors the ranks have different parts of.
struct DividedTensors {
  bool input = false;
  bool weight = false;
  bool grad_output = false;

  bool has(LinearTensor tensor) const {
    return tensor == LinearTensor::input ? input : tensor == LinearTensor::weight ? weight : grad_output;
  }
};

// The config whose casts of divided tensors are given scales (Scaling::delayed) where it has one dynamic scale for a
// whole tensor.
LinearConfig with_given_scales(LinearConfig config, const DividedTensors& divided);

class ParallelScales {
 public:
  // `plan`: of a config of with_given_scales(). Adds the slots of delayed scales, "<name>.input" ... as Float8Linear
  // does. Throws Error{invalid_argument} without a DelayedScaling where `config`, the layer's own, has such.
  ParallelScales(Backend& backend, const LinearPlan& plan, const LinearConfig& config, const DividedTensors& divided,
                 DelayedScaling* delayed);

  // The scale with which `values`, this rank's part, is cast next; every rank calls it. Enqueues what makes it.
  LinearScale of(LinearTensor tensor, const Tensor& values, Comm& comm, Stream& stream);
  // f32[1]: 1, for folded scale_inv.
  Tensor one(Stream& stream);

 private:
  enum class Source : std::uint8_t { none, constant, group, delayed };
  struct Entry {
    Source source = Source::none;
    Cast cast{};
    int slot = -1;        // in the DelayedScaling
    LinearScale scale{};  // of `group`: with its start, made once
  };

  void make_constants(Stream& stream);
  void measure(const LinearScale& scale, const Tensor& values, bool is_divided, Comm& comm, Stream& stream);

  Backend* backend_;
  LinearPlan plan_;
  DividedTensors divided_;
  DelayedScaling* delayed_;
  std::array<Entry, 3> entries_{};
  Buffer memory_;
  LinearScales constants_{};
};

}  // namespace ingot
