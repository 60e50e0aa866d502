// All weights of a model cast to FP8 together, after the optimizer's step: one CastList for each kind of cast, so a
// model with one recipe takes one launch (or a fill and two, CastList says when) instead of one for each weight.
//
//   WeightCasts casts(backend);
//   casts.add(layer, weight, stream);    // Float8Linear, NormLinear, an MLP: they take the codes and cast no weight
//   const Float8View codes = casts.add(plan, {.weight = master, .into = region}, stream);    // for the functions
//   casts.run(stream);                   // once for the values that the weights begin with
//   each step:
//     ... forwards and backwards; the optimizer writes the weights; DelayedScaling::sync_amax_history() ...
//     casts.run(stream);
//
// The bits are those of casts one by one. The weights may be f32 masters with bf16 inputs (LinearDtypes::weight,
// LinearOptions::weight_dtype): the optimizer's values become codes directly, and there is no bf16 weight.
//
// Layers, tensors and regions must stay where they are, and live as long as this. A layer casts its weight by itself
// all the same if it has to: for another weight, or after weight_changed(). Observers see no cast of a list.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <vector>

#include "ingot/api.h"
#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/stream.h"

namespace ingot {

class GatedMlp;
class Mlp;
class NormLinear;

class INGOT_API WeightCasts {
 public:
  explicit WeightCasts(Backend& backend) : backend_(&backend) {}

  // Nothing is added where the recipe has no FP8 codes of the weight. The first delayed scale is made of the weight's
  // values, as a forward makes it. Throw what a forward throws for the weight, and Error{invalid_argument} for a layer
  // that was added before.
  void add(Float8Linear& layer, const Tensor& weight, Stream& stream);
  void add(NormLinear& layer, const Tensor& weight, Stream& stream);
  void add(Mlp& layer, const Tensor& up_weight, const Tensor& down_weight, Stream& stream);
  void add(GatedMlp& layer, const Tensor& gate_up_weight, const Tensor& down_weight, Stream& stream);
  // Returns where run() writes: views of tensors.into. Throws as cast_weight() does.
  Float8View add(const LinearPlan& plan, const WeightCastTensors& tensors, Stream& stream);

  // Enqueues all casts. Lists are made here if weights have been added since the last call, which a capture must not
  // contain: Error{invalid_argument}. A captured run serves the layers of a step that begins with the codes that the
  // run before it made.
  void run(Stream& stream);

  // How many weights there are.
  std::size_t size() const;

 private:
  // Casts of one kind.
  struct Kind {
    CastSpec spec;
    std::vector<CastTensors> tensors{};
    std::unique_ptr<CastList> list{};
  };

  void add_cast(const CastSpec& spec, const CastTensors& tensors);
  // Checks what add() takes, before it changes anything but the dtype of the layer's plan.
  void check(const OwnedLinear& layer, const Tensor& weight, const Stream& stream) const;
  void add_checked(const OwnedLinear& layer, const Tensor& weight, Stream& stream);
  void add_pair(const std::array<OwnedLinear, 2>& layers, const Tensor& up, const Tensor& down, Stream& stream);

  // A layer whose codes run() writes, and the weight that it makes them of.
  struct Listed {
    LinearOwner* layer;
    Tensor weight;
  };

  Backend* backend_;
  std::vector<Kind> kinds_;
  std::vector<Listed> layers_;
};

}  // namespace ingot
