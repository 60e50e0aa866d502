#include "ingot/nn/dist/parallel_layer.h"

#include <fmt/format.h>

#include <array>
#include <span>
#include <utility>

#include "ingot/nn/linear/linear_checker.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/runtime/util/count_of.h"

namespace ingot {
namespace {

// One rank has all of every tensor.
DividedTensors divided_by(const Comm& comm, const DividedTensors& divided) {
  return comm.size() == 1 ? DividedTensors{} : divided;
}

// This rank's part of the rows of all ranks, or of the elements of a vector.
Tensor own_rows(const Tensor& all, const Comm& comm) {
  Tensor own = all;
  own.rows = all.rows / comm.size();
  const std::int64_t begin = own.rows * own.row_stride * comm.rank();
  if (all.data != nullptr) own.data = static_cast<std::byte*>(all.data) + begin * size_of(all.dtype);
  return own;
}

Tensor own_elements(const Tensor& all, const Comm& comm) {
  const Tensor own = own_rows(matrix(all.data, all.dtype, all.cols, 1, all.device), comm);
  return vector(own.data, own.dtype, own.rows, own.device);
}

}  // namespace

ParallelLayer::ParallelLayer(Backend& backend, Comm& comm, ParallelLinearOptions options, const char* kind,
                             const LinearShape& part, const DividedTensors& divided)
    : backend_(&backend),
      comm_(&comm),
      options_(std::move(options)),
      kind_(kind),
      plan_(linear_plan({.name = options_.name,
                         .config = with_given_scales(options_.config, divided_by(comm, divided)),
                         .shape = part,
                         .dtypes = options_.dtypes,
                         .subject = fmt::format("{} \"{}\"", kind, options_.name)})),
      scales_(backend, plan_, options_.config, divided_by(comm, divided), options_.delayed) {
  if (comm.device() == backend.device()) return;
  refuse_argument(plan_.subject.c_str(), fmt::format("is on {}, but its Comm is on {}: make both of one context",
                                                     print(backend.device()), print(comm.device())));
}

// ---- checks ---------------------------------------------------------------------------------------------------------

void ParallelLayer::refuse(const char* tensor, const std::string& message) const {
  refuse_argument(fmt::format("{} {}", plan_.subject, tensor).c_str(), message);
}

std::int64_t ParallelLayer::tokens_of_a_rank(std::int64_t tokens) const {
  if (!divides_tokens()) return tokens;
  if (tokens % comm_->size() == 0) return tokens / comm_->size();
  refuse("input",
         fmt::format("has {}, which {} ranks do not divide: pad the batch", count_of(tokens, "token"), comm_->size()));
}

void ParallelLayer::check_exchanged(const char* name, const Tensor& tensor, Dtype dtype, std::int64_t rows,
                                    std::int64_t cols) const {
  LinearChecker(plan_, *backend_)
      .all({name, &tensor}, dtype, ", the plan's dtype", rows, cols, "[this rank's tokens, features]");
  if (tensor.rows <= 1 || tensor.row_stride == tensor.cols) return;
  refuse(name, fmt::format("is {}, but must be contiguous, as the ranks exchange it", describe(tensor)));
}

// ---- the weight -----------------------------------------------------------------------------------------------------

void ParallelLayer::cast_weight(const Tensor& weight, Stream& stream) {
  if (weight_is_current_ && weight.data == cast_weight_.data && weight.row_stride == cast_weight_.row_stride) return;
  weight_is_current_ = false;
  weight_scale_ = scale(LinearTensor::weight, weight, stream);
  if (plan_.weight.any) {
    const MemoryRegion into = weight_memory_.reserve(*backend_, plan_.weight_memory().bytes, stream);
    codes_ = enqueue_cast_weight(plan_, *backend_, {.weight = weight, .into = into, .scale = weight_scale_}, {stream});
  }
  cast_weight_ = weight;
  weight_is_current_ = !backend_->device_api().capturing(stream);
}

// ---- forward and backward -------------------------------------------------------------------------------------------

void ParallelLayer::renew_kept(std::int64_t tokens, std::size_t more, Stream& stream) {
  MemoryPlaces places;
  const std::size_t own = plan_.saved_memory(tokens).bytes;
  places.region(own);
  const std::size_t begin = places.region(more);
  kept_ = {};
  const MemoryRegion memory = saved_memory_.renew(*backend_, places.bytes(), stream);
  kept_.saved.memory = memory;
  kept_.more = part_of(memory, begin, more);
}

void ParallelLayer::run_forward(LinearForwardTensors all, bool keeps, Stream& stream) {
  cast_weight(all.weight, stream);
  all.codes = codes_;
  if (keeps) {
    all.saved = &kept_.saved;
    kept_.input = all.input;
    kept_.weight = all.weight;
    kept_.input_scale = all.scales.input;
  }
  enqueue_linear_pass(plan_, *backend_, all, keeps ? LinearPass::training : LinearPass::inference, {stream});
}

void ParallelLayer::check_backward(LinearBackwardTensors all, Stream& stream) const {
  all.saved = &kept_.saved;
  check_backward_tensors(plan_, *backend_, all, stream);
  refuse_one_element(plan_, all);
}

void ParallelLayer::run_backward(LinearBackwardTensors all, Stream& stream) {
  all.saved = &kept_.saved;
  all.input = kept_.input;
  all.weight = kept_.weight;
  all.codes = codes_;
  all.scales.input = kept_.input_scale;
  all.scales.weight = weight_scale_;
  all.scales.one = scales_.one(stream);
  enqueue_linear_backward(plan_, *backend_, all, {stream});
}

// ---- gathers --------------------------------------------------------------------------------------------------------

Gather ParallelLayer::gather_of(bool as_codes) const {
  if (!divides_tokens()) return Gather::none;
  return as_codes ? Gather::codes : Gather::values;
}

void ParallelLayer::place(ParallelScratch& scratch, MemoryPlaces& places, Gather how, const LinearCast& cast,
                          Dtype values, const TensorPlace& codes, std::int64_t rows, std::int64_t cols) {
  if (how == Gather::values) places.values(scratch.gathered, values, rows, cols);
  const bool has_place = codes.used && codes.row_stride == cols;
  if (how == Gather::codes && !has_place) places.values(scratch.gathered, cast.spec.out, rows, cols);
}

void ParallelLayer::gather_codes(const LinearCast& cast, const LinearScale& scale, const Tensor& part,
                                 const Float8View& into, const Tensor& gathered, Stream& stream) {
  const bool apart = is_given(gathered);
  const Tensor all = apart ? gathered : into.codes;
  CastSpec spec = cast.spec;
  spec.codes = true;
  spec.transposed = false;
  const bool is_whole = spec.scale == kTensorwise;
  const Tensor& scale_inv = is_given(into.codes) ? into.scale_inv : into.transposed_scale_inv;
  CastTensors tensors{.input = part,
                      .codes = own_rows(all, *comm_),
                      .scale_inv = is_whole ? scale_inv : own_elements(scale_inv, *comm_)};
  if (spec.source == ScaleSource::given) {
    tensors.scales = scale.scale;
    tensors.amax = scale.amax;
  }
  backend_->cast(spec, tensors, stream);
  const std::array pairs{GatherTensors{tensors.codes, all}, GatherTensors{tensors.scale_inv, scale_inv}};
  comm_->all_gather(std::span(pairs).first(is_whole ? 1 : 2), stream);
  if (apart && is_given(into.codes)) backend_->relayout({}, {.input = all, .output = into.codes}, stream);
  if (!is_given(into.transposed)) return;
  backend_->relayout({.transposed = true}, {.input = all, .output = into.transposed}, stream);
}

void ParallelLayer::gather_values(const Tensor& part, const Tensor& all, Stream& stream) {
  comm_->all_gather(std::array{GatherTensors{part, all}}, stream);
}

SharedLayer ParallelLayer::shared() const {
  const LinearShape& shape = options_.shape;
  return {.name = options_.name,
          .description = fmt::format("{}{}, {} [{}, {}]{}, {}", kind_,
                                     options_.sequence_parallel ? " with sequence parallelism" : "",
                                     name(*plan_.dtypes.weight), shape.out_features, shape.in_features,
                                     shape.bias ? " and bias" : "", print(options_.config))};
}

}  // namespace ingot
