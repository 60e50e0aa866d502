// Grouped GEMMs: what is asked of their tensors, and the reference, which is a GEMM for each expert.
#include <fmt/format.h>

#include <array>
#include <cstddef>
#include <cstdint>

#include "ingot/runtime/core/check_tensor.h"
#include "ingot/runtime/cpu/thread_pool.h"
#include "ingot/runtime/gemm/gemm_operations.h"
#include "ingot/runtime/gemm/gemm_tensors.h"
#include "ingot/runtime/util/error.h"

namespace ingot {
namespace {

constexpr const char* kEnds = "grouped_gemm ends";

[[noreturn]] void refuse_ends(const std::string& message) { throw Error(ErrorCode::invalid_argument, kEnds, message); }

// The memory of the ends, as a tensor.
Tensor bytes_of(const ExpertEnds& ends) {
  return vector(const_cast<std::int32_t*>(ends.data), Dtype::u8,
                ends.experts * static_cast<std::int64_t>(sizeof(*ends.data)), ends.device);
}

// The host sees those of its own memory.
void check_values(const ExpertEnds& ends, std::int64_t rows) {
  std::int32_t before = 0;
  for (std::int64_t e = 0; e < ends.experts; ++e) {
    const std::int32_t end = ends.data[e];
    if (end < before) {
      refuse_ends(fmt::format("say that expert {} ends at row {}, but {} row {}: ends must not decrease", e, end,
                              e == 0 ? "its first is" : "the one before ends at", before));
    }
    if (end > rows) {
      refuse_ends(fmt::format("say that expert {} ends at row {}, but a has {} rows", e, end, rows));
    }
    before = end;
  }
}

void check_ends(const ExpertEnds& ends, Device device) {
  if (ends.experts < 1 || ends.experts > kMostExperts) {
    refuse_ends(fmt::format("are of {} experts, but there must be 1 to {}", ends.experts, kMostExperts));
  }
  if (ends.data == nullptr) refuse_ends("have a null data pointer; they must be int32, one for each expert");
  if (ends.device != device) {
    refuse_ends(fmt::format("are on {}; this backend works on {}: copy them there", print(ends.device), print(device)));
  }
  if (reinterpret_cast<std::uintptr_t>(ends.data) % alignof(std::int32_t) != 0) {
    refuse_ends(fmt::format("have a data pointer {} that is misaligned: it must be a multiple of 4 bytes",
                            fmt::ptr(ends.data)));
  }
}

Range check_scale_inv(const char* what, const Tensor& scale_inv, Dtype operand, std::int64_t count, Device device,
                      const char* because) {
  if (!is_fp8(operand)) return check_absent(what, scale_inv, "a high-precision operand has no scale_inv");
  return check_vector(what, scale_inv, Dtype::f32, count, device, because);
}

}  // namespace

void check(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, Device device) {
  validate_spec(spec);
  const GemmSpec& gemm = spec.gemm;
  const Range a = check_matrix("grouped_gemm a", tensors.a, gemm.a, device);
  const Range b = check_matrix("grouped_gemm b", tensors.b, gemm.b, device);
  check_ends(tensors.ends, device);
  const std::int64_t experts = tensors.ends.experts;
  if (tensors.b.cols != tensors.a.cols) {
    refuse("grouped_gemm b", tensors.b,
           fmt::format("its K is {}, but that of a, which is {}, is {}", tensors.b.cols, describe(tensors.a),
                       tensors.a.cols));
  }
  if (tensors.b.rows % experts != 0) {
    refuse("grouped_gemm b", tensors.b,
           fmt::format("its rows must be those of {} experts, N for each of them", experts));
  }
  const std::int64_t n = tensors.b.rows / experts;
  const Range out = check_matrix("grouped_gemm out", tensors.out, gemm.out, tensors.a.rows, n, device,
                                 "M of a, and b's rows divided by the number of experts");
  const bool each_row = gemm.scale_a == kRowwise;
  const bool each_column = gemm.scale_b == kRowwise;
  const Tensor ends = bytes_of(tensors.ends);
  const std::array inputs{
      a, b,
      check_scale_inv("grouped_gemm scale_inv_a", tensors.scale_inv_a, gemm.a, each_row ? tensors.a.rows : 1, device,
                      each_row ? "one for each of a's M rows" : "one for the whole tensor"),
      check_scale_inv("grouped_gemm scale_inv_b", tensors.scale_inv_b, gemm.b, each_column ? tensors.b.rows : experts,
                      device, each_column ? "one for each of b's experts * N rows" : "one for each expert"),
      Range{kEnds, &ends, byte_span(ends, kEnds)}};
  check_overlaps(inputs, {&out, 1});
  if (device.type == DeviceType::cpu) check_values(tensors.ends, tensors.a.rows);
}

}  // namespace ingot

namespace ingot::cpu {
namespace {

Tensor rows_of(const Tensor& tensor, std::int64_t begin, std::int64_t end) {
  Tensor part = tensor;
  part.data = static_cast<std::byte*>(tensor.data) + begin * tensor.row_stride * size_of(tensor.dtype);
  part.rows = end - begin;
  return part;
}

Tensor elements_of(const Tensor& vector, std::int64_t begin, std::int64_t end) {
  Tensor part = vector;
  part.data = static_cast<std::byte*>(vector.data) + begin * size_of(vector.dtype);
  part.cols = end - begin;
  return part;
}

}  // namespace

void grouped_gemm(const GroupedGemmSpec& spec, const GroupedGemmTensors& tensors, ThreadPool& pool) {
  const std::int64_t n = tensors.out.cols;
  const bool fp8 = is_fp8(spec.gemm.a);
  std::int64_t begin = 0;
  for (std::int64_t e = 0; e < tensors.ends.experts; ++e) {
    const std::int64_t end = tensors.ends.data[e];
    GemmTensors expert{.a = rows_of(tensors.a, begin, end),
                       .b = rows_of(tensors.b, e * n, (e + 1) * n),
                       .out = rows_of(tensors.out, begin, end)};
    if (fp8) {
      const bool each_row = spec.gemm.scale_a == kRowwise;
      const bool each_column = spec.gemm.scale_b == kRowwise;
      expert.scale_inv_a = each_row ? elements_of(tensors.scale_inv_a, begin, end) : tensors.scale_inv_a;
      expert.scale_inv_b = each_column ? elements_of(tensors.scale_inv_b, e * n, (e + 1) * n)
                                       : elements_of(tensors.scale_inv_b, e, e + 1);
    }
    if (begin != end && n != 0) gemm(spec.gemm, expert, pool);
    begin = end;
  }
}

}  // namespace ingot::cpu
