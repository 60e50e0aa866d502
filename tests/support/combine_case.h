// Sums of the rows of tokens on one backend, and by a loop of additions in f32, which have to have the same bits.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

#include "ingot/codegen/cast/combine_spec.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "support/guarded_matrix.h"

#include "numerics.cuh"

namespace ingot::test {

struct CombineCase {
  Dtype dtype = Dtype::bf16;
  std::int64_t tokens = 0, choices = 0, rows = 0, cols = 0;
  std::int64_t padding = 0;  // elements after each row
  std::int64_t offset = 0;   // elements before the first
};

inline std::string describe(const CombineCase& c) {
  return fmt::format("combine {} of {} tokens, {} of {} rows of {} columns, padding {}, offset {}", name(c.dtype),
                     c.tokens, c.choices, c.rows, c.cols, c.padding, c.offset);
}

// Tokens of no rows, one and more than are fetched at once, rows of any alignment.
inline std::vector<CombineCase> combine_cases() {
  std::vector<CombineCase> cases;
  for (const Dtype dtype : {Dtype::bf16, Dtype::f16, Dtype::f32}) {
    cases.push_back({.dtype = dtype, .tokens = 5, .choices = 8, .rows = 40, .cols = 64});
    cases.push_back({.dtype = dtype, .tokens = 9, .choices = 3, .rows = 27, .cols = 2072, .padding = 8});
    cases.push_back({.dtype = dtype, .tokens = 7, .choices = 2, .rows = 3, .cols = 77, .padding = 3, .offset = 1});
    cases.push_back({.dtype = dtype, .tokens = 4, .choices = 19, .rows = 11, .cols = 130, .padding = 6});
    cases.push_back({.dtype = dtype, .tokens = 3, .choices = 0, .rows = 2, .cols = 16});
    cases.push_back({.dtype = dtype, .tokens = 3, .choices = 2, .rows = 0, .cols = 16});
    cases.push_back({.dtype = dtype, .tokens = 0, .choices = 0, .rows = 4, .cols = 16});
    cases.push_back({.dtype = dtype, .tokens = 1, .choices = 1, .rows = 1, .cols = 1});
  }
  return cases;
}

inline float element_of(const GuardedMatrix& of, std::int64_t r, std::int64_t c) {
  return static_cast<float>(of.value(r, c));
}

inline std::uint32_t bits_of(Dtype dtype, float value) {
  if (dtype == Dtype::bf16) return from_float<bf16>(value).bits;
  if (dtype == Dtype::f16) return from_float<f16>(value).bits;
  return float_bits(from_float<f32>(value));
}

// The first difference of a call, or a byte that it wrote elsewhere; empty if there is none. Some indices name no row:
// one below 0, one from `rows` on.
inline std::string combine_fault(const CombineCase& c, Backend& backend, Stream& stream) {
  std::mt19937 random(7);
  GuardedMatrix input(c.dtype, c.rows, c.cols, c.padding, c.offset);
  GuardedMatrix output(c.dtype, c.tokens, c.cols, c.padding, c.offset);
  for (std::int64_t r = 0; r < c.rows; ++r) {
    for (std::int64_t col = 0; col < c.cols; ++col) {
      const auto value = static_cast<float>(static_cast<int>(random() % 4001) - 2000) / 37.0F;
      input.set_bits(r, col, bits_of(c.dtype, r == 1 && col == 0 ? float_from_bits(0x7fc00000U) : value));
    }
  }
  std::vector<std::int32_t> index(static_cast<std::size_t>(c.tokens * c.choices));
  for (std::int32_t& each : index) each = static_cast<std::int32_t>(random() % static_cast<unsigned>(c.rows + 3)) - 1;
  std::vector<std::uint32_t> expected;
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t col = 0; col < c.cols; ++col) {
      float sum = 0;
      for (std::int64_t j = 0; j < c.choices; ++j) {
        const std::int64_t row = index[static_cast<std::size_t>(t * c.choices + j)];
        if (row >= 0 && row < c.rows) sum += element_of(input, row, col);
      }
      expected.push_back(bits_of(c.dtype, sum));
    }
  }
  DeviceApi& device = backend.device_api();
  const Buffer from(backend, input.bytes().size()), to(backend, output.bytes().size()),
      indices(backend, index.size() * sizeof(std::int32_t) + 1);
  device.copy_from_host(from.data(), input.bytes().data(), input.bytes().size(), stream);
  device.copy_from_host(to.data(), output.bytes().data(), output.bytes().size(), stream);
  device.copy_from_host(indices.data(), index.data(), index.size() * sizeof(std::int32_t), stream);
  backend.combine({.in = c.dtype},
                  {.input = input.view(from.data(), backend.device()),
                   .index = {.data = static_cast<const std::int32_t*>(indices.data()),
                             .rows = c.tokens * c.choices,
                             .device = backend.device()},
                   .output = output.view(to.data(), backend.device())},
                  stream);
  device.copy_to_host(output.bytes().data(), to.data(), output.bytes().size(), stream);
  if (!output.damage().empty()) return output.damage();
  for (std::int64_t t = 0; t < c.tokens; ++t) {
    for (std::int64_t col = 0; col < c.cols; ++col) {
      const std::uint32_t wanted = expected[static_cast<std::size_t>(t * c.cols + col)];
      if (output.bits(t, col) == wanted) continue;
      return fmt::format("token {}, column {} has the bits {:#x}, not {:#x}", t, col, output.bits(t, col), wanted);
    }
  }
  return {};
}

}  // namespace ingot::test
