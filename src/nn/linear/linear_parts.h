// The linear layers inside a module of several parts (norm_linear_functions.h, mlp_functions.h). A caller of the
// functions gives scales and codes for all of them beforehand. An owner that keeps them (Float8Linear) gives them when
// a layer's turn comes, because the first delayed scale is made from data that the parts before it write.
#pragma once

#include "ingot/api.h"
#include "ingot/nn/linear/linear_functions.h"

namespace ingot {

class INGOT_API LinearPart {
 public:
  virtual ~LinearPart() = default;
  LinearPart(LinearPart&&) = default;
  LinearPart& operator=(LinearPart&&) = default;

  // Gives scales, and codes or memory for them.
  virtual void before_forward(LinearPass pass, LinearForwardTensors& tensors, Stream& stream) = 0;
  virtual void after_forward(const LinearForwardTensors& tensors, Stream& stream) = 0;
  // Gives scales and codes; returns LinearRun::side.
  virtual Stream* before_backward(LinearBackwardTensors& tensors, Stream& stream) = 0;
  // Orders `stream` behind the side stream: memory that the backward has used is used again.
  virtual void after_backward(Stream& stream) = 0;

 protected:
  LinearPart() = default;
};

}  // namespace ingot
