#include "norm_operation.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace ingot::bench {
namespace {

class Operands {
 public:
  void input(const std::string& name, Dtype dtype, std::int64_t rows, std::int64_t cols,
             std::optional<float> value = std::nullopt) {
    add({.name = name, .role = Operand::Role::input, .dtype = dtype, .rows = rows, .cols = cols, .value = value});
  }
  void output(const std::string& name, Dtype dtype, std::int64_t rows, std::int64_t cols,
              std::optional<float> value = std::nullopt) {
    add({.name = name, .role = Operand::Role::output, .dtype = dtype, .rows = rows, .cols = cols, .value = value});
  }

  std::vector<Operand> all;

 private:
  void add(Operand operand) { all.push_back(std::move(operand)); }
};

}  // namespace

Operation norm_operation(const NormSpec& spec, std::int64_t rows, std::int64_t cols) {
  const bool layer = spec.kind == NormKind::layer;
  const bool given = spec.source == ScaleSource::given;
  Operands operands;
  operands.input("input", spec.in, rows, cols);
  if (spec.affine) operands.input("gamma", spec.in, 1, cols);
  if (spec.affine && layer) operands.input("beta", spec.in, 1, cols);
  if (given) operands.input("scale", Dtype::f32, 1, 1, 64.0F);
  if (spec.out) operands.output("codes", *spec.out, rows, cols);
  if (spec.out) operands.output("scale_inv", Dtype::f32, 1, given ? 1 : rows);
  if (given) operands.output("amax", Dtype::f32, 1, 1, 0.0F);
  if (spec.result) operands.output("result", spec.in, rows, cols);
  if (spec.stats && layer) operands.output("mean", Dtype::f32, 1, rows);
  if (spec.stats) operands.output("rstd", Dtype::f32, 1, rows);
  return {.operands = operands.all, .call = [spec](Backend& backend, const Tensors& tensors, Stream& stream) {
            backend.norm(spec,
                         {.input = tensors["input"],
                          .gamma = tensors["gamma"],
                          .beta = tensors["beta"],
                          .codes = tensors["codes"],
                          .scale_inv = tensors["scale_inv"],
                          .scale = tensors["scale"],
                          .amax = tensors["amax"],
                          .result = tensors["result"],
                          .mean = tensors["mean"],
                          .rstd = tensors["rstd"]},
                         stream);
          }};
}

Operation norm_operation(const NormBackwardSpec& spec, std::int64_t rows, std::int64_t cols) {
  const bool layer = spec.kind == NormKind::layer;
  Operands operands;
  operands.input("grad_output", spec.in, rows, cols);
  operands.input("input", spec.in, rows, cols);
  if (spec.affine) operands.input("gamma", spec.in, 1, cols);
  if (layer) operands.input("mean", Dtype::f32, 1, rows, 0.0F);
  operands.input("rstd", Dtype::f32, 1, rows, 1.0F);
  operands.output("grad_input", spec.in, rows, cols);
  if (spec.affine) operands.output("grad_gamma", spec.sums, 1, cols);
  if (spec.affine && layer) operands.output("grad_beta", spec.sums, 1, cols);
  return {.operands = operands.all, .call = [spec](Backend& backend, const Tensors& tensors, Stream& stream) {
            backend.norm_backward(spec,
                                  {.grad_output = tensors["grad_output"],
                                   .input = tensors["input"],
                                   .gamma = tensors["gamma"],
                                   .mean = tensors["mean"],
                                   .rstd = tensors["rstd"],
                                   .grad_input = tensors["grad_input"],
                                   .grad_gamma = tensors["grad_gamma"],
                                   .grad_beta = tensors["grad_beta"]},
                                  stream);
          }};
}

}  // namespace ingot::bench
