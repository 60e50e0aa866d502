#include "ingot/nn/weights/linear_weight.h"

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/linear/linear_checks.h"
#include "ingot/nn/linear/linear_functions.h"

namespace ingot {
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

void copy(Backend& backend, const std::vector<std::byte>& from, const Tensor& to, Stream& stream) {
  if (!from.empty()) backend.copy_from_host(to.data, from.data(), from.size(), stream);
}

void copy_factors(Backend& backend, const std::vector<float>& from, const Tensor& to, Stream& stream) {
  if (!from.empty()) backend.copy_from_host(to.data, from.data(), from.size() * sizeof(float), stream);
}

std::vector<float> factors_of(const LinearPlan& plan, const Float8WeightState& state, ScaleGranularity scale,
                              const char* gemm) {
  if (std::optional<std::vector<float>> factors = factors_for(state, scale)) return *std::move(factors);
  const bool rows =
      state.scale == kRowwise && is_float8(plan.config.output) && plan.config.output.b->granularity == kRowwise;
  refuse(plan, fmt::format("has factors with scale={}, but the {} GEMM takes scale={} of the weight: {}",
                           print(state.scale), gemm, print(scale),
                           rows ? "rowwise_folded() multiplies with factors of rows in both directions, and "
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
  state.factors.resize(static_cast<std::size_t>(scale_count(state.scale, out, in)));
  if (!rows.empty()) backend.copy_to_host(rows.data(), codes.codes.data, rows.size(), stream);
  if (!state.factors.empty()) {
    backend.copy_to_host(state.factors.data(), codes.factors.data, state.factors.size() * sizeof(float), stream);
  }
  backend.synchronize(stream);
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
  if (backend.capturing(stream)) {
    refuse(plan, "is copied from the host, which a graph cannot capture: copy it before the capture");
  }
  const CastSpec& spec = plan.weight.spec;
  const std::vector<float> factors = factors_of(plan, state, spec.scale, spec.codes ? "output" : "grad_input");
  std::vector<float> of_transposed;
  if (spec.transposed_scale) of_transposed = factors_of(plan, state, *spec.transposed_scale, "grad_input");
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
  copy_factors(backend, factors, codes.factors, stream);
  copy_factors(backend, of_transposed, codes.transposed_factors, stream);
  return codes;
}

}  // namespace ingot
