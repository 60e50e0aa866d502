#include "support/run_case.h"

namespace ingot::test {

SharedMatrices InputMaker::inputs(const Case& c) {
  return std::visit([&](const auto& spec) { return inputs_of(spec, c); }, c.spec);
}

SharedMatrices InputMaker::inputs_of(const RelayoutSpec&, const Case& c) {
  return {{"input", matrix(Dtype::e4m3fn, c.shape.rows, c.shape.cols, c, 1)}};
}

SharedMatrices InputMaker::inputs_of(const CastSpec& spec, const Case& c) {
  SharedMatrices made{{"input", matrix(spec.in, c.shape.rows, c.shape.cols, c, 1)}};
  if (spec.source == ScaleSource::given) {
    made["scales"] = scale_inv(scale_count(spec.scale, c.shape.rows, c.shape.cols), c, 7);
    if (spec.transposed_scale) {
      made["transposed_scales"] = scale_inv(scale_count(*spec.transposed_scale, c.shape.rows, c.shape.cols), c, 8);
    }
  }
  add_pointwise_inputs(spec.pointwise, spec.in, c, made);
  return made;
}

SharedMatrices InputMaker::inputs_of(const CastStatsSpec& spec, const Case& c) {
  const auto [rows, cols, inner] = c.shape;
  SharedMatrices made{{"input", matrix(spec.in, rows, cols, c, 1)}};
  if (!spec.out) return made;
  GuardedMatrix codes = *(spec.transposed ? matrix(*spec.out, cols, rows, c, 2) : matrix(*spec.out, rows, cols, c, 2));
  for (std::int64_t r = 0; r < codes.rows(); ++r) {
    for (std::int64_t col = r % 8; col < codes.cols(); col += 8) codes.set_bits(r, col, r % 3 == 0 ? 0x80U : 0U);
  }
  made["codes"] = std::make_shared<GuardedMatrix>(std::move(codes));
  GuardedMatrix scale_inv = *InputMaker::scale_inv(scale_count(spec.scale, rows, cols), c, 5);
  for (std::int64_t i = 0; i < scale_inv.cols(); ++i) {
    const auto scaled = static_cast<float>(scale_inv.value(0, i) * (i % 3 == 0 ? 1.0 : i % 3 == 1 ? 0x1p-18 : 0x1p9));
    scale_inv.set_bits(0, i, float_bits(scaled));
  }
  if (c.input == Input::inf)
    scale_inv.set_bits(0, scale_inv.cols() / 2, float_bits(std::numeric_limits<float>::infinity()));
  if (c.input == Input::nan)
    scale_inv.set_bits(0, scale_inv.cols() / 2, float_bits(std::numeric_limits<float>::quiet_NaN()));
  made["scale_inv"] = std::make_shared<GuardedMatrix>(std::move(scale_inv));
  return made;
}

void InputMaker::add_pointwise_inputs(const Pointwise& expression, Dtype dtype, const Case& c, SharedMatrices& made) {
  const auto inputs = expression.inputs();
  for (std::size_t i = 0; i < inputs.size(); ++i) add_pointwise_input(inputs[i], i, dtype, c, made);
}

void InputMaker::add_pointwise_input(const PointwiseInput& input, std::size_t i, Dtype dtype, const Case& c,
                                     SharedMatrices& made) {
  const auto seed = static_cast<unsigned>(10 + i);
  std::shared_ptr<const GuardedMatrix>& values = made[pointwise_input_name(i)];
  switch (input.kind) {
    case PointwiseInput::Kind::matrix: values = matrix(dtype, c.shape.rows, c.shape.cols, c, seed); break;
    case PointwiseInput::Kind::column: values = matrix(dtype, 1, c.shape.cols, c, seed); break;
    case PointwiseInput::Kind::column_f32: values = matrix(Dtype::f32, 1, c.shape.cols, c, seed); break;
    case PointwiseInput::Kind::row: values = matrix(Dtype::f32, 1, c.shape.rows, c, seed); break;
  }
}

SharedMatrices InputMaker::inputs_of(const ElementwiseSpec& spec, const Case& c) {
  SharedMatrices made{{"input", matrix(spec.in, c.shape.rows, c.shape.cols, c, 1)}};
  const ElementwiseInputs inputs(spec);
  for (std::size_t i = 0; i < inputs.all().size(); ++i) add_pointwise_input(*inputs.all()[i], i, spec.in, c, made);
  return made;
}

SharedMatrices InputMaker::inputs_of(const NormSpec& spec, const Case& c) {
  SharedMatrices made{{"input", matrix(spec.in, c.shape.rows, c.shape.cols, c, 1)}};
  add_parameters(spec.kind, spec.in, spec.affine, c, made);
  if (spec.source == ScaleSource::given) made["scale"] = scale_inv(1, c, 7);
  return made;
}

SharedMatrices InputMaker::inputs_of(const NormBackwardSpec& spec, const Case& c) {
  const auto [rows, cols, inner] = c.shape;
  SharedMatrices made{{"input", matrix(spec.in, rows, cols, c, 1)},
                      {"grad_output", matrix(spec.in, rows, cols, c, 2)},
                      {"rstd", scale_inv(rows, c, 11)}};
  if (spec.kind == NormKind::layer) made["mean"] = scale_inv(rows, c, 12);
  add_parameters(spec.kind, spec.in, spec.affine, c, made);
  made.erase("beta");
  return made;
}

void InputMaker::add_parameters(NormKind kind, Dtype dtype, bool affine, Case c, SharedMatrices& made) {
  c.input = Input::normal;
  if (affine) made["gamma"] = matrix(dtype, 1, c.shape.cols, c, 9);
  if (affine && kind == NormKind::layer) made["beta"] = matrix(dtype, 1, c.shape.cols, c, 10);
}

SharedMatrices InputMaker::inputs_of(const AmaxHistorySpec&, const Case& c) {
  auto limits = std::make_shared<GuardedMatrix>(Dtype::f32, 1, c.shape.rows);
  auto pow2 = std::make_shared<GuardedMatrix>(Dtype::f32, 1, c.shape.rows);
  for (std::int64_t i = 0; i < c.shape.rows; ++i) {
    limits->set_bits(0, i, float_bits(fp8_max(kFp8Dtypes[static_cast<std::size_t>(i) % kFp8Dtypes.size()])));
    pow2->set_bits(0, i, float_bits(i % 3 == 2 ? 1.0F : 0.0F));
  }
  return {{"limits", limits}, {"pow2", pow2}};
}

// Columns alone count, as maxima are a vector.
SharedMatrices InputMaker::inputs_of(const AmaxScalesSpec&, const Case& c) {
  Case dense = c;
  dense.placement = {};
  return {{"amax", matrix(Dtype::f32, 1, c.shape.cols, dense, 13)}};
}

SharedMatrices InputMaker::inputs_of(const GemmSpec& spec, const Case& c) {
  const auto [m, n, k] = c.shape;
  const bool a_k_major = spec.layout_a == Layout::k_major;
  const bool b_k_major = spec.layout_b == Layout::k_major;
  SharedMatrices made{{"a", matrix(spec.a, a_k_major ? m : k, a_k_major ? k : m, c, 2)},
                      {"b", matrix(spec.b, b_k_major ? n : k, b_k_major ? k : n, c, 3)}};
  if (is_fp8(spec.a)) made["scale_inv_a"] = scale_inv(scale_count(spec.scale_a, m, k), c, 4);
  if (is_fp8(spec.b)) made["scale_inv_b"] = scale_inv(scale_count(spec.scale_b, n, k), c, 5);
  if (spec.bias) made["bias"] = matrix(bias_dtype(spec), 1, n, c, 6);
  if (spec.epilogue.c) made["c"] = matrix(*spec.epilogue.c, m, n, c, 7);
  add_pointwise_inputs(spec.epilogue.pointwise, epilogue_dtype(spec), c, made);
  if (is_fp8(spec.out)) made["scale"] = scale_inv(1, c, 8);
  return made;
}

std::shared_ptr<const GuardedMatrix> InputMaker::matrix(Dtype dtype, std::int64_t rows, std::int64_t cols,
                                                        const Case& c, unsigned seed) {
  const std::string key = std::string(name(dtype)) + " " + std::to_string(rows) + "x" + std::to_string(cols) + " " +
                          std::string(name(c.input)) + " " + std::to_string(c.placement.padding) + " " +
                          std::to_string(c.placement.offset) + " " + std::to_string(seed);
  std::shared_ptr<const GuardedMatrix>& kept = kept_[key];
  if (kept == nullptr) {
    auto made = std::make_shared<GuardedMatrix>(dtype, rows, cols, c.placement.padding, c.placement.offset);
    fill(*made, c.input, seed, pool_);
    kept = std::move(made);
  }
  return kept;
}

std::shared_ptr<const GuardedMatrix> InputMaker::scale_inv(std::int64_t count, const Case& c, unsigned seed) {
  auto made = std::make_shared<GuardedMatrix>(Dtype::f32, 1, count);
  for (std::int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<std::uint64_t>(i);
    const float factor = c.input == Input::integers ? (random_bits(seed, index) % 2 == 0 ? 0.5F : 2.0F)
                                                    : static_cast<float>(0.25 + random_unit(seed, index));
    made->set_bits(0, i, float_bits(factor));
  }
  return made;
}

GuardedMatrix by_group(const GuardedMatrix& scale_inv, ScaleGranularity scale, std::int64_t rows, std::int64_t k) {
  const std::int64_t groups = (k + scale.cols - 1) / scale.cols;
  // Of a whole number of units the rows are where the copy engine loads them.
  const std::int64_t cols = (rows + scale.rows - 1) / scale.rows;
  const bool whole = cols % 4 == 0;
  GuardedMatrix made(Dtype::f32, groups, cols, whole ? 4 : 3, whole ? 0 : 1);
  for (std::int64_t group = 0; group < groups; ++group) {
    for (std::int64_t row = 0; row < made.cols(); ++row) {
      made.set_bits(group, row, scale_inv.bits(0, row * groups + group));
    }
  }
  return made;
}

Matrices slots_before(const Case& c) {
  const auto [rows, cols, inner] = c.shape;
  Matrices slots;
  GuardedMatrix& amax = slots["amax"] = GuardedMatrix(Dtype::f32, 1, rows);
  GuardedMatrix& history = slots["history"] =
      GuardedMatrix(Dtype::f32, rows, cols, c.placement.padding, c.placement.offset);
  GuardedMatrix& scale = slots["scale"] = GuardedMatrix(Dtype::f32, 1, rows);
  ThreadPool pool(0);
  fill(amax, c.input, 13, pool);
  fill(history, c.input, 14, pool);
  for (std::int64_t i = 0; i < rows; ++i) {
    scale.set_bits(0, i, float_bits(static_cast<float>(i + 1)));
    if (i % 5 == 4) amax.set_bits(0, i, 0);
    if (i % 7 == 3 && c.input == Input::inf) amax.set_bits(0, i, kF32Inf);
    if (i % 7 == 3 && c.input == Input::nan) amax.set_bits(0, i, kF32Nan);
    if (i % 10 == 9) std::memset(history.element(i, 0), 0, history.row_bytes());
  }
  return slots;
}

GuardedMatrix earlier_amax(std::int64_t count) {
  GuardedMatrix amax(Dtype::f32, 1, count);
  for (std::int64_t i = 0; i < count; ++i) {
    amax.set_bits(0, i, float_bits(i % 3 == 0 ? 0.0F : i % 3 == 1 ? 1e-3F : 3e3F));
  }
  return amax;
}

Matrices poisoned_outputs(const Case& c) {
  const auto [rows, cols, inner] = c.shape;
  const auto [padding, offset] = c.placement;
  Matrices outputs;
  if (const auto* const amax = std::get_if<AmaxSpec>(&c.spec)) {
    outputs["amax"] = GuardedMatrix(Dtype::f32, 1, scale_count(amax->scale, rows, cols));
  } else if (const auto* const cast = std::get_if<CastSpec>(&c.spec)) {
    if (cast->codes) outputs["codes"] = GuardedMatrix(cast->out, rows, cols, padding, offset);
    if (cast->transposed) outputs["transposed"] = GuardedMatrix(cast->out, cols, rows, padding, offset);
    if (cast->result) outputs["result"] = GuardedMatrix(cast->in, rows, cols, padding, offset);
    if (cast->sum) outputs["sum"] = GuardedMatrix(*cast->sum, 1, cols);
    const std::int64_t count = scale_count(cast->scale, rows, cols);
    const auto scale_inv = [&, by_group = c.scale_inv_by_group](ScaleGranularity scale) {
      if (by_group && scale == kRowGroups) return GuardedMatrix(Dtype::f32, scale_count(scale, 1, cols), rows, 3, 1);
      return GuardedMatrix(Dtype::f32, 1, scale_count(scale, rows, cols));
    };
    outputs["scale_inv"] = scale_inv(cast->scale);
    const bool given = cast->source == ScaleSource::given;
    if (given) outputs["amax"] = earlier_amax(count);
    if (cast->transposed_scale) {
      const std::int64_t own = scale_count(*cast->transposed_scale, rows, cols);
      outputs["transposed_scale_inv"] = scale_inv(*cast->transposed_scale);
      if (given) outputs["transposed_amax"] = earlier_amax(own);
    }
  } else if (const auto* const gemm = std::get_if<GemmSpec>(&c.spec)) {
    outputs["out"] = GuardedMatrix(gemm->out, rows, cols, padding, offset);
    if (gemm->epilogue.preactivation) {
      outputs["preactivation"] = GuardedMatrix(epilogue_dtype(*gemm), rows, cols, padding, offset);
    }
    if (gemm->epilogue.amax) outputs["amax"] = earlier_amax(1);
    if (is_fp8(gemm->out)) outputs["scale_inv"] = GuardedMatrix(Dtype::f32, 1, 1);
  } else if (const auto* const norm = std::get_if<NormSpec>(&c.spec)) {
    const bool given = norm->source == ScaleSource::given;
    if (norm->out) outputs["codes"] = GuardedMatrix(*norm->out, rows, cols, padding, offset);
    if (norm->out) outputs["scale_inv"] = GuardedMatrix(Dtype::f32, 1, given ? 1 : rows);
    if (given) outputs["amax"] = earlier_amax(1);
    if (norm->result) outputs["result"] = GuardedMatrix(norm->in, rows, cols, padding, offset);
    if (norm->stats) outputs["rstd"] = GuardedMatrix(Dtype::f32, 1, rows);
    if (norm->stats && norm->kind == NormKind::layer) outputs["mean"] = GuardedMatrix(Dtype::f32, 1, rows);
  } else if (const auto* const backward = std::get_if<NormBackwardSpec>(&c.spec)) {
    outputs["grad_input"] = GuardedMatrix(backward->in, rows, cols, padding, offset);
    if (backward->affine) outputs["grad_gamma"] = GuardedMatrix(backward->sums, 1, cols);
    if (backward->affine && backward->kind == NormKind::layer) {
      outputs["grad_beta"] = GuardedMatrix(backward->sums, 1, cols);
    }
  } else if (const auto* const relayout = std::get_if<RelayoutSpec>(&c.spec)) {
    const bool turned = relayout->transposed;
    outputs["output"] = GuardedMatrix(Dtype::e4m3fn, turned ? cols : rows, turned ? rows : cols, padding, offset);
  } else if (std::holds_alternative<AmaxHistorySpec>(c.spec)) {
    outputs = slots_before(c);
  } else if (std::holds_alternative<AmaxScalesSpec>(c.spec)) {
    outputs["scale"] = GuardedMatrix(Dtype::f32, 1, cols);
  } else if (const auto* const elementwise = std::get_if<ElementwiseSpec>(&c.spec)) {
    outputs["output"] = GuardedMatrix(elementwise->in, rows, cols, padding, offset);
    if (elementwise->second) outputs["second"] = GuardedMatrix(elementwise->in, rows, cols, padding, offset);
    if (elementwise->amax) outputs["amax"] = GuardedMatrix(Dtype::f32, 1, 1);
    if (elementwise->row_sum) outputs["sums"] = GuardedMatrix(Dtype::f32, 1, rows);
    if (elementwise->maxima) outputs["row_amax"] = GuardedMatrix(Dtype::f32, 1, rows);
    if (elementwise->maxima)
      outputs["column_amax"] = GuardedMatrix(Dtype::f32, 1, elementwise->second ? 2 * cols : cols);
  } else if (std::holds_alternative<CastStatsSpec>(c.spec)) {
    outputs["stats"] = GuardedMatrix(Dtype::f32, 1, kCastStatsWords);
  } else {
    outputs["sum"] = GuardedMatrix(std::get<ColumnSumSpec>(c.spec).out, 1, cols);
  }
  return outputs;
}

PlacedCase::PlacedCase(const Case& c, const SharedMatrices& inputs, Backend& backend, Stream& stream)
    : case_(c), backend_(&backend), outputs_(poisoned_outputs(c)) {
  for (const auto& [name, matrix] : inputs) place(name, *matrix, stream);
  if (c.a_by_group || c.b_by_group) place_by_group(inputs, stream);
  for (const auto& [name, matrix] : outputs_) place(name, matrix, stream);
}

void PlacedCase::enqueue(Stream& stream) {
  std::visit([&](const auto& spec) { enqueue_as(spec, stream); }, case_.spec);
}

Matrices PlacedCase::outputs(Stream& stream) {
  Matrices fetched = outputs_;
  for (auto& [name, matrix] : fetched) {
    backend_->device_api().copy_to_host(matrix.bytes().data(), memory_.at(name).data(), matrix.bytes().size(), stream);
  }
  return fetched;
}

void PlacedCase::poison_all_but(const std::set<std::string>& kept, Stream& stream) {
  for (const auto& [name, matrix] : outputs_) {
    if (kept.contains(name)) continue;
    backend_->device_api().copy_from_host(memory_.at(name).data(), matrix.bytes().data(), matrix.bytes().size(),
                                          stream);
  }
}

void PlacedCase::place(const std::string& name, const GuardedMatrix& matrix, Stream& stream) {
  Buffer buffer(*backend_, matrix.bytes().size());
  backend_->device_api().copy_from_host(buffer.data(), matrix.bytes().data(), matrix.bytes().size(), stream);
  tensors_[name] = matrix.view(buffer.data(), backend_->device());
  memory_[name] = std::move(buffer);
}

void PlacedCase::place_by_group(const SharedMatrices& inputs, Stream& stream) {
  const auto& spec = std::get<GemmSpec>(case_.spec);
  const auto [m, n, k] = case_.shape;
  if (case_.a_by_group) place("scale_inv_a", by_group(*inputs.at("scale_inv_a"), spec.scale_a, m, k), stream);
  if (case_.b_by_group) place("scale_inv_b", by_group(*inputs.at("scale_inv_b"), spec.scale_b, n, k), stream);
}

Tensor PlacedCase::of(const std::string& name) const {
  const auto found = tensors_.find(name);
  return found == tensors_.end() ? Tensor{} : found->second;
}

void PlacedCase::enqueue_as(const AmaxSpec& spec, Stream& stream) {
  backend_->amax(spec, {.input = of("input"), .amax = of("amax")}, stream);
}

void PlacedCase::enqueue_as(const CastSpec& spec, Stream& stream) {
  Tensor input = of("input");
  if (!spec.pointwise.uses_x()) input.data = nullptr;  // it only gives the shape
  backend_->cast(spec,
                 {.input = input,
                  .codes = of("codes"),
                  .transposed = of("transposed"),
                  .scale_inv = of("scale_inv"),
                  .transposed_scale_inv = of("transposed_scale_inv"),
                  .scales = of("scales"),
                  .amax = of("amax"),
                  .transposed_scales = of("transposed_scales"),
                  .transposed_amax = of("transposed_amax"),
                  .known_amax = of("known_amax"),
                  .known_transposed_amax = of("known_transposed_amax"),
                  .inputs = {of("inputs[0]"), of("inputs[1]"), of("inputs[2]"), of("inputs[3]")},
                  .result = of("result"),
                  .sum = of("sum")},
                 stream);
}

GemmWork PlacedCase::gemm() const {
  return {.spec = std::get<GemmSpec>(case_.spec),
          .tensors = {.a = of("a"),
                      .b = of("b"),
                      .scale_inv_a = of("scale_inv_a"),
                      .scale_inv_b = of("scale_inv_b"),
                      .bias = of("bias"),
                      .out = of("out"),
                      .c = of("c"),
                      .beta = case_.beta,
                      .inputs = {of("inputs[0]"), of("inputs[1]"), of("inputs[2]"), of("inputs[3]")},
                      .preactivation = of("preactivation"),
                      .amax = of("amax"),
                      .scale = of("scale"),
                      .scale_inv = of("scale_inv")}};
}

void PlacedCase::enqueue_as(const GemmSpec& spec, Stream& stream) { backend_->gemm(spec, gemm().tensors, stream); }

void PlacedCase::enqueue_as(const ColumnSumSpec& spec, Stream& stream) {
  backend_->column_sum(spec, {.input = of("input"), .sum = of("sum")}, stream);
}

void PlacedCase::enqueue_as(const RelayoutSpec& spec, Stream& stream) {
  backend_->relayout(spec, {.input = of("input"), .output = of("output")}, stream);
}

void PlacedCase::enqueue_as(const ElementwiseSpec& spec, Stream& stream) {
  Tensor input = of("input");
  if (!uses_x(spec)) input.data = nullptr;  // it only gives the shape
  backend_->elementwise(spec,
                        {.input = input,
                         .inputs = {of("inputs[0]"), of("inputs[1]"), of("inputs[2]"), of("inputs[3]")},
                         .output = of("output"),
                         .second = of("second"),
                         .amax = of("amax"),
                         .sums = of("sums"),
                         .row_amax = of("row_amax"),
                         .column_amax = of("column_amax")},
                        stream);
}

void PlacedCase::enqueue_as(const CastStatsSpec& spec, Stream& stream) {
  backend_->cast_stats(
      spec, {.input = of("input"), .codes = of("codes"), .scale_inv = of("scale_inv"), .stats = of("stats")}, stream);
}

void PlacedCase::enqueue_as(const NormSpec& spec, Stream& stream) {
  backend_->norm(spec,
                 {.input = of("input"),
                  .gamma = of("gamma"),
                  .beta = of("beta"),
                  .codes = of("codes"),
                  .scale_inv = of("scale_inv"),
                  .scale = of("scale"),
                  .amax = of("amax"),
                  .result = of("result"),
                  .mean = of("mean"),
                  .rstd = of("rstd"),
                  .eps = kNormEps},
                 stream);
}

void PlacedCase::enqueue_as(const NormBackwardSpec& spec, Stream& stream) {
  backend_->norm_backward(spec,
                          {.grad_output = of("grad_output"),
                           .input = of("input"),
                           .gamma = of("gamma"),
                           .mean = of("mean"),
                           .rstd = of("rstd"),
                           .grad_input = of("grad_input"),
                           .grad_gamma = of("grad_gamma"),
                           .grad_beta = of("grad_beta")},
                          stream);
}

void PlacedCase::enqueue_as(const AmaxHistorySpec& spec, Stream& stream) {
  backend_->amax_history(
      spec,
      {.amax = of("amax"), .history = of("history"), .scale = of("scale"), .limits = of("limits"), .pow2 = of("pow2")},
      stream);
}

void PlacedCase::enqueue_as(const AmaxScalesSpec& spec, Stream& stream) {
  backend_->amax_scales(spec, {.amax = of("amax"), .scale = of("scale")}, stream);
}

Matrices run(const Case& c, const SharedMatrices& inputs, Backend& backend, Stream& stream) {
  PlacedCase placed(c, inputs, backend, stream);
  placed.enqueue(stream);
  return placed.outputs(stream);
}

std::string damage(const Matrices& outputs) {
  for (const auto& [name, matrix] : outputs) {
    if (std::string found = matrix.damage(); !found.empty()) return name + ": " + found;
  }
  return {};
}

}  // namespace ingot::test
