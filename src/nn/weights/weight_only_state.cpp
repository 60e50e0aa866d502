#include "ingot/nn/weights/weight_only.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "ingot/codegen/types/dtype.h"
#include "ingot/nn/weights/stored_weights.h"
#include "ingot/runtime/util/error.h"
#include "ingot/runtime/util/text.h"

namespace ingot {
namespace {

using Shape = std::vector<std::int64_t>;

// The type and shape that a file gives for a tensor.
struct Description {
  std::string type;
  Shape shape;
};

Description describe_weight(const WeightOnlyState& state) {
  const auto& [dtype, n, k] = std::tuple(state.options.dtype, state.out_features, state.in_features);
  if (is_packed(state.options.layout)) return {"U8", {packed_weight_bytes(dtype, n, k)}};
  if (is_sub_byte(dtype)) return {"U8", {n, row_bytes(dtype, k)}};
  return {std::string(safetensors_type(dtype)), {n, k}};
}

Description describe_scale(const WeightOnlyState& state) {
  const ScaleGranularity scale = state.options.mx ? kRowGroups32 : state.options.scale;
  const auto extents = [](std::int64_t size, int extent) { return extent == 0 ? 1 : (size + extent - 1) / extent; };
  Shape shape{extents(state.out_features, scale.rows), extents(state.in_features, scale.cols)};
  if (scale == kTensorwise) shape = {1};
  return {std::string(safetensors_type(state.options.mx ? Dtype::e8m0fnu : Dtype::f32)), std::move(shape)};
}

constexpr const char* kLayout = "ingot.layout";
constexpr const char* kVersion = "ingot.layout_version";
constexpr const char* kDtype = "ingot.dtype";
constexpr const char* kRows = "ingot.n";
constexpr const char* kCols = "ingot.k";
constexpr const char* kScale = "ingot.scale";

// The metadata of one layer in a file.
class Metadata {
 public:
  Metadata(const SafetensorsFile& file, std::string name) : file_(&file), name_(std::move(name)) {}

  [[noreturn]] void refuse(const char* key, const std::string& message) const {
    throw Error(ErrorCode::invalid_argument, file_->path().string(),
                fmt::format("the metadata \"{}{}\" {}", printable(name_), key, message));
  }

  const std::string& text(const char* key) const {
    const auto found = file_->metadata().find(name_ + key);
    if (found == file_->metadata().end()) {
      refuse(key,
             "is missing: save_weight_only() did not write this weight; codes and scales of other checkpoints go to "
             "WeightOnlyLinear::from_codes()");
    }
    return found->second;
  }

  std::int64_t size(const char* key) const {
    const std::string& digits = text(key);
    std::int64_t value = 0;
    const auto [end, problem] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    constexpr std::int64_t kLargest = std::int64_t{1} << 31U;
    if (problem != std::errc() || end != digits.data() + digits.size() || value < 0 || value > kLargest) {
      refuse(key, fmt::format("is \"{}\", but must be a size of 0 to 2^31", printable(digits)));
    }
    return value;
  }

 private:
  const SafetensorsFile* file_;
  std::string name_;
};

// Packed weights of another version can be read only by the library version that wrote them.
WeightLayout layout_of(const Metadata& metadata) {
  const std::string& text = metadata.text(kLayout);
  const std::optional<WeightLayout> layout = parse_weight_layout(text);
  if (!layout) {
    metadata.refuse(kLayout, fmt::format("is \"{}\", but must be {}", printable(text), kWeightLayoutNames));
  }
  if (!is_packed(*layout)) return *layout;
  const std::string& version = metadata.text(kVersion);
  if (version != std::to_string(kPackedLayoutVersion)) {
    metadata.refuse(kVersion, fmt::format("is \"{}\", but this library reads packed weights of version {}: pack the "
                                          "weight again, from its values or its codes",
                                          printable(version), kPackedLayoutVersion));
  }
  return *layout;
}

WeightOnlyState parse_metadata(const Metadata& metadata) {
  WeightOnlyState state;
  state.options.layout = layout_of(metadata);
  const std::string& dtype = metadata.text(kDtype);
  const std::optional<Dtype> parsed = parse_dtype(dtype);
  if (!parsed) metadata.refuse(kDtype, fmt::format("is \"{}\", which is not a dtype", printable(dtype)));
  if (!among(kWeightDtypes, *parsed)) {
    metadata.refuse(kDtype, fmt::format("is \"{}\", which a weight cannot have; it must be one of {}", name(*parsed),
                                        list(kWeightDtypes)));
  }
  state.options.dtype = *parsed;
  state.out_features = metadata.size(kRows);
  state.in_features = metadata.size(kCols);
  if (const std::string fault = weight_size_fault(state.out_features, state.in_features); !fault.empty()) {
    metadata.refuse(kRows, fault);
  }
  const std::string& scale = metadata.text(kScale);
  state.options.mx = scale == "mx";
  if (state.options.mx) {
    state.options.scale = kRowGroups32;
    return state;
  }
  const std::optional<ScaleGranularity> granularity = parse_granularity(scale);
  if (!granularity)
    metadata.refuse(kScale, fmt::format("is \"{}\", which is not a scale granularity", printable(scale)));
  state.options.scale = *granularity;
  return state;
}

std::vector<std::byte> read(const SafetensorsFile& file, const std::string& name, const Description& expected) {
  const StoredTensor& tensor = file.at(name);
  if (tensor.type != expected.type || tensor.shape != expected.shape) {
    throw Error(ErrorCode::invalid_argument, file.path().string(),
                fmt::format("the tensor \"{}\" is {} [{}], but according to the file's metadata it must be {} [{}]",
                            printable(name), tensor.type, fmt::join(tensor.shape, ", "), expected.type,
                            fmt::join(expected.shape, ", ")));
  }
  return file.read(tensor);
}

// Lists layer names as they are in the file, including a trailing dot.
[[noreturn]] void refuse_layer(const SafetensorsFile& file, const std::string& name) {
  std::vector<std::string> names;
  for (const auto& [key, value] : file.metadata()) {
    if (key.ends_with(kLayout))
      names.push_back(fmt::format("\"{}\"", printable(key.substr(0, key.size() - std::string_view(kLayout).size()))));
  }
  constexpr std::size_t kTold = 8;
  const bool more = names.size() > kTold;
  if (more) names.resize(kTold);
  throw Error(ErrorCode::not_found, file.path().string(),
              fmt::format("has no layer \"{}\", which would be a tensor \"{}weight\"; {}{}{}", printable(name),
                          printable(name), names.empty() ? "save_weight_only() wrote none into it" : "its layers: ",
                          fmt::join(names, ", "), more ? " and more" : ""));
}

}  // namespace

void save_weight_only(const std::filesystem::path& file, const std::map<std::string, WeightOnlyState>& layers) {
  std::vector<TensorToStore> tensors;
  std::map<std::string, std::string> metadata{{"format", "pt"}};  // which some readers require
  for (const auto& [name, state] : layers) {
    const WeightOnlyOptions& options = state.options;
    if (const std::string fault = weight_size_fault(state.out_features, state.in_features); !fault.empty()) {
      throw Error(ErrorCode::invalid_argument, fmt::format("WeightOnlyState \"{}\"", name), fault);
    }
    Description weight = describe_weight(state);
    Description scale = describe_scale(state);
    tensors.push_back({name + "weight", std::move(weight.type), std::move(weight.shape), state.weight});
    tensors.push_back({name + "weight_scale", std::move(scale.type), std::move(scale.shape), state.scale});
    metadata[name + kLayout] = ingot::name(options.layout);
    if (is_packed(options.layout)) metadata[name + kVersion] = std::to_string(kPackedLayoutVersion);
    metadata[name + kDtype] = ingot::name(options.dtype);
    metadata[name + kRows] = std::to_string(state.out_features);
    metadata[name + kCols] = std::to_string(state.in_features);
    metadata[name + kScale] = options.mx ? "mx" : print(options.scale);
  }
  write_safetensors(file, tensors, metadata);
}

WeightOnlyState load_weight_only(const SafetensorsFile& file, const std::string& name) {
  if (file.find(name + "weight") == nullptr) refuse_layer(file, name);
  WeightOnlyState state = parse_metadata(Metadata(file, name));
  state.weight = read(file, name + "weight", describe_weight(state));
  state.scale = read(file, name + "weight_scale", describe_scale(state));
  return state;
}

}  // namespace ingot
