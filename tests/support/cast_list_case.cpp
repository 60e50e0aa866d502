#include "support/cast_list_case.h"

namespace ingot::test {

std::vector<std::byte> bytes_of(const Tensor& tensor, Stream& stream) {
  std::vector<std::byte> bytes(byte_span(tensor, "listed"));
  if (!bytes.empty()) stream.device_api().copy_to_host(bytes.data(), tensor.data, bytes.size(), stream);
  return bytes;
}

ListedCast listed_cast(const CastSpec& spec, std::int64_t rows, std::int64_t cols, Stream& stream) {
  DeviceApi& device_api = stream.device_api();
  ListedCast made;
  const auto fill = [&](OwnedTensor& to, auto value_of) {
    to = OwnedTensor(device_api, Dtype::f32, 1, to.view().cols);
    std::vector<float> values(static_cast<std::size_t>(to.view().cols));
    for (std::size_t i = 0; i < values.size(); ++i) values[i] = value_of(i);
    if (!values.empty()) device_api.copy_from_host(to.view().data, values.data(), values.size() * 4, stream);
  };
  const auto poisoned = [&](Dtype dtype, std::int64_t r, std::int64_t c) {
    OwnedTensor tensor(device_api, dtype, r, c);
    const std::vector<unsigned char> poison(byte_span(tensor.view(), "listed"), 0xa5);
    if (!poison.empty()) device_api.copy_from_host(tensor.view().data, poison.data(), poison.size(), stream);
    return tensor;
  };
  made.input = OwnedTensor(device_api, spec.in, rows, cols);
  std::mt19937 random(static_cast<unsigned>(rows * 131 + cols));
  std::normal_distribution<float> normal(0.0F, 1.0F + static_cast<float>(cols % 5));
  std::vector<std::uint16_t> half(static_cast<std::size_t>(rows * cols));
  std::vector<float> full(half.size());
  for (std::size_t i = 0; i < half.size(); ++i) {
    full[i] = normal(random);
    half[i] = spec.in == Dtype::f16 ? from_float<f16>(full[i]).bits : from_float<bf16>(full[i]).bits;
  }
  const bool wide = spec.in == Dtype::f32;
  if (!half.empty()) {
    device_api.copy_from_host(made.input.view().data, wide ? static_cast<const void*>(full.data()) : half.data(),
                              half.size() * (wide ? 4 : 2), stream);
  }
  const std::int64_t count = scale_count(spec.scale, rows, cols);
  made.tensors.input = made.input;
  if (spec.codes) made.tensors.codes = made.codes = poisoned(spec.out, rows, cols);
  if (spec.transposed) made.tensors.transposed = made.transposed = poisoned(spec.out, cols, rows);
  made.tensors.scale_inv = made.scale_inv = poisoned(Dtype::f32, 1, count);
  if (spec.transposed_scale) {
    made.transposed_scale_inv = poisoned(Dtype::f32, 1, scale_count(*spec.transposed_scale, rows, cols));
    made.tensors.transposed_scale_inv = made.transposed_scale_inv;
  }
  if (spec.source == ScaleSource::given) {
    made.scales = poisoned(Dtype::f32, 1, count);
    fill(made.scales, [](std::size_t i) { return 0.5F + static_cast<float>(i % 3); });
    made.amax = poisoned(Dtype::f32, 1, count);
    fill(made.amax, [](std::size_t i) { return i % 2 == 0 ? 0.0F : 1e6F; });
    made.tensors.scales = made.scales;
    made.tensors.amax = made.amax;
  }
  return made;
}

const std::vector<std::pair<std::int64_t, std::int64_t>>& listed_shapes() {
  static const std::vector<std::pair<std::int64_t, std::int64_t>> shapes{{256, 384}, {1, 1},  {0, 128},  {130, 264},
                                                                         {512, 128}, {33, 0}, {77, 515}, {1000, 264}};
  return shapes;
}

CastSpec alone(CastSpec spec) {
  spec.in = spec.rounded.value_or(spec.in);
  spec.rounded.reset();
  spec.list = false;
  return spec;
}

std::string list_difference(const CastSpec& spec, Backend& backend, Stream& stream) {
  const std::unique_ptr<Backend> cpu = make_cpu_backend();
  Stream cpu_stream(*cpu);
  std::vector<ListedCast> listed, single;
  std::vector<CastTensors> tensors;
  for (const auto& [rows, cols] : listed_shapes()) {
    listed.push_back(listed_cast(spec, rows, cols, stream));
    tensors.push_back(listed.back().tensors);
    single.push_back(listed_cast(alone(spec), rows, cols, cpu_stream));
    cpu->cast(alone(spec), single.back().tensors, cpu_stream);
  }
  const std::unique_ptr<CastList> list = backend.make_cast_list(spec, tensors, stream);
  list->run(stream);
  list->run(stream);
  stream.device_api().synchronize(stream);
  for (std::size_t i = 0; i < listed.size(); ++i) {
    const auto differ = [&](const Tensor& a, const Tensor& b) {
      return bytes_of(a, stream) != bytes_of(b, cpu_stream);
    };
    const CastTensors& a = listed[i].tensors;
    const CastTensors& b = single[i].tensors;
    const char* what = differ(a.codes, b.codes)                                 ? "codes"
                       : differ(a.transposed, b.transposed)                     ? "transposed"
                       : differ(a.scale_inv, b.scale_inv)                       ? "scale_inv"
                       : differ(a.transposed_scale_inv, b.transposed_scale_inv) ? "transposed_scale_inv"
                       : differ(a.amax, b.amax)                                 ? "amax"
                                                                                : nullptr;
    if (what != nullptr) return std::string(what) + " of cast " + std::to_string(i);
  }
  return {};
}

std::vector<CastSpec> listed_specs() {
  std::vector<CastSpec> specs;
  for (const char* const line :
       {"cast bf16->e4m3fn scale=tensor out=codes,transposed", "cast bf16->e4m3fn scale=row+col out=codes,transposed",
        "cast f32->e5m2 scale=128x128 out=codes,transposed pow2", "cast f16->e4m3fnuz scale=row out=codes",
        "cast bf16->e5m2fnuz scale=col out=transposed", "cast bf16->e4m3fn scale=tensor out=codes given",
        "cast f32->e4m3fn scale=1x128+tensor out=codes,transposed",
        "cast f32->e4m3fn scale=row out=codes given rounded=bf16 list",
        "cast f32->e5m2 scale=tensor+128x1 out=codes,transposed rounded=f16 list"}) {
    specs.push_back(std::get<CastSpec>(parse(line)));
  }
  return specs;
}

}  // namespace ingot::test
