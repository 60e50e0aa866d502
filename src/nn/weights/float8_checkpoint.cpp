#include "ingot/nn/weights/float8_checkpoint.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <cstring>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ingot/codegen/types/matmul_size.h"
#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/linear_functions.h"
#include "ingot/nn/weights/stored_weights.h"
#include "ingot/runtime/util/count_of.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/text.h"

namespace ingot {
namespace {

using Found = SafetensorsCheckpoint::Found;
using Shape = std::vector<std::int64_t>;

constexpr std::array kGranularities{kTensorwise, kRowwise, kBlocks, kRowGroups};

const char* name_of(ScaleName name) { return name == ScaleName::weight_scale ? "weight_scale" : "weight_scale_inv"; }

Shape shape_of(ScaleGranularity scale, std::int64_t n, std::int64_t k) {
  if (scale == kTensorwise) return {1};
  return {divided_up(n, scale.rows), scale.cols == 0 ? 1 : divided_up(k, scale.cols)};
}

// ---- loading -------------------------------------------------------------------------------------------------------

[[noreturn]] void refuse(const Found& found, const std::string& message) {
  const StoredTensor& tensor = *found.tensor;
  throw Error(ErrorCode::invalid_argument, found.file->path().string(),
              fmt::format("the tensor \"{}\" is {} [{}]{}", printable(tensor.name), tensor.type,
                          fmt::join(tensor.shape, ", "), message));
}

// The tensor that has one of two names; none if it has neither.
std::optional<Found> find_one(const SafetensorsCheckpoint& checkpoint, const std::string& name, const char* first,
                              const char* second) {
  const bool has_first = checkpoint.has(name + first);
  if (has_first && checkpoint.has(name + second)) {
    refuse(checkpoint.at(name + first),
           fmt::format(", and \"{}{}\" is there too: leave one of them", printable(name), second));
  }
  if (has_first) return checkpoint.at(name + first);
  if (checkpoint.has(name + second)) return checkpoint.at(name + second);
  return std::nullopt;
}

Found find_codes(const SafetensorsCheckpoint& checkpoint, const std::string& name) {
  if (!checkpoint.has(name + "weight")) {
    throw Error(ErrorCode::not_found, checkpoint.path().string(),
                fmt::format("has no weight \"{}\", which would be a tensor \"{}weight\": give the prefix of the "
                            "tensor's name, with its last dot",
                            printable(name), printable(name)));
  }
  const Found found = checkpoint.at(name + "weight");
  const StoredTensor& tensor = *found.tensor;
  if (tensor.dtype != Dtype::e4m3fn && tensor.dtype != Dtype::e5m2) {
    refuse(found, ", but FP8 weights are F8_E4M3 or F8_E5M2: cast_weight() takes weights in high precision");
  }
  if (tensor.shape.size() != 2) refuse(found, ", but must be a matrix [out_features, in_features]");
  if (const std::string fault = weight_size_fault(tensor.shape[0], tensor.shape[1]); !fault.empty()) {
    refuse(found, ": " + fault);
  }
  return found;
}

std::vector<float> read_scales(const Found& found) {
  const std::optional<Dtype> dtype = found.tensor->dtype;
  if (!dtype || (!is_high_precision(*dtype) && *dtype != Dtype::e8m0fnu)) {
    refuse(found, ", but scales are F32, BF16, F16 or F8_E8M0");
  }
  return scale_values(*dtype, found.file->read(*found.tensor));
}

bool is_single(const Shape& shape) { return shape.empty() || shape == Shape{1} || shape == Shape{1, 1}; }

ScaleGranularity granularity_of(const Found& scale, std::int64_t n, std::int64_t k,
                                std::optional<ScaleGranularity> of_one) {
  const Shape& shape = scale.tensor->shape;
  if (is_single(shape)) {
    const bool is_block = shape.size() == 2 && scale.tensor->name.ends_with("weight_scale_inv");
    const ScaleGranularity one = of_one.value_or(is_block ? kBlocks : kTensorwise);
    return scale_count(one, n, k) == 1 ? one : kTensorwise;
  }
  if (shape == Shape{n}) return kRowwise;
  for (const ScaleGranularity each : {kRowwise, kBlocks, kRowGroups}) {
    if (shape == shape_of(each, n, k)) return each;
  }
  refuse(scale,
         fmt::format(", but the weight [{}, {}] has one factor, [{}, 1] for rows, [{}] for 128 x 128 blocks or "
                     "[{}] for groups of a row",
                     n, k, n, fmt::join(shape_of(kBlocks, n, k), ", "), fmt::join(shape_of(kRowGroups, n, k), ", ")));
}

// ---- scale_inv
// -------------------------------------------------------------------------------------------------------

// The rows or columns of one part, of `size`; 0 is all of them.
std::int64_t extent(int of_scale, std::int64_t size) {
  return of_scale == 0 || of_scale >= size ? std::max<std::int64_t>(size, 1) : of_scale;
}

}  // namespace

Float8WeightState load_float8_weight(const SafetensorsCheckpoint& checkpoint, const std::string& name,
                                     std::optional<ScaleGranularity> of_one) {
  const Found codes = find_codes(checkpoint, name);
  const std::optional<Found> scale = find_one(checkpoint, name, "weight_scale", "weight_scale_inv");
  if (!scale) {
    refuse(codes,
           fmt::format(", but comes without scale_inv: neither \"{}weight_scale\" nor \"{}weight_scale_inv\" is there",
                       printable(name), printable(name)));
  }
  Float8WeightState state{
      .dtype = *codes.tensor->dtype, .out_features = codes.tensor->shape[0], .in_features = codes.tensor->shape[1]};
  state.scale = granularity_of(*scale, state.out_features, state.in_features, of_one);
  state.scale_inv = read_scales(*scale);
  if (const std::optional<Found> input = find_one(checkpoint, name, "input_scale", "activation_scale")) {
    if (!is_single(input->tensor->shape)) refuse(*input, ", but a static activation scale is one number");
    state.input_scale_inv = read_scales(*input)[0];
  }
  state.codes = codes.file->read(*codes.tensor);
  return state;
}

std::optional<std::vector<float>> scale_inv_for(const Float8WeightState& state, ScaleGranularity scale) {
  const std::int64_t n = state.out_features;
  const std::int64_t k = state.in_features;
  const std::int64_t rows = extent(scale.rows, n);
  const std::int64_t cols = extent(scale.cols, k);
  const std::int64_t rows_here = extent(state.scale.rows, n);
  const std::int64_t cols_here = extent(state.scale.cols, k);
  const bool within_rows = rows_here >= n || rows_here % rows == 0;
  const bool within_cols = cols_here >= k || cols_here % cols == 0;
  if (scale == state.scale) return state.scale_inv;
  if (!within_rows || !within_cols) return std::nullopt;
  std::vector<float> scale_inv(static_cast<std::size_t>(scale_count(scale, n, k)));
  const std::int64_t in_row = divided_up(std::max<std::int64_t>(k, 1), cols);
  const std::int64_t in_row_here = divided_up(std::max<std::int64_t>(k, 1), cols_here);
  for (std::size_t i = 0; i < scale_inv.size(); ++i) {
    const auto index = static_cast<std::int64_t>(i);
    const std::int64_t row = index / in_row * rows / rows_here;
    const std::int64_t col = index % in_row * cols / cols_here;
    scale_inv[i] = state.scale_inv[static_cast<std::size_t>(row * in_row_here + col)];
  }
  return scale_inv;
}

// ---- saving --------------------------------------------------------------------------------------------------------

void check_float8_weight(const std::string& subject, const Float8WeightState& state) {
  const auto refuse_state = [&](const std::string& message) {
    throw Error(ErrorCode::invalid_argument, subject, message);
  };
  const std::int64_t n = state.out_features;
  const std::int64_t k = state.in_features;
  if (state.dtype != Dtype::e4m3fn && state.dtype != Dtype::e5m2) {
    refuse_state(fmt::format("has codes of {}, but FP8 weights are e4m3fn or e5m2", name(state.dtype)));
  }
  if (!among(kGranularities, state.scale)) {
    refuse_state(fmt::format("has scale={}, but it must be {}", print(state.scale), one_of(kGranularities)));
  }
  if (const std::string fault = weight_size_fault(n, k); !fault.empty()) refuse_state(fault);
  if (state.codes.size() != static_cast<std::size_t>(n * k)) {
    refuse_state(
        fmt::format("has {} of codes, but [{}, {}] has {}", count_of(state.codes.size(), "byte"), n, k, n * k));
  }
  if (const std::int64_t count = scale_count(state.scale, n, k);
      state.scale_inv.size() != static_cast<std::size_t>(count)) {
    refuse_state(fmt::format("has {} scale_inv, but [{}, {}] with scale={} has {}: codes come with their scale_inv",
                             state.scale_inv.size(), n, k, print(state.scale), count));
  }
}

std::vector<TensorToStore> tensors_to_store(const std::string& name, const Float8WeightState& state,
                                            ScaleName scale_name) {
  check_float8_weight(fmt::format("Float8WeightState \"{}\"", printable(name)), state);
  const std::string f32(safetensors_type(Dtype::f32));
  std::vector<TensorToStore> tensors{{.name = name + "weight",
                                      .type = std::string(safetensors_type(state.dtype)),
                                      .shape = {state.out_features, state.in_features},
                                      .bytes = state.codes},
                                     {.name = name + name_of(scale_name),
                                      .type = f32,
                                      .shape = shape_of(state.scale, state.out_features, state.in_features),
                                      .bytes = std::as_bytes(std::span(state.scale_inv))}};
  if (state.input_scale_inv) {
    tensors.push_back({.name = name + "input_scale",
                       .type = f32,
                       .shape = {1},
                       .bytes = std::as_bytes(std::span(&*state.input_scale_inv, 1))});
  }
  return tensors;
}

void save_float8_weights(const std::filesystem::path& file, const std::map<std::string, Float8WeightState>& weights,
                         ScaleName scale_name) {
  std::vector<TensorToStore> tensors;
  for (const auto& [name, state] : weights) {
    for (TensorToStore& tensor : tensors_to_store(name, state, scale_name)) tensors.push_back(std::move(tensor));
  }
  write_safetensors(file, tensors, {{"format", "pt"}});  // which some readers require
}

namespace {

[[noreturn]] void refuse(const LinearPlan& plan, const std::string& message) {
  refuse_argument((plan.subject + " weight").c_str(), message);
}

// The codes as a place has them: with its row stride, and transposed where asked.
std::vector<std::byte> laid_out(const Float8WeightState& state, const TensorPlace& place, bool transposed) {
  std::vector<std::byte> bytes(place.bytes());
  const auto in = static_cast<std::size_t>(state.in_features);
  const auto stride = static_cast<std::size_t>(place.row_stride);
  for (std::size_t r = 0; r < static_cast<std::size_t>(state.out_features) && in != 0; ++r) {
    const std::byte* const row = &state.codes[r * in];
    if (!transposed) {
      std::memcpy(&bytes[r * stride], row, in);
      continue;
    }
    for (std::size_t c = 0; c < in; ++c) bytes[c * stride + r] = row[c];
  }
  return bytes;
}

void copy(DeviceApi& device_api, const std::vector<std::byte>& from, const Tensor& to, Stream& stream) {
  if (!from.empty()) device_api.copy_from_host(to.data, from.data(), from.size(), stream);
}

void copy_scale_inv(DeviceApi& device_api, const std::vector<float>& from, const Tensor& to, Stream& stream) {
  if (!from.empty()) device_api.copy_from_host(to.data, from.data(), from.size() * sizeof(float), stream);
}

std::vector<float> scale_inv_of(const LinearPlan& plan, const Float8WeightState& state, ScaleGranularity scale,
                                const char* gemm) {
  if (std::optional<std::vector<float>> scale_inv = scale_inv_for(state, scale)) return *std::move(scale_inv);
  const bool rows =
      state.scale == kRowwise && is_float8(plan.config.output) && plan.config.output.b->granularity == kRowwise;
  refuse(plan, fmt::format("has scale_inv with scale={}, but the {} GEMM takes scale={} of the weight: {}",
                           print(state.scale), gemm, print(scale),
                           rows ? "rowwise_folded() multiplies with scale_inv of rows in both directions, and "
                                  "inference_config() needs no grad_input"
                                : "choose a recipe that casts the weight with the checkpoint's scales"));
}

void check_state(const LinearPlan& plan, const Float8WeightState& state) {
  check_float8_weight(plan.subject + " weight", state);
  if (!plan.weight.any) {
    refuse(plan, "is given in FP8, but the config has no FP8 codes of it: choose a recipe that casts the weight");
  }
  if (state.out_features != plan.shape.out_features || state.in_features != plan.shape.in_features) {
    refuse(plan, fmt::format("is [{}, {}], but must be [{}, {}] = [out_features, in_features]", state.out_features,
                             state.in_features, plan.shape.out_features, plan.shape.in_features));
  }
  if (state.dtype == plan.weight.spec.out) return;
  refuse(plan, fmt::format("has codes of {}, but the config casts the weight to {}: give the config's casts of the "
                           "weight the checkpoint's format",
                           name(state.dtype), name(plan.weight.spec.out)));
}

}  // namespace

Float8WeightState weight_state(const LinearPlan& plan, Backend& backend, const Float8View& codes, Stream& stream) {
  if (!plan.weight.any || !plan.weight.spec.codes) {
    refuse(plan, "has no FP8 codes for the output GEMM, which is in high precision: there is nothing to take out");
  }
  check_weight_codes(plan, backend, codes);
  const auto [in, out, bias] = plan.shape;
  Float8WeightState state{
      .dtype = plan.weight.spec.out, .scale = plan.weight.spec.scale, .out_features = out, .in_features = in};
  std::vector<std::byte> rows(byte_span(codes.codes, "codes"));
  state.scale_inv.resize(static_cast<std::size_t>(scale_count(state.scale, out, in)));
  if (!rows.empty()) backend.device_api().copy_to_host(rows.data(), codes.codes.data, rows.size(), stream);
  if (!state.scale_inv.empty()) {
    backend.device_api().copy_to_host(state.scale_inv.data(), codes.scale_inv.data,
                                      state.scale_inv.size() * sizeof(float), stream);
  }
  backend.device_api().synchronize(stream);
  const auto row_bytes = static_cast<std::size_t>(in);
  state.codes.resize(row_bytes * static_cast<std::size_t>(out));
  for (std::size_t r = 0; r < static_cast<std::size_t>(out) && row_bytes != 0; ++r) {
    std::memcpy(&state.codes[r * row_bytes], &rows[r * static_cast<std::size_t>(codes.codes.row_stride)], row_bytes);
  }
  return state;
}

Float8View weight_from_state(const LinearPlan& plan, Backend& backend, const Float8WeightState& state,
                             const MemoryRegion& into, Stream& stream) {
  check_state(plan, state);
  check_region(plan, "into", into, plan.weight_memory().bytes);
  if (backend.device_api().capturing(stream)) {
    refuse(plan, "is copied from the host, which a graph cannot capture: copy it before the capture");
  }
  const CastSpec& spec = plan.weight.spec;
  const std::vector<float> scale_inv = scale_inv_of(plan, state, spec.scale, spec.codes ? "output" : "grad_input");
  std::vector<float> of_transposed;
  if (spec.transposed_scale) of_transposed = scale_inv_of(plan, state, *spec.transposed_scale, "grad_input");
  const Float8View codes = weight_codes(plan, into, backend.device());
  const LinearWeightMemory memory = plan.weight_memory();
  if (spec.codes) copy(backend, laid_out(state, memory.codes, false), codes.codes, stream);
  if (spec.codes && spec.transposed) {
    if (!codes.codes.empty()) {
      backend.relayout({.transposed = true}, {.input = codes.codes, .output = codes.transposed}, stream);
    }
  } else if (spec.transposed) {
    copy(backend, laid_out(state, memory.transposed, true), codes.transposed, stream);
  }
  copy_scale_inv(backend, scale_inv, codes.scale_inv, stream);
  copy_scale_inv(backend, of_transposed, codes.transposed_scale_inv, stream);
  return codes;
}

}  // namespace ingot
