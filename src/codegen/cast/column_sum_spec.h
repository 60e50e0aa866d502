// The spec of column_sum, which sums each column of a matrix. A layer's gradient of the bias is such a sum.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ingot/api.h"
#include "ingot/codegen/types/dtype.h"
#include "ingot/codegen/types/pass.h"

namespace ingot {

class SpecReader;
struct TemplateInstance;

// sum[j] = sum over rows of x[rows, cols], in f32, in a fixed order (templates/cast/column_sum.cuh), rounded once.
struct ColumnSumSpec {
  static constexpr std::string_view kWord = "column_sum";
  Dtype in = Dtype::bf16;
  Dtype out = Dtype::bf16;
  // One for each expert, of its rows (ColumnSumTensors::ends): the gradients of experts' biases
  // (templates/cast/column_sum_experts.cuh).
  bool experts = false;
  bool operator==(const ColumnSumSpec&) const = default;
};

// The functions that kernel_spec.h and generate.h call for every spec.
std::string print_spec(const ColumnSumSpec& spec);
void validate_spec(const ColumnSumSpec& spec);
INGOT_API std::uint64_t hash_spec(const ColumnSumSpec& spec);
void read_spec(const SpecReader& reader, ColumnSumSpec& spec);
INGOT_API void list_valid(std::vector<ColumnSumSpec>& specs);
ExtraPasses extra_passes(const ColumnSumSpec& spec);
TemplateInstance template_instance(const ColumnSumSpec& spec, Pass pass);

}  // namespace ingot
