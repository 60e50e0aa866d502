// The checks of a list of casts: each by itself, and that no output overlaps a tensor of another.
#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "ingot/runtime/cast/cast_operation.h"
#include "ingot/runtime/check.h"
#include "ingot/runtime/error.h"

namespace ingot {
namespace {

struct Listed {
  const char* what;
  std::size_t cast;
  bool output;
  Tensor tensor;

  std::string text() const { return fmt::format("{} of cast {}", what, cast); }
};

void append(const CastTensors& tensors, std::size_t cast, std::vector<Listed>& all) {
  const auto add = [&](const char* what, const Tensor& tensor, bool output) {
    if (tensor.data != nullptr && !tensor.empty()) all.push_back({what, cast, output, tensor});
  };
  add("input", tensors.input, false);
  add("scales", tensors.scales, false);
  add("transposed_scales", tensors.transposed_scales, false);
  for (const Tensor& input : tensors.inputs) add("inputs", input, false);
  add("codes", tensors.codes, true);
  add("transposed", tensors.transposed, true);
  add("factors", tensors.factors, true);
  add("transposed_factors", tensors.transposed_factors, true);
  add("amax", tensors.amax, true);
  add("transposed_amax", tensors.transposed_amax, true);
  add("result", tensors.result, true);
}

}  // namespace

void check_list(const CastSpec& spec, std::span<const CastTensors> tensors, Device device) {
  CastSpec each = spec;
  each.list = true;
  validate_spec(each);
  each.list = false;
  std::vector<Listed> all;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    try {
      check(each, tensors[i], device);
    } catch (const Error& error) {
      throw Error(error.code(), fmt::format("cast {} of {} of a list", i, tensors.size()), error.what());
    }
    append(tensors[i], i, all);
  }
  for (std::size_t a = 0; a < all.size(); ++a) {
    for (std::size_t b = 0; b < a; ++b) {
      if (all[a].cast == all[b].cast || (!all[a].output && !all[b].output)) continue;
      if (!overlap(all[a].tensor, all[b].tensor)) continue;
      const auto& [output, other] = all[a].output ? std::pair{all[a], all[b]} : std::pair{all[b], all[a]};
      throw Error(ErrorCode::invalid_argument, output.text(),
                  fmt::format("is {}; its memory overlaps that of the {}, which is {}; an output needs its own memory",
                              describe(output.tensor), other.text(), describe(other.tensor)));
    }
  }
}

}  // namespace ingot
