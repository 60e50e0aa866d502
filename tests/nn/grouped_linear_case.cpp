#include "nn/grouped_linear_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

namespace ingot::test {
namespace {

constexpr LinearGradients kBoth{.input = true, .weight = true, .bias = false};

GroupedLinearPlan plan_of(const GroupedLinearCase& c) {
  LinearFusion fusion;
  if (c.gated) fusion.prologue = parse_pointwise("silu(x) * up");
  return grouped_linear_plan({.name = "moe",
                              .config = c.config,
                              .experts = static_cast<std::int64_t>(c.ends.size()),
                              .shape = {.in_features = c.in, .out_features = c.out, .bias = c.bias},
                              .dtypes = {.input = c.dtype},
                              .fusion = fusion});
}

std::int64_t experts_of(const GroupedLinearCase& c) { return static_cast<std::int64_t>(c.ends.size()); }

std::size_t scratch_bytes(const GroupedLinearPlan& plan, std::int64_t rows) {
  return std::max(plan.forward_scratch(rows, LinearPass::training), plan.backward_scratch(rows, kBoth));
}

Matrix columns_of(const Matrix& all, std::int64_t begin, std::int64_t end) {
  Matrix part = zeros(all.rows, end - begin);
  for (std::int64_t r = 0; r < all.rows; ++r) {
    for (std::int64_t c = begin; c < end; ++c) part.at(r, c - begin) = all.at(r, c);
  }
  return part;
}

Matrix rows_of(const Matrix& all, std::int64_t begin, std::int64_t end) {
  Matrix part = zeros(end - begin, all.cols);
  for (std::int64_t r = begin; r < end; ++r) {
    for (std::int64_t c = 0; c < all.cols; ++c) part.at(r - begin, c) = all.at(r, c);
  }
  return part;
}

// All tokens, in no order.
std::vector<std::int32_t> index_of(const GroupedLinearCase& c, std::int64_t shift) {
  std::vector<std::int32_t> index;
  for (std::int64_t r = 0; r < c.rows && c.tokens != 0; ++r) {
    index.push_back(static_cast<std::int32_t>(c.tokens - 1 - (r + shift) % c.tokens));
  }
  return index;
}

std::int64_t given_rows(const GroupedLinearCase& c) { return c.tokens != 0 ? c.tokens : c.rows; }

Matrix gathered(const Matrix& all, const std::vector<std::int32_t>& index, const GroupedLinearCase& c) {
  if (c.tokens == 0) return all;
  Matrix part = zeros(c.rows, all.cols);
  for (std::int64_t r = 0; r < c.rows; ++r) {
    for (std::int64_t col = 0; col < all.cols; ++col) part.at(r, col) = all.at(index[static_cast<std::size_t>(r)], col);
  }
  return part;
}

Buffer placed(const std::vector<std::int32_t>& index, Backend& backend, Stream& stream) {
  Buffer buffer(backend, index.size() * sizeof(std::int32_t));
  backend.device_api().copy_from_host(buffer.data(), index.data(), index.size() * sizeof(std::int32_t), stream);
  return buffer;
}

// With the reference's own rounding, in f32 before the dtype's: the same code as a cast's but in rare ties.
Matrix gated_values(const Matrix& gate, const Matrix& up, Dtype dtype) {
  Matrix values = gate;
  for (std::size_t i = 0; i < values.values.size(); ++i) {
    values.values[i] *= up.values[i] / (1 + std::exp(-gate.values[i]));
  }
  return rounded(values, dtype);
}

// Tensor cores keep fewer bits of a sum than the bounds allow: there an expert's whole result is compared, with the bar
// of one layer's tests, far above what a wrong code gives.
void check_part(const Matrix& found, const ExpectedMatrix& expected, bool on_gpu, const std::string& what) {
  if (!on_gpu) return check_within(found, expected, what);
  if (found.values.empty() || std::ranges::all_of(expected.value.values, [](double value) { return value == 0; })) {
    BOOST_TEST((found.values == expected.value.values), what);
    return;
  }
  constexpr double kLeastDb = 40;
  const double db = sqnr(expected.value, found);
  BOOST_TEST(db >= kLeastDb, what << ": " << db << " dB");
}

}  // namespace

ExpertScales::ExpertScales(const LinearConfig& config, int layers, std::int64_t experts, Backend& backend,
                           Stream& stream)
    : scaling(backend),
      any_(config.output.a->scaling == Scaling::delayed),
      experts_(static_cast<int>(experts)),
      stream_(&stream) {
  for (int layer = 0; layer < layers && any_; ++layer) {
    const std::string name = std::to_string(layer);
    scaling.add_experts(name + ".input", config.output.a->dtype, experts_);
    scaling.add_experts(name + ".weight", config.output.b->dtype, experts_);
    scaling.add_experts(name + ".grad_output", config.grad_input.a->dtype, experts_);
  }
  for (int i = 0; i < 3 * layers && any_; ++i) {
    memory_.emplace_back(kStartingScaleBytes * static_cast<std::size_t>(experts), backend, stream);
  }
}

LinearScales ExpertScales::of(int layer) {
  if (!any_) return {};
  const auto scale = [&](int operand) {
    const int at = 3 * layer + operand;
    return scaling.scale_of_experts(at * experts_, experts_, memory_[static_cast<std::size_t>(at)], *stream_);
  };
  return {.input = scale(0), .weight = scale(1), .grad_output = scale(2)};
}

std::vector<float> ExpertScales::values() const {
  std::vector<float> values(static_cast<std::size_t>(scaling.size()));
  if (values.empty()) return values;
  DeviceApi& device = stream_->device_api();
  device.copy_to_host(values.data(), scaling.scale(0).data, values.size() * sizeof(float), *stream_);
  device.synchronize(*stream_);
  return values;
}

bool ExpertScales::needs_start() const {
  for (int slot = 0; slot < scaling.size(); ++slot) {
    if (scaling.needs_start(slot)) return true;
  }
  return false;
}

std::string describe(const GroupedLinearCase& c) {
  std::string text =
      fmt::format("{} {} {}->{}, {} rows by experts that end at", print(c.config), name(c.dtype), c.in, c.out, c.rows);
  for (const std::int32_t end : c.ends) text += fmt::format(" {}", end);
  if (c.tokens != 0) text += fmt::format(", {} of {} tokens", c.copied ? "copies" : "rows", c.tokens);
  return text + (c.gated ? ", gated" : "") + (c.accumulate ? ", accumulated" : "") +
         (c.keeps_amax ? ", maxima kept" : "") + (c.bias ? ", with biases" : "");
}

GroupedLinearRun::GroupedLinearRun(const GroupedLinearCase& c, Backend& backend, Stream& stream)
    : plan(plan_of(c)),
      scales(c.config, 1, experts_of(c), backend, stream),
      case_(c),
      backend_(&backend),
      stream_(&stream),
      gathers_(c.tokens != 0 && !c.copied),
      index_(index_of(c, 0)),
      grad_output_index_(index_of(c, 3)),
      of_input_(Random(1).normal(given_rows(c), c.in, c.dtype)),
      of_grad_output_(Random(3).normal(given_rows(c), c.out, c.dtype)),
      input_(gathered(of_input_, index_, c)),
      up_(Random(5).normal(c.rows, c.in, c.dtype)),
      values_(c.gated ? gated_values(input_, up_, c.dtype) : input_),
      weight_(Random(2).weight(experts_of(c) * c.out, c.in, c.dtype)),
      grad_output_(gathered(of_grad_output_, grad_output_index_, c)),
      before_(Random(4).normal(experts_of(c) * c.out, c.in, c.grad_weight)),
      bias_(Random(6).normal(c.bias ? experts_of(c) : 0, c.out, plan.bias_dtype())),
      input_memory_(gathers_ ? of_input_ : input_, c.dtype, backend, stream),
      up_memory_(up_, c.dtype, backend, stream),
      weight_memory_(weight_, c.dtype, backend, stream),
      grad_output_memory_(gathers_ ? of_grad_output_ : grad_output_, c.dtype, backend, stream),
      bias_memory_(bias_, plan.bias_dtype(), backend, stream),
      output_(DeviceMatrix::poisoned(c.rows, c.out, c.dtype, backend, stream)),
      grad_input_(DeviceMatrix::poisoned(c.rows, c.in, c.dtype, backend, stream)),
      grad_weight_(DeviceMatrix::poisoned(experts_of(c) * c.out, c.in, c.grad_weight, backend, stream)),
      grad_bias_(DeviceMatrix::poisoned(bias_.rows, c.out, Dtype::f32, backend, stream)),
      ends_(backend, c.ends.size() * sizeof(std::int32_t)),
      index_memory_(placed(index_, backend, stream)),
      grad_output_index_memory_(placed(grad_output_index_, backend, stream)),
      amax_(backend, static_cast<std::size_t>(plan.weight_amax_count()) * sizeof(float)),
      codes_(plan.weight_memory().bytes, backend, stream),
      saved_memory_(plan.saved_memory(c.rows).bytes, backend, stream),
      scratch_(scratch_bytes(plan, c.rows), backend, stream) {
  saved.memory = saved_memory_;
  backend.device_api().copy_from_host(ends_.data(), c.ends.data(), c.ends.size() * sizeof(std::int32_t), stream);
  reset();
}

void GroupedLinearRun::reset() {
  output_.poison(*stream_);
  grad_input_.poison(*stream_);
  grad_bias_.poison(*stream_);
  if (case_.accumulate) {
    grad_weight_.write(before_, *stream_);
  } else {
    grad_weight_.poison(*stream_);
  }
}

std::optional<RowIndex> GroupedLinearRun::index_in(const Buffer& memory) const {
  if (!gathers_) return {};
  return RowIndex{static_cast<const std::int32_t*>(memory.data()), case_.rows, backend_->device()};
}

std::vector<Matrix> GroupedLinearRun::results() const {
  std::vector<Matrix> all{output_.read(*stream_), grad_input_.read(*stream_), grad_weight_.read(*stream_)};
  if (case_.bias) all.push_back(grad_bias_.read(*stream_));
  return all;
}

GroupedLinearForwardTensors GroupedLinearRun::forward_tensors() {
  return {.input = input_memory_,
          .row_index = index_in(index_memory_),
          .prologue_inputs = {case_.gated ? up_memory_.view() : Tensor{}},
          .ends = {static_cast<const std::int32_t*>(ends_.data()), experts_of(case_), backend_->device()},
          .bias = case_.bias ? bias_memory_.view() : Tensor{},
          .output = output_,
          .codes = views_,
          .saved = &saved,
          .scratch = scratch_};
}

GroupedLinearBackwardTensors GroupedLinearRun::backward_tensors() {
  return {.saved = &saved,
          .ends = {static_cast<const std::int32_t*>(ends_.data()), experts_of(case_), backend_->device()},
          .grad_output = grad_output_memory_,
          .grad_output_index = index_in(grad_output_index_memory_),
          .grad_input = grad_input_,
          .grad_weight = grad_weight_,
          .grad_bias = case_.bias ? grad_bias_.view() : Tensor{},
          .accumulate = case_.accumulate,
          .weight = weight_memory_,
          .weight_amax = amax(),
          .codes = views_,
          .scratch = scratch_};
}

Tensor GroupedLinearRun::amax() const {
  if (!case_.keeps_amax) return {};
  return vector(amax_.data(), Dtype::f32, plan.weight_amax_count(), backend_->device());
}

void GroupedLinearRun::enqueue(LayerObserver* observer) {
  const LinearRun run{.stream = *stream_, .observer = observer};
  const LinearScales given = scales.of(0);
  used_ = scales.values();
  views_ = cast_expert_weights(plan, *backend_,
                               {.weight = weight_memory_, .into = codes_, .amax = amax(), .scale = given.weight}, run);
  GroupedLinearForwardTensors forward = forward_tensors();
  forward.scales = given;
  grouped_linear_forward(plan, *backend_, forward, run);
  GroupedLinearBackwardTensors backward = backward_tensors();
  backward.scales = given;
  grouped_linear_backward(plan, *backend_, backward, run);
}

void GroupedLinearRun::enqueue_codes() {
  const auto cast = [&](ScaleGranularity scale) {
    const Tensor weight = weight_memory_;
    OwnedTensor codes(*backend_, Dtype::e4m3fn, weight.rows, weight.cols);
    OwnedTensor scale_inv(*backend_, Dtype::f32, 1, experts_of(case_) * scale_count(scale, case_.out, case_.in));
    const CastSpec spec{.in = weight.dtype, .scale = scale, .pow2 = case_.config.output.b->pow2, .stacked = true};
    backend_->cast(spec, {.input = weight, .matrices = experts_of(case_), .codes = codes, .scale_inv = scale_inv},
                   *stream_);
    return std::pair(std::move(codes), std::move(scale_inv));
  };
  const auto [codes, scale_inv] = cast(plan.weight.spec.scale);
  const auto [of_backward, scale_inv_of_backward] = cast(plan.weight_scale_of_grad_input());
  views_ = {.codes = codes, .scale_inv = scale_inv};
  GroupedLinearForwardTensors forward = forward_tensors();
  forward.scales = scales.of(0);
  grouped_linear_forward(plan, *backend_, forward, {*stream_});
  GroupedLinearBackwardTensors backward = backward_tensors();
  backward.scales = forward.scales;
  backward.weight = {};
  backward.weight_amax = {};
  backward.codes = {.codes = of_backward, .scale_inv = scale_inv_of_backward};
  grouped_linear_backward(plan, *backend_, backward, {*stream_});
  backend_->device_api().synchronize(*stream_);
  views_ = {};  // their memory goes
}

void GroupedLinearRun::check_grad_bias(const std::string& what) const {
  const Matrix found = grad_bias_.read(*stream_);
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < experts_of(case_); ++e) {
    const std::int64_t end = case_.ends[static_cast<std::size_t>(e)];
    for (std::int64_t c = 0; c < case_.out; ++c) {
      double sum = 0, magnitude = 0;
      for (std::int64_t r = begin; r < end; ++r) {
        sum += grad_output_.at(r, c);
        magnitude += std::abs(grad_output_.at(r, c));
      }
      const bool right = std::abs(found.at(e, c) - sum) <= 0x1p-20 * magnitude;
      if (right) continue;
      BOOST_TEST(right,
                 what << ": expert " << e << "'s grad_bias, column " << c << ": " << found.at(e, c) << ", not " << sum);
      return;
    }
    begin = end;
  }
}

Cast GroupedLinearRun::cast_of_expert(Cast cast, std::int64_t operand, std::int64_t expert) const {
  const float scale = used_[static_cast<std::size_t>(operand * experts_of(case_) + expert)];
  cast.scaling = scale == 1 ? Scaling::dynamic : Scaling::fixed;  // without one it starts with its own rows
  cast.scale = scale == 1 ? 0 : scale;
  return cast;
}

void GroupedLinearRun::check(const std::string& what) const {
  const auto& [output, grad_input, grad_weight, how_input, how_weight] = case_.config;
  // Where each expert has its own scales, these are not used.
  const Matrix x = fake_quantized(values_, *output.a);
  const Matrix g = fake_quantized(grad_output_, *grad_input.a);
  const Matrix gt = fake_quantized(transpose(grad_output_), *grad_weight.a);
  const Matrix xt = fake_quantized(transpose(values_), *grad_weight.b);
  const Matrix got_output = output_.read(*stream_);
  const Matrix got_grad_input = grad_input_.read(*stream_);
  const Matrix got_grad_weight = grad_weight_.read(*stream_);
  const bool on_gpu = backend_->device().type == DeviceType::cuda;
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < experts_of(case_); ++e) {
    const std::int64_t end = case_.ends[static_cast<std::size_t>(e)];
    const Matrix weight = rows_of(weight_, e * case_.out, (e + 1) * case_.out);
    const Matrix bias = case_.bias ? rows_of(bias_, e, e + 1) : Matrix{};
    const std::string of = fmt::format("{}: expert {}'s", what, e);
    const bool delays = plan.is_delayed();
    // Rows of all, which were quantized together, or of an expert that has its own scale.
    const auto rows_as_cast = [&](const Matrix& all, const Matrix& values, const Cast& cast, std::int64_t operand) {
      if (!delays) return rows_of(all, begin, end);
      return fake_quantized(rows_of(values, begin, end), cast_of_expert(cast, operand, e));
    };
    const auto weight_as_cast = [&](const Matrix& own, const Cast& cast) {
      return fake_quantized(own, delays ? cast_of_expert(cast, 1, e) : cast);
    };
    check_part(rows_of(got_output, begin, end),
               expected_gemm(rows_as_cast(x, values_, *output.a, 0), weight_as_cast(weight, *output.b),
                             case_.bias ? &bias : nullptr, case_.dtype),
               on_gpu, of + " output");
    check_part(rows_of(got_grad_input, begin, end),
               expected_gemm(rows_as_cast(g, grad_output_, *grad_input.a, 2),
                             weight_as_cast(transpose(weight), *grad_input.b), nullptr, case_.dtype),
               on_gpu, of + " grad_input");
    const auto of_expert = [&](const Matrix& all, const Matrix& values, const Cast& cast, std::int64_t operand) {
      if (delays) return transpose(rows_as_cast({}, values, cast, operand));
      if (cast.granularity != kRowGroups) return columns_of(all, begin, end);
      return fake_quantized(columns_of(transpose(values), begin, end), cast);  // its groups begin with its first row
    };
    ExpectedMatrix sums = expected_gemm(of_expert(gt, grad_output_, *grad_weight.a, 2),
                                        of_expert(xt, values_, *grad_weight.b, 0), nullptr, case_.grad_weight);
    if (case_.accumulate) {
      for (std::int64_t r = 0; r < case_.out; ++r) {
        for (std::int64_t c = 0; c < case_.in; ++c) {
          sums.value.at(r, c) += before_.at(e * case_.out + r, c);
          sums.bound.at(r, c) += 0x1p-23 * std::abs(sums.value.at(r, c));  // of a sum in f32
        }
      }
    }
    check_part(rows_of(got_grad_weight, e * case_.out, (e + 1) * case_.out), sums, on_gpu, of + " grad_weight");
    begin = end;
  }
  if (case_.bias) check_grad_bias(what);
  // Nobody's rows are not written.
  const Matrix rest = rows_of(got_output, begin, case_.rows);
  BOOST_TEST(std::ranges::all_of(rest.values, [](double value) { return value != value; }), what);
}

}  // namespace ingot::test
