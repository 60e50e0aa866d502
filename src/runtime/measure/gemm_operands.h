// Inputs for measuring a GEMM, in a backend's memory, in as many copies as it takes to keep them out of the L2; and a
// check of a kernel's result, output by output.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>
#include "ingot/codegen/matmul.h"
#include "ingot/runtime/context/backend.h"
#include "ingot/runtime/core/buffer.h"
#include "ingot/runtime/measure/output_error.h"
#include "ingot/runtime/measure/random_data.h"

namespace ingot {

// Makes every tensor that a GEMM's spec asks for, in a backend's memory: bell-shaped values, which the library casts
// for FP8 operands. Those of b are so small that the sums are about 1, like bias and c, so that a mistake in any of
// them, or in a function of the sums, shows.
struct GemmData {
  std::vector<Buffer> memory;
  GemmTensors tensors;
};

// How scale_inv of 1x128 groups are stored: row by row, or by group, as layers have them (CastTensors).
enum class ScaleInvOrder : std::uint8_t { by_row, by_group };

// Matrices without padding, each in its own memory; outputs are uninitialized, except the amax, which is 0. The values
// depend on `seed` and the few dozen seeds after it.
GemmData make_gemm_data(RandomData& random, const GemmCall& call, std::uint64_t seed,
                        ScaleInvOrder order = ScaleInvOrder::by_group);

class GemmOperands {
 public:
  // Fills memory of the backend's device.
  using Fill = std::function<void(void* to, unsigned char byte, std::size_t bytes)>;

  GemmOperands(RandomData& random, Fill fill, const GemmCall& call);

  int copies() const { return static_cast<int>(copies_.size()); }
  GemmTensors tensors(int copy) const { return copies_[static_cast<std::size_t>(copy)].tensors; }

  // Fills the last copy's outputs with NaN, and its amax with 0.
  void poison();
  // Why the last copy's outputs are wrong; empty if they are right. Rows from all parts of the output and the
  // preactivation are compared with what follows from the sums of kernel simt, which adds in f32 and in order: the
  // error of each part (output_error.h) must be at most 2^-7. The amax must be that of the whole output, and the
  // scale_inv 1 / scale.
  std::string fault();

 private:
  struct Slab {
    std::int64_t row = 0;
    std::int64_t rows = 0;
    std::vector<RightValue> out{};
    std::vector<RightValue> preactivation{};
  };
  void compute_expected();
  std::vector<float> sums(const Slab& slab);
  std::vector<RightValue> values(const Slab& slab, std::span<const float> x, float size);
  std::string fault_of(const char* what, const Tensor& output, const OutputFormat& format, const Slab& slab,
                       std::span<const RightValue> expected);
  std::string fault_of_amax(const GemmTensors& tensors);
  float largest_code(const Tensor& codes);
  std::vector<float> fetch(const Tensor& tensor, std::int64_t row, std::int64_t rows);
  float fetch_single(const Tensor& tensor) { return fetch(tensor, 0, 1).front(); }

  Backend* backend_;
  Stream* stream_;
  Fill fill_;
  GemmCall call_;
  std::vector<GemmData> copies_;
  std::vector<Slab> slabs_;
  OutputFormat out_;
  OutputFormat preactivation_;
};

}  // namespace ingot
