#include "support/amax_list_case.h"

#include <bit>
#include <cmath>
#include <limits>
#include <memory>
#include <random>
#include <variant>

#include "ingot/codegen/kernel_spec.h"
#include "support/cast_list_case.h"

#include "numerics.cuh"

namespace ingot::test {
namespace {

float rounded_to(Dtype dtype, float value) {
  if (dtype == Dtype::bf16) return to_float(from_float<bf16>(value));
  return dtype == Dtype::f16 ? to_float(from_float<f16>(value)) : value;
}

std::vector<float> expected_maxima(ScaleGranularity scale, const Tensor& input, const std::vector<float>& values) {
  const std::int64_t rows = scale.rows == 0 ? std::max<std::int64_t>(1, input.rows) : scale.rows;
  const std::int64_t cols = scale.cols == 0 ? std::max<std::int64_t>(1, input.cols) : scale.cols;
  const std::int64_t across = scale.cols == 0 ? 1 : (input.cols + cols - 1) / cols;
  std::vector<float> maxima(static_cast<std::size_t>(scale_count(scale, input.rows, input.cols)));
  for (std::int64_t r = 0; r < input.rows; ++r) {
    for (std::int64_t c = 0; c < input.cols; ++c) {
      float& most = maxima[static_cast<std::size_t>(r / rows * across + c / cols)];
      const float value = std::fabs(values[static_cast<std::size_t>(r * input.cols + c)]);
      if (std::isnan(value)) most = std::numeric_limits<float>::quiet_NaN();
      if (value > most) most = value;
    }
  }
  return maxima;
}

std::vector<std::byte> bytes_of(const std::vector<float>& values) {
  const auto* const begin = reinterpret_cast<const std::byte*>(values.data());
  return {begin, begin + values.size() * sizeof(float)};
}

}  // namespace

ListedAmax::ListedAmax(const AmaxSpec& spec, Stream& stream) {
  DeviceApi& device = stream.device_api();
  std::mt19937 random(1);
  std::normal_distribution<float> normal;
  std::int64_t count = 0;
  for (const auto& [rows, cols] : listed_shapes()) {
    const std::size_t size = static_cast<std::size_t>(rows * cols);
    std::vector<float> of(size);
    for (float& value : of) value = rounded_to(spec.in, normal(random));
    if (rows == 130) of[133] = std::numeric_limits<float>::quiet_NaN();
    if (rows == 77) of[5] = -std::numeric_limits<float>::infinity();
    if (rows == 512) of[7] = rounded_to(spec.in, 65519.0F);  // the largest that f16 rounds down
    if (rows == 256) of[300] = rounded_to(spec.in, 1e20F);   // f16 has none such
    inputs.emplace_back(device, spec.in, rows, cols);
    std::vector<std::uint16_t> half(size);
    for (std::size_t i = 0; i < size; ++i) {
      half[i] = spec.in == Dtype::f16 ? from_float<f16>(of[i]).bits : from_float<bf16>(of[i]).bits;
    }
    const void* const source = spec.in == Dtype::f32 ? static_cast<const void*>(of.data()) : half.data();
    if (size != 0) {
      device.copy_from_host(inputs.back().view().data, source, byte_span(inputs.back(), "listed"), stream);
    }
    for (float& value : of) value = rounded_to(spec.rounded.value_or(spec.in), value);
    values.push_back(std::move(of));
    count += scale_count(spec.scale, rows, cols);
    if (spec.second_scale) count += scale_count(*spec.second_scale, rows, cols);
  }
  maxima = OwnedTensor(device, Dtype::f32, 1, count);
  const std::vector<float> poison(static_cast<std::size_t>(count), 1e30F);
  device.copy_from_host(maxima.view().data, poison.data(), poison.size() * sizeof(float), stream);
  auto* next = static_cast<float*>(maxima.view().data);
  const auto take = [&](ScaleGranularity scale, const Tensor& input) {
    const std::int64_t n = scale_count(scale, input.rows, input.cols);
    const Tensor part = vector(next, Dtype::f32, n, device.device());
    next += n;
    return part;
  };
  for (const OwnedTensor& input : inputs) {
    tensors.push_back({.input = input, .amax = take(spec.scale, input)});
    if (spec.second_scale) tensors.back().second_amax = take(*spec.second_scale, input);
  }
}

std::string amax_list_difference(const AmaxSpec& spec, Backend& backend, Stream& stream) {
  const ListedAmax listed(spec, stream);
  const std::unique_ptr<AmaxList> list = backend.make_amax_list(spec, listed.tensors, stream);
  list->run(stream);
  list->run(stream);
  stream.device_api().synchronize(stream);
  for (std::size_t i = 0; i < listed.tensors.size(); ++i) {
    const AmaxTensors& one = listed.tensors[i];
    const auto differs = [&](ScaleGranularity scale, const Tensor& amax) {
      return test::bytes_of(amax, stream) != bytes_of(expected_maxima(scale, one.input, listed.values[i]));
    };
    if (differs(spec.scale, one.amax)) return "amax " + std::to_string(i);
    if (spec.second_scale && differs(*spec.second_scale, one.second_amax)) return "second_amax " + std::to_string(i);
  }
  return {};
}

std::vector<AmaxSpec> amax_list_specs() {
  std::vector<AmaxSpec> specs;
  for (const char* const line :
       {"amax bf16 scale=tensor list", "amax f32 scale=row+col list", "amax f16 scale=tensor+row list",
        "amax f32 scale=128x128 rounded=bf16 list", "amax f32 scale=row+tensor rounded=f16 list",
        "amax bf16 scale=1x128+128x1 list", "amax f32 scale=col+128x128 rounded=bf16 list"}) {
    specs.push_back(std::get<AmaxSpec>(parse(line)));
  }
  return specs;
}

}  // namespace ingot::test
