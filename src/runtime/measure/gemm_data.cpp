#include "ingot/runtime/measure/gemm_data.h"

#include <cmath>
#include <utility>

#include "ingot/codegen/types/divided_up.h"
#include "ingot/runtime/stream.h"

namespace ingot {
namespace {

constexpr float kBeta = 0.5F;
constexpr float kOutputRange = 16;  // the largest |value| of an FP8 output before it saturates

std::size_t bytes_of(std::int64_t rows, std::int64_t cols, Dtype dtype) {
  return static_cast<std::size_t>(rows * cols) * static_cast<std::size_t>(size_of(dtype));
}

// 1 / sqrt(k), rounded to a power of two, so that FP8 codes are the same for every deviation.
float deviation_for(std::int64_t k) {
  return static_cast<float>(std::exp2(-std::round(std::log2(static_cast<double>(k)) / 2)));
}

class Maker {
 public:
  Maker(RandomData& random, std::uint64_t seed, FactorOrder order)
      : random_(&random), backend_(&random.stream().backend()), seed_(seed), order_(order) {}

  Tensor unset(Dtype dtype, std::int64_t rows, std::int64_t cols) {
    made_.memory.emplace_back(*backend_, bytes_of(rows, cols, dtype));
    return matrix(made_.memory.back().data(), dtype, rows, cols, backend_->device());
  }

  Tensor values(Dtype dtype, std::int64_t rows, std::int64_t cols, float deviation = 1.0F) {
    const Tensor tensor = unset(dtype, rows, cols);
    random_->fill(tensor.data, bytes_of(rows, cols, dtype), dtype, ++seed_, deviation);
    return tensor;
  }

  // a or b, and its scale_inv.
  Tensor operand(Dtype dtype, Layout layout, ScaleGranularity scale, std::int64_t rows, std::int64_t k, float deviation,
                 Tensor& factors) {
    if (!is_fp8(dtype)) {
      return layout == Layout::k_major ? values(dtype, rows, k, deviation) : values(dtype, k, rows, deviation);
    }
    const Buffer cast(*backend_, bytes_of(rows, k, Dtype::bf16));
    random_->fill(cast.data(), cast.bytes(), Dtype::bf16, ++seed_, deviation);
    const Tensor codes = unset(dtype, rows, k);
    const bool by_group = scale == kRowGroups && order_ == FactorOrder::by_group;
    factors = by_group ? unset(Dtype::f32, divided_up(k, std::int64_t{scale.cols}), rows)
                       : unset(Dtype::f32, 1, scale_count(scale, rows, k));
    backend_->cast(
        {.in = Dtype::bf16, .out = dtype, .scale = scale},
        {.input = matrix(cast.data(), Dtype::bf16, rows, k, backend_->device()), .codes = codes, .factors = factors},
        random_->stream());
    backend_->synchronize(random_->stream());  // before the values are released
    return codes;
  }

  Tensor input(const PointwiseInput& of, const GemmSpec& spec, const MatmulSize& size) {
    switch (of.kind) {
      case PointwiseInput::Kind::row: return values(Dtype::f32, 1, size.m);
      case PointwiseInput::Kind::column: return values(epilogue_dtype(spec), 1, size.n);
      default: return values(epilogue_dtype(spec), size.m, size.n);
    }
  }

  Tensor single(float value) {
    const Tensor tensor = unset(Dtype::f32, 1, 1);
    backend_->copy_from_host(tensor.data, &value, sizeof(value), random_->stream());
    return tensor;
  }

  GemmData run(const GemmSpec& spec, const MatmulSize& size) {
    const auto& [m, n, k] = size;
    GemmTensors& tensors = made_.tensors;
    tensors.a = operand(spec.a, spec.layout_a, spec.scale_a, m, k, 1.0F, tensors.factor_a);
    tensors.b = operand(spec.b, spec.layout_b, spec.scale_b, n, k, deviation_for(k), tensors.factor_b);
    tensors.out = unset(spec.out, m, n);
    if (spec.bias) tensors.bias = values(bias_dtype(spec), 1, n);
    const GemmEpilogue& epilogue = spec.epilogue;
    if (epilogue.c) tensors.c = values(*epilogue.c, m, n);
    tensors.beta = kBeta;
    const auto inputs = epilogue.pointwise.inputs();
    for (std::size_t i = 0; i < inputs.size(); ++i) tensors.inputs[i] = input(inputs[i], spec, size);
    if (epilogue.preactivation) tensors.preactivation = unset(epilogue_dtype(spec), m, n);
    if (epilogue.amax) tensors.amax = single(0.0F);
    if (is_fp8(spec.out)) {
      tensors.scale = single(fp8_max(spec.out) / kOutputRange);
      tensors.factor = unset(Dtype::f32, 1, 1);
    }
    return std::move(made_);
  }

 private:
  RandomData* random_;
  Backend* backend_;
  std::uint64_t seed_;
  FactorOrder order_;
  GemmData made_;
};

}  // namespace

GemmData make_gemm_data(RandomData& random, const GemmCall& call, std::uint64_t seed, FactorOrder order) {
  return Maker(random, seed, order).run(call.spec, call.size);
}

}  // namespace ingot
