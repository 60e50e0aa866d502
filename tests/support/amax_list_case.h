// Finds the maxima of a list on one backend, and expects those of loops over the elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ingot/codegen/cast/amax_spec.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"

namespace ingot::test {

// Matrices of the spec's dtype, some without elements, one with NaN and one with Inf; and memory for the maxima of all,
// which is contiguous.
struct ListedAmax {
  ListedAmax(const AmaxSpec& spec, Stream& stream);

  std::vector<OwnedTensor> inputs{};
  std::vector<std::vector<float>> values{};  // of each input, as f32
  OwnedTensor maxima{};
  std::vector<AmaxTensors> tensors{};
};

// The first difference; empty if there is none. The list runs twice.
std::string amax_list_difference(const AmaxSpec& spec, Backend& backend, Stream& stream);

std::vector<AmaxSpec> amax_list_specs();

}  // namespace ingot::test
