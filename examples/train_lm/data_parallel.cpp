#include "data_parallel.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <span>

#include "ingot/runtime/util/error.h"

namespace train_lm {
namespace {

using ingot::Dtype;
using ingot::Tensor;

float* f32_of(const ingot::OwnedTensor& tensor) { return static_cast<float*>(tensor.view().data); }

// Part `rank` of `ranks` of contiguous memory, by its rows or, of a vector, by its elements.
Tensor part_of(const Tensor& all, int rank, int ranks) {
  Tensor part = all;
  std::int64_t& count = all.rows == 1 ? part.cols : part.rows;
  count /= ranks;
  const auto bytes = static_cast<std::size_t>(part.rows * part.cols * ingot::size_of(all.dtype));
  part.row_stride = part.cols;
  part.data = static_cast<std::byte*>(all.data) + bytes * static_cast<std::size_t>(rank);
  return part;
}

void clear(const ingot::OwnedTensor& tensor, ingot::Stream& stream) {
  const Tensor& view = tensor.view();
  stream.device_api().fill_zero(view.data, static_cast<std::size_t>(view.rows * view.cols * ingot::size_of(view.dtype)),
                                stream);
}

}  // namespace

struct DataParallel::Sum {
  Tensor total;
  std::vector<ingot::OwnedTensor> waiting;
  ingot::OwnedTensor memory{};  // the loss', whose total no parameter holds

  Sum(ingot::Backend& backend, const Tensor& of, std::int64_t parts) : total(of) {
    const auto levels = static_cast<std::size_t>(std::bit_width(static_cast<std::uint64_t>(parts - 1)));
    for (std::size_t i = 0; i < levels; ++i) waiting.emplace_back(backend, Dtype::f32, of.rows, of.cols);
  }
};

struct DataParallel::Weight {
  training::Parameter* whole;
  training::Parameter mine;  // the rank's rows, and zeros where it has fewer than others
  Sum gradient;
  std::optional<ingot::OwnedLinear> layer{};  // whose codes cross
  ingot::Float8View codes{};                  // of the whole weight
};

DataParallel::DataParallel(ingot::Backend& backend, ingot::Stream& stream, OpRunners& ops, ingot::Comm& comm,
                           const Options& options)
    : backend_(&backend),
      stream_(&stream),
      ops_(&ops),
      comm_(&comm),
      options_(&options),
      parts_(options.micro_batches / comm.size()),
      norm_(backend, Dtype::f32, 1, 1),
      clip_scale_(backend, Dtype::f32, 1, 1) {
  ingot::OwnedTensor total(backend, Dtype::f32, 1, kVector);
  clear(total, stream);
  loss_ = std::make_unique<Sum>(backend, total.view(), parts_);
  loss_->memory = std::move(total);
}

DataParallel::~DataParallel() = default;

// ---- Weights --------------------------------------------------------------------------------------------------------

bool DataParallel::crosses_as_codes(const ingot::LinearPlan& plan) const {
  const ingot::CastSpec& spec = plan.weight.spec;
  const std::int64_t rows = plan.shape.out_features;
  const std::int64_t share = rows / comm_->size();
  const bool one_set = plan.weight.any && spec.codes && !spec.transposed_scale && !plan.output_reads_weight() &&
                       !plan.grad_input_reads_weight();
  if (!one_set || options_->weight_codes == WeightCodes::each || rows % comm_->size() != 0) return false;
  // Memory of codes may have a row stride; one piece of memory crosses.
  if (plan.weight_memory().codes.row_stride != plan.shape.in_features) return false;
  return spec.scale == ingot::kTensorwise || spec.scale == ingot::kRowwise ||
         (spec.scale == ingot::kBlocks && (share % 128 == 0 || comm_->size() == 1));
}

training::ParameterParts DataParallel::parts(std::int64_t rows) const {
  return {.values = false, .spare_rows = ingot::shard_of(rows, 0, comm_->size()).padded * comm_->size() - rows};
}

training::ParameterParts DataParallel::parts(const ingot::OwnedLinear& layer) const {
  const ingot::LinearPlan& plan = *layer.plan;
  const Dtype dtype = *plan.dtypes.weight;
  if (crosses_as_codes(plan)) return {.values = false, .working = false, .shape_only = dtype};
  if (dtype != Dtype::f32) return parts(plan.shape.out_features);
  throw ingot::Error(
      ingot::ErrorCode::invalid_argument, "--weight-codes",
      fmt::format("is masters, but --recipe {} on --ranks {} cannot send the weight [{}, {}] as codes: take together, "
                  "which sends it in bf16",
                  options_->recipe, comm_->size(), plan.shape.out_features, plan.shape.in_features));
}

void DataParallel::add(const std::string& name, training::Parameter& weight, double deviation, std::uint64_t seed,
                       const std::optional<ingot::OwnedLinear>& layer) {
  const ingot::Shard rows = ingot::shard_of(weight.rows, comm_->rank(), comm_->size());
  const bool crosses = layer && crosses_as_codes(*layer->plan);
  const bool has_bf16 = !crosses || weight.parts.shape_only == Dtype::bf16;
  training::Parameter mine(*backend_, rows.padded, weight.cols, {.working = has_bf16});
  mine.decays = weight.decays;
  const Tensor gradient = mine.grad.view();
  weights_.push_back(std::make_unique<Weight>(
      Weight{.whole = &weight, .mine = std::move(mine), .gradient = Sum(*backend_, gradient, parts_)}));
  Weight& added = *weights_.back();
  for (const ingot::OwnedTensor* each :
       {&added.mine.values, &added.mine.first_moment, &added.mine.second_moment, &weight.grad}) {
    clear(*each, *stream_);
  }
  // All rows once, for a while: a delayed scale starts with the whole weight.
  training::Parameter all(*backend_, weight.rows, weight.cols, {.working = has_bf16});
  all.init(ops_->training, *stream_, deviation, seed);
  if (rows.count > 0) {
    stream_->device_api().copy(added.mine.values.view().data, f32_of(all.values) + rows.begin * weight.cols,
                               static_cast<std::size_t>(rows.count * weight.cols) * sizeof(float), *stream_);
  }
  added.mine.values_changed(ops_->training);
  if (crosses) {
    add_codes(added, *layer, all.weight());
  } else {
    gathered_.push_back({.mine = added.mine.working, .all = weight.working});
  }
  stream_->device_api().synchronize(*stream_);
  shared_.push_back(
      {.name = name,
       .description = fmt::format("f32[{}, {}]{}, {} parts", weight.rows, weight.cols,
                                  layer ? ", " + print(layer->plan->config) : "", options_->micro_batches)});
}

void DataParallel::add_codes(Weight& weight, const ingot::OwnedLinear& layer, const Tensor& whole) {
  const ingot::LinearPlan& plan = *layer.plan;
  const ingot::WeightCastTensors cast = layer.owner->list_weight(plan, whole, *stream_);
  weight.layer = layer;
  weight.codes = weight_codes(plan, cast.into, backend_->device());
  const bool one_scale = plan.weight.spec.scale == ingot::kTensorwise;
  Tensor scale_inv = weight.codes.scale_inv;
  if (!one_scale) {
    scale_inv = ingot::vector(scale_inv.data, Dtype::f32, scale_inv.rows * scale_inv.cols, scale_inv.device);
    const Tensor own = part_of(scale_inv, comm_->rank(), comm_->size());
    gathered_.push_back({.mine = own, .all = scale_inv});
    scale_inv = own;
  }
  const Tensor codes = part_of(weight.codes.codes, comm_->rank(), comm_->size());
  gathered_.push_back({.mine = codes, .all = weight.codes.codes});

  cast_spec_ = plan.weight.spec;  // all layers have one config
  cast_spec_.transposed = false;
  ingot::CastTensors tensors{.input = weight.mine.weight(), .codes = codes, .scale_inv = scale_inv};
  if (plan.weight.scaling == ingot::Scaling::delayed) {
    tensors.scales = cast.scale.scale;
    tensors.amax = cast.scale.amax;
  } else if (one_scale) {
    cast_spec_.source = ingot::ScaleSource::given;
    needs_maxima_ = true;
  }
  casts_.push_back(tensors);
}

void DataParallel::start() {
  comm_->handshake(shared_, *stream_);
  std::vector<training::Parameter*> mine;
  std::int64_t squares = 0;
  for (const auto& weight : weights_) {
    mine.push_back(&weight->mine);
    squares += weight->mine.rows * comm_->size();
  }
  optimizer_.emplace(*backend_, mine, training::OptimizerOptions{.weight_decay = options_->weight_decay, .clip = 0});
  squares_ = ingot::OwnedTensor(*backend_, Dtype::f32, 1, squares);
  float* next = f32_of(squares_);
  for (const auto& weight : weights_) {
    const std::int64_t rows = weight->mine.rows * comm_->size();
    const Tensor all = ingot::vector(next, Dtype::f32, rows, backend_->device());
    gathered_squares_.push_back({.mine = part_of(all, comm_->rank(), comm_->size()), .all = all});
    next += rows;
  }
  if (needs_maxima_) list_maxima();
  if (!casts_.empty()) cast_list_ = backend_->make_cast_list(cast_spec_, casts_, *stream_);
  gather();
}

void DataParallel::list_maxima() {
  const auto count = static_cast<int>(casts_.size());
  for (ingot::OwnedTensor* each : {&maxima_, &scales_, &raised_}) {
    *each = ingot::OwnedTensor(*backend_, Dtype::f32, 1, count);
    clear(*each, *stream_);
  }
  std::vector<ingot::AmaxTensors> inputs;
  for (int i = 0; i < count; ++i) {
    ingot::CastTensors& cast = casts_[static_cast<std::size_t>(i)];
    cast.scales = part_of(scales_, i, count);
    cast.amax = part_of(raised_, i, count);
    inputs.push_back({.input = cast.input, .amax = part_of(maxima_, i, count)});
  }
  amax_list_ = backend_->make_amax_list({.in = cast_spec_.in}, inputs, *stream_);
}

void DataParallel::reduce_maxima(const ingot::DelayedScaling& delayed) {
  if (delayed.is_allocated()) comm_->all_reduce_max(delayed.amaxes(), *stream_);
}

void DataParallel::gather() {
  if (amax_list_ != nullptr) {
    amax_list_->run(*stream_);
    comm_->all_reduce_max(maxima_, *stream_);
    backend_->amax_scales({.out = cast_spec_.out, .pow2 = cast_spec_.pow2}, {.amax = maxima_, .scale = scales_},
                          *stream_);
  }
  if (cast_list_ != nullptr) cast_list_->run(*stream_);
  comm_->all_gather(gathered_, *stream_);
  for (const auto& weight : weights_) {
    if (!weight->layer) continue;
    const ingot::Float8View& codes = weight->codes;
    if (codes.transposed.data != nullptr) {
      backend_->relayout({.transposed = true}, {.input = codes.codes, .output = codes.transposed}, *stream_);
    }
    weight->layer->owner->weight_was_cast(weight->whole->weight(), *stream_);
  }
}

// ---- One step -------------------------------------------------------------------------------------------------------

float* DataParallel::loss() const { return static_cast<float*>(loss_->total.data); }

// Like carries of a binary counter: sum.total has one part, and each bit of `number` stands for parts that wait.
void DataParallel::add_in_pairs(Sum& sum, std::int64_t number) {
  const bool is_last = number + 1 == parts_;
  const std::int64_t count = sum.total.rows * sum.total.cols;
  for (std::size_t level = 0; level < sum.waiting.size(); ++level) {
    if ((number >> level & 1) != 0) {
      ops_->model.run(
          AddFloats{.values = f32_of(sum.waiting[level]), .sum = static_cast<float*>(sum.total.data), .count = count});
    } else if (!is_last) {
      const auto bytes = static_cast<std::size_t>(count) * sizeof(float);
      stream_->device_api().copy(sum.waiting[level].view().data, sum.total.data, bytes, *stream_);
      return;
    }
  }
}

void DataParallel::add_gradients(std::int64_t number) {
  for (const auto& weight : weights_) {
    comm_->reduce_scatter(weight->whole->grad, weight->mine.grad, *stream_);
    add_in_pairs(weight->gradient, number);
  }
  comm_->all_reduce_sum(loss_->total, *stream_);
  add_in_pairs(*loss_, number);
}

void DataParallel::step(const training::StepValues* now, float* losses) {
  ops_->training.run(
      training::AddLoss{.values = loss(), .count = 1, .share = 1.0F, .accumulate = false, .sums = losses, .now = now});
  if (options_->clip == 0) return optimizer_->update(ops_->training, now, nullptr);
  for (std::size_t i = 0; i < weights_.size(); ++i) {
    const training::Parameter& mine = weights_[i]->mine;
    ops_->training.run(training::SumOfSquares{.grad = f32_of(mine.grad),
                                              .count = mine.count,
                                              .partial = static_cast<float*>(gathered_squares_[i].mine.data),
                                              .width = mine.cols});
  }
  comm_->all_gather(gathered_squares_, *stream_);
  ops_->training.run(training::ClipScale{.partial = f32_of(squares_),
                                         .count = squares_.view().cols,
                                         .most = static_cast<float>(options_->clip),
                                         .norm = f32_of(norm_),
                                         .scale = f32_of(clip_scale_)});
  optimizer_->update(ops_->training, now, f32_of(clip_scale_));
}

}  // namespace train_lm
