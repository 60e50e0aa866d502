// Calls whose ends, counts or indices are out of bounds, on any backend that checks them.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "ingot/codegen/kernel_spec.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/core/stream.h"
#include "ingot/runtime/util/error.h"

namespace ingot::test {

// 3 experts of matrices 32 x 64, whose rows are 48 of an input or, masked, have room for 16 each.
class ExpertChecksCase {
 public:
  ExpertChecksCase(Backend& backend, Stream& stream) : backend_(&backend), stream_(&stream) {
    for (const Buffer* const each : {&a_, &b_, &scale_inv_}) {
      backend.device_api().fill_zero(each->data(), each->bytes(), stream);
    }
  }

  // The error of a grouped GEMM with these ends, or counts; empty if there is none.
  std::string grouped_gemm(const std::vector<std::int32_t>& ends, bool masked = false) {
    const ExpertEnds of = written_ends(ends, masked);
    const auto spec = std::get<GroupedGemmSpec>(parse("grouped_gemm e4m3fn*e4m3fn->bf16 nt scale=tensor,tensor fast"));
    return error_of_call([&] {
      backend_->grouped_gemm(spec,
                             {.a = on_device(a_, Dtype::e4m3fn, 48, 64),
                              .b = on_device(b_, Dtype::e4m3fn, 96, 64),
                              .ends = of,
                              .scale_inv_a = on_device(scale_inv_, Dtype::f32, 1, 1),
                              .scale_inv_b = on_device(scale_inv_, Dtype::f32, 1, 3),
                              .out = on_device(out_, Dtype::bf16, 48, 32)},
                             *stream_);
    });
  }

  // The error of a cast of these rows of a matrix 8 x 64. written: they are in the device's memory already.
  std::string gathered_cast(const std::vector<std::int32_t>& rows, bool written = false) {
    if (!written) write(rows);
    const auto count = static_cast<std::int64_t>(rows.size());
    return error_of_call([&] {
      backend_->cast(std::get<CastSpec>(parse("cast bf16->e4m3fn scale=row out=codes gathered")),
                     {.input = on_device(a_, Dtype::bf16, 8, 64),
                      .row_index = {static_cast<const std::int32_t*>(index_.data()), count, backend_->device()},
                      .codes = on_device(out_, Dtype::e4m3fn, count, 64),
                      .scale_inv = on_device(b_, Dtype::f32, 1, count)},
                     *stream_);
    });
  }

  // The error of a matmul with these ends, or counts, whose weights are decoded.
  std::string dequant_matmul(const std::vector<std::int32_t>& ends, bool masked = false) {
    const ExpertEnds of = written_ends(ends, masked);
    return error_of_call([&] {
      backend_->dequant_matmul({.scale = kTensorwise, .layout = WeightLayout::row_major, .experts = true},
                               {.x = on_device(b_, Dtype::bf16, 48, 64),
                                .weight = on_device(a_, Dtype::e4m3fn, 48, 64),
                                .scale_inv = on_device(scale_inv_, Dtype::f32, 1, 3),
                                .out = on_device(out_, Dtype::bf16, 48, 16),
                                .ends = of},
                               *stream_);
    });
  }

  // The error of a cast of experts' rows with these ends.
  std::string experts_cast(const std::vector<std::int32_t>& ends) {
    const ExpertEnds of = written_ends(ends);
    return error_of_call([&] {
      backend_->cast(std::get<CastSpec>(parse("cast bf16->e4m3fn scale=128x1 out=transposed experts")),
                     {.input = on_device(b_, Dtype::bf16, 48, 64),
                      .ends = of,
                      .transposed = on_device(slots_, Dtype::e4m3fn, 64, kSlots * 128),
                      .scale_inv = on_device(slot_scale_inv_, Dtype::f32, 1, 64 * kSlots)},
                     *stream_);
    });
  }

  // The error of a sum of these rows of a matrix 48 x 64, two for each token.
  std::string combine(const std::vector<std::int32_t>& rows) {
    write(rows);
    const auto count = static_cast<std::int64_t>(rows.size());
    return error_of_call([&] {
      backend_->combine({.in = Dtype::bf16},
                        {.input = on_device(b_, Dtype::bf16, 48, 64),
                         .index = {static_cast<const std::int32_t*>(index_.data()), count, backend_->device()},
                         .output = on_device(out_, Dtype::bf16, count / 2, 64)},
                        *stream_);
    });
  }

  // The error of a sum of columns with these ends, of these rows of a matrix 8 x 64, or of the first 48 of another.
  std::string column_sum(std::vector<std::int32_t> ends, const std::vector<std::int32_t>& rows = {}) {
    ends.insert(ends.end(), rows.begin(), rows.end());
    write(ends);
    const auto* const values = static_cast<const std::int32_t*>(index_.data());
    ColumnSumTensors tensors{.input = on_device(b_, Dtype::bf16, rows.empty() ? 48 : 8, 64),
                             .sum = on_device(out_, Dtype::bf16, 3, 64),
                             .ends = {.data = values, .experts = 3, .device = backend_->device()}};
    if (!rows.empty()) {
      tensors.row_index = {values + 3, static_cast<std::int64_t>(rows.size()), backend_->device()};
    }
    return error_of_call([&] { backend_->column_sum({.experts = true}, tensors, *stream_); });
  }

  // Its message.
  static std::string error_of_call(const std::function<void()>& call) {
    try {
      call();
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }

 private:
  Tensor on_device(const Buffer& memory, Dtype dtype, std::int64_t rows, std::int64_t cols) const {
    return matrix(memory.data(), dtype, rows, cols, backend_->device());
  }
  void write(const std::vector<std::int32_t>& values) {
    backend_->device_api().copy_from_host(index_.data(), values.data(), values.size() * sizeof(std::int32_t), *stream_);
  }

  ExpertEnds written_ends(const std::vector<std::int32_t>& ends, bool masked = false) {
    write(ends);
    ExpertEnds of{.data = static_cast<const std::int32_t*>(index_.data()), .experts = 3, .device = backend_->device()};
    if (masked) of.capacity = 16;
    return of;
  }

  static constexpr std::int64_t kSlots = 4;  // ExpertSlots::count(48, 3)
  Backend* backend_;
  Stream* stream_;
  Buffer a_{*backend_, 48 * 64}, b_{*backend_, 96 * 64}, out_{*backend_, 48 * 64 * 2}, scale_inv_{*backend_, 16},
      index_{*backend_, 256}, slots_{*backend_, 64 * kSlots * 128},
      slot_scale_inv_{*backend_, 64 * kSlots * sizeof(float)};
};

}  // namespace ingot::test
