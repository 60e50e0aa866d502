#include "ingot/runtime/context/expert_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ingot/runtime/cast/cast_operations.h"
#include "ingot/runtime/dequant/dequant_operations.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

std::vector<std::int32_t> on_host(const char* what, const std::int32_t* values, std::int64_t count,
                                  DeviceApi& device_api, Stream& stream) {
  if (device_api.capturing(stream)) {
    throw Error(ErrorCode::invalid_argument, what,
                "are to be read, as ContextOptions::check_experts asks for, but the stream is capturing a graph: check "
                "steps that are not captured");
  }
  std::vector<std::int32_t> copied(static_cast<std::size_t>(count));
  if (count != 0) device_api.copy_to_host(copied.data(), values, copied.size() * sizeof(std::int32_t), stream);
  return copied;
}

void check_index(const char* what, const RowIndex& index, std::int64_t of, DeviceApi& device_api, Stream& stream) {
  const auto values = on_host(what, index.data, index.rows, device_api, stream);
  for (std::size_t row = 0; row < values.size(); ++row) {
    if (values[row] >= 0 && values[row] < of) continue;
    throw Error(ErrorCode::invalid_argument, what,
                fmt::format("says that row {} is row {} of the input, which has {}", row, values[row], of));
  }
}

}  // namespace

void check_experts(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, DeviceApi& device_api,
                   Stream& stream) {
  if (!device_api.checks_experts()) return;
  check(spec, tensors, device_api.device());
  const char* const what = tensors.ends.capacity ? "grouped_gemm counts" : "grouped_gemm ends";
  const auto values = on_host(what, tensors.ends.data, tensors.ends.experts, device_api, stream);
  GroupedGemmTensors readable = tensors;
  readable.ends.data = values.data();
  check_expert_values(spec, readable);
}

void check_experts(const DequantMatmulSpec& spec, const DequantMatmulTensors& tensors, DeviceApi& device_api,
                   Stream& stream) {
  if (!spec.experts || !device_api.checks_experts()) return;
  check(spec, tensors, device_api.device());
  const char* const what = tensors.ends.capacity ? "dequant_matmul counts" : "dequant_matmul ends";
  const auto values = on_host(what, tensors.ends.data, tensors.ends.experts, device_api, stream);
  DequantMatmulTensors readable = tensors;
  readable.ends.data = values.data();
  check_expert_values(spec, readable);
}

void check_experts(const CastSpec& spec, const CastTensors& tensors, DeviceApi& device_api, Stream& stream) {
  if ((!spec.gathered && !spec.experts) || !device_api.checks_experts()) return;
  check(spec, tensors, device_api.device());
  if (spec.experts) {
    const auto values = on_host("cast ends", tensors.ends.data, tensors.ends.experts, device_api, stream);
    CastTensors readable = tensors;
    readable.ends.data = values.data();
    check_expert_values(spec, readable);
  }
  if (spec.gathered) check_index("cast row_index", tensors.row_index, tensors.input.rows, device_api, stream);
}

void check_experts(const ColumnSumSpec& spec, const ColumnSumTensors& tensors, DeviceApi& device_api, Stream& stream) {
  if (!spec.experts || !device_api.checks_experts()) return;
  check(spec, tensors, device_api.device());
  const auto values = on_host("column_sum ends", tensors.ends.data, tensors.ends.experts, device_api, stream);
  ColumnSumTensors readable = tensors;
  readable.ends.data = values.data();
  check_expert_values(readable);
  if (!tensors.row_index) return;
  check_index("column_sum row_index", *tensors.row_index, tensors.input.rows, device_api, stream);
}

void check_experts(const CombineSpec& spec, const CombineTensors& tensors, DeviceApi& device_api, Stream& stream) {
  if (!device_api.checks_experts()) return;
  check(spec, tensors, device_api.device());
  const char* const what = "combine index";
  const auto values = on_host(what, tensors.index.data, tensors.index.rows, device_api, stream);
  const std::int64_t rows = tensors.input.rows;
  const auto wrong = std::ranges::find_if(values, [rows](std::int32_t named) { return named >= rows; });
  if (wrong == values.end()) return;
  const std::int64_t choices = tensors.index.rows / tensors.output.rows;
  throw Error(ErrorCode::invalid_argument, what,
              fmt::format("says that row {} of the output sums row {} of the input, which has {}: one below 0 counts "
                          "as none",
                          (wrong - values.begin()) / choices, *wrong, rows));
}

}  // namespace ingot
