// Casts a list on one backend and each of its tensors by itself on the CPU, and expects the same bits.
#pragma once

#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"

#include "numerics.cuh"

namespace ingot::test {

// The tensors of one cast, in a backend's memory.
struct ListedCast {
  OwnedTensor input, codes, transposed, scale_inv, transposed_scale_inv, scales, amax;
  CastTensors tensors{};
};

std::vector<std::byte> bytes_of(const Tensor& tensor, Stream& stream);

// The magnitude of the elements, and so of the scales, depends on `cols`.
ListedCast listed_cast(const CastSpec& spec, std::int64_t rows, std::int64_t cols, Stream& stream);

const std::vector<std::pair<std::int64_t, std::int64_t>>& listed_shapes();

// The spec of a single cast of the values that the list casts.
CastSpec alone(CastSpec spec);

// The first difference between the list on the stream's backend and single casts on the CPU; empty if there is none.
// The list runs twice: the second run finds the maxima as the first has left them.
std::string list_difference(const CastSpec& spec, Backend& backend, Stream& stream);

std::vector<CastSpec> listed_specs();

}  // namespace ingot::test
