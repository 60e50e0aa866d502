// Lays out the memory of a layer, or of a module of several parts: gives each tensor and each part's own region the
// next place, at a multiple of kLinearAlignment.
#pragma once

#include "ingot/nn/linear/float8_tensor.h"
#include "ingot/nn/linear/linear_memory.h"

namespace ingot {

class MemoryPlaces {
 public:
  void values(TensorPlace& place, Dtype dtype, std::int64_t rows, std::int64_t cols) {
    matrix(place, dtype, rows, cols, cols);
  }
  // Codes of FP8, whose rows begin where GEMMs can load them.
  void codes(TensorPlace& place, Dtype dtype, std::int64_t rows, std::int64_t cols) {
    matrix(place, dtype, rows, cols, code_pitch(cols));
  }
  void floats(TensorPlace& place, std::int64_t count) { values(place, Dtype::f32, 1, count); }
  // Transposed codes in slots of experts (CastSpec::experts) and their scale_inv. Each slot takes as many bytes, so
  // that a region grows by the same for every 128 rows.
  void slots(TensorPlace& codes_place, TensorPlace& scale_inv, Dtype dtype, std::int64_t rows, std::int64_t columns) {
    constexpr std::int64_t kSlot = 128;
    const std::int64_t count = columns / kSlot;
    const std::size_t begin = bytes_;
    codes(codes_place, dtype, rows, columns);
    bytes_ = begin;
    region_of_slots(rows * kSlot, count);
    const std::size_t behind = bytes_;
    floats(scale_inv, count * rows);
    bytes_ = behind;
    region_of_slots(rows * static_cast<std::int64_t>(sizeof(float)), count);
  }
  // Returns where it begins.
  std::size_t region(std::size_t bytes) {
    const std::size_t begin = bytes_;
    bytes_ += (bytes + kLinearAlignment - 1) / kLinearAlignment * kLinearAlignment;
    return begin;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  void region_of_slots(std::int64_t bytes_of_slot, std::int64_t count) {
    MemoryPlaces one;
    one.region(static_cast<std::size_t>(bytes_of_slot));
    bytes_ += one.bytes() * static_cast<std::size_t>(count);
  }

  void matrix(TensorPlace& place, Dtype dtype, std::int64_t rows, std::int64_t cols, std::int64_t row_stride) {
    place = {.dtype = dtype, .rows = rows, .cols = cols, .row_stride = row_stride, .offset = bytes_, .used = true};
    region(static_cast<std::size_t>(rows * row_stride * size_of(dtype)));
  }

  std::size_t bytes_ = 0;
};

// The codes of a weight [out, in] and their scale_inv; of several weights, those of one after those of another.
inline LinearWeightMemory place_weights(MemoryPlaces& places, const CastSpec& spec, std::int64_t out, std::int64_t in,
                                        std::int64_t weights = 1) {
  LinearWeightMemory memory;
  if (spec.codes) places.codes(memory.codes, spec.out, weights * out, in);
  if (spec.transposed) places.codes(memory.transposed, spec.out, weights * in, out);
  places.floats(memory.scale_inv, weights * scale_count(spec.scale, out, in));
  if (spec.transposed_scale) {
    places.floats(memory.transposed_scale_inv, weights * scale_count(*spec.transposed_scale, out, in));
  }
  return memory;
}

// A part's own region within its module's. A null region stays null.
inline MemoryRegion part_of(const MemoryRegion& region, std::size_t begin, std::size_t bytes) {
  if (region.data == nullptr) return {};
  return {static_cast<std::byte*>(region.data) + begin, bytes};
}

}  // namespace ingot
