// The cases of bench_cast: casts and norms, the bytes that an ideal kernel would move for each, and the target as a
// share of the copy ceiling. bench/compare_torch.py times the same work under the same names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "operation.h"

namespace ingot::bench {

// Bytes per input element, one entry for each time a whole matrix is read or written: a bf16 matrix that is read twice
// has reads = {2, 2}. Scales and scale_inv are too small to count.
struct Traffic {
  std::vector<int> reads;
  std::vector<int> writes;

  int bytes_per_element() const;
  std::string text() const;  // "2r + 2r + 1w"
};

struct CastCase {
  std::string work;  // "tensorwise codes+transposed"
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::string spec;  // the spec as one line of text
  Traffic traffic;
  std::optional<double> target{};  // share of the copy ceiling to reach
  // The same work at any size; it is also checked at a small size first.
  std::function<Operation(std::int64_t rows, std::int64_t cols)> operation;
};

std::string name(const CastCase& cast_case);  // "tensorwise codes+transposed 8192x8192"
double ideal_bytes(const CastCase& cast_case);

std::vector<CastCase> cast_cases();

// With scale_inv of 1x128 groups row by row or by group (CastTensors).
Operation cast_operation(const CastSpec& spec, std::int64_t rows, std::int64_t cols, bool scale_inv_by_group = false);
CastTensors cast_tensors(const Tensors& tensors);

}  // namespace ingot::bench
