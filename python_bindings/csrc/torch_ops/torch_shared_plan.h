// The plan of two or three linear layers that share their input, perhaps after a norm: the first layer casts the
// input, or the norm's values, and the others take its codes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "ingot/nn/linear/memory_places.h"
#include "ingot/nn/modules/norm_linear_plan.h"

namespace ingot::python {

constexpr std::size_t kMostLayers = 3;

// Where each layer's own region begins in the memory that a forward leaves.
struct SharedSavedMemory {
  std::array<std::size_t, kMostLayers> begin{};
  std::array<std::size_t, kMostLayers> size{};
  std::size_t bytes = 0;
};

struct SharedLinearPlan {
  NormLinearPlan first;
  std::vector<LinearPlan> others;
  std::uint64_t identity = 0;

  std::size_t count() const { return 1 + others.size(); }
  const LinearPlan& layer(std::size_t at) const { return at == 0 ? first.linear : others[at - 1]; }

  SharedSavedMemory saved_memory(std::int64_t tokens) const {
    SharedSavedMemory memory;
    MemoryPlaces places;
    for (std::size_t at = 0; at < count(); ++at) {
      memory.size[at] = at == 0 ? first.saved_memory(tokens).bytes : others[at - 1].saved_memory(tokens).bytes;
      memory.begin[at] = places.region(memory.size[at]);
    }
    memory.bytes = places.bytes();
    return memory;
  }
  // Where the codes of a layer's weight begin.
  std::size_t codes_begin(std::size_t layer_index) const {
    std::size_t begin = 0;
    for (std::size_t at = 0; at < layer_index; ++at) begin += layer(at).weight_memory().bytes;
    return begin;
  }
};

}  // namespace ingot::python
