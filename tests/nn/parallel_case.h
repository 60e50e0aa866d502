// A linear layer that ranks divide: its tensors on the host, what one rank makes of them, and how far the ranks'
// results may be from that. docs/distributed.md has the rules.
#pragma once

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "ingot/nn/dist/parallel_linear.h"
#include "ingot/nn/modules/delayed_scaling.h"
#include "ingot/nn/modules/float8_linear.h"
#include "ingot/nn/recipe/recipes.h"
#include "ingot/runtime/context/cpu_backend.h"
#include "support/random.h"

namespace ingot::test {

enum class ParallelKind { column, row };
inline constexpr Device kCpu{DeviceType::cpu, 0};

// A matrix of the host, of f32 or bf16; poisoned with NaN.
class ParallelHost {
 public:
  ParallelHost(Dtype dtype, std::int64_t rows, std::int64_t cols)
      : bytes_(static_cast<std::size_t>(rows * cols * size_of(dtype)), 0xff),
        view_(matrix(bytes_.data(), dtype, rows, cols, kCpu)) {}
  static ParallelHost random(Dtype dtype, std::int64_t rows, std::int64_t cols, std::uint64_t seed) {
    ParallelHost made(dtype, rows, cols);
    for (std::size_t i = 0; i < static_cast<std::size_t>(rows * cols); ++i) {
      // Columns and rows of different sizes, so that their scales differ.
      const auto column = static_cast<std::int64_t>(i) % cols;
      const auto row = static_cast<std::int64_t>(i) / cols;
      const float size = (1 + 0.5F * static_cast<float>(column % 5)) * (1 + 0.25F * static_cast<float>(row % 3));
      const std::uint32_t bits = encode_input(dtype, size * random_normal(seed, i));
      std::memcpy(made.bytes_.data() + i * static_cast<std::size_t>(size_of(dtype)), &bits,
                  static_cast<std::size_t>(size_of(dtype)));
    }
    return made;
  }
  ParallelHost(ParallelHost&& other) noexcept : bytes_(std::move(other.bytes_)), view_(other.view_) {
    view_.data = bytes_.data();
  }
  ParallelHost& operator=(ParallelHost&&) = delete;

  const Tensor& view() const { return view_; }
  Tensor part(std::int64_t row, std::int64_t rows, std::int64_t col, std::int64_t cols) const {
    Tensor part = view_;
    part.data = static_cast<std::byte*>(view_.data) + (row * view_.row_stride + col) * size_of(view_.dtype);
    part.rows = rows;
    part.cols = cols;
    return part;
  }
  Tensor rows_of(int rank, int ranks) const {
    const std::int64_t rows = view_.rows / ranks;
    return part(rank * rows, rows, 0, view_.cols);
  }
  Tensor cols_of(int rank, int ranks) const {
    const std::int64_t cols = view_.cols / ranks;
    return part(0, view_.rows, rank * cols, cols);
  }
  std::vector<float> values() const {
    std::vector<float> all(static_cast<std::size_t>(view_.rows * view_.cols));
    for (std::size_t i = 0; i < all.size(); ++i) {
      std::uint32_t bits = 0;
      std::memcpy(&bits, bytes_.data() + i * static_cast<std::size_t>(size_of(view_.dtype)),
                  static_cast<std::size_t>(size_of(view_.dtype)));
      all[i] = std::bit_cast<float>(view_.dtype == Dtype::f32 ? bits : bits << 16U);
    }
    return all;
  }
  bool operator==(const ParallelHost& other) const { return bytes_ == other.bytes_; }

 private:
  std::vector<unsigned char> bytes_;
  Tensor view_;
};

struct ParallelCase {
  ParallelKind kind = ParallelKind::column;
  std::string recipe = "tensorwise";
  bool sequence_parallel = false;
  int ranks = 2;
  Dtype dtype = Dtype::f32;
  std::int64_t tokens = 8, in = 256, out = 256;
  bool f32_weight = false;
  bool bias = true;  // for a column-parallel layer in FP8

  bool has_bias() const { return bias && kind == ParallelKind::column && recipe != "high_precision"; }
  Dtype weight() const { return f32_weight ? Dtype::f32 : dtype; }
  std::string text() const {
    return fmt::format("{} {}{} on {} ranks in {}", recipe, kind == ParallelKind::column ? "column" : "row",
                       sequence_parallel ? " with sequence parallelism" : "", ranks, name(dtype));
  }
};

struct ParallelInputs {
  explicit ParallelInputs(const ParallelCase& of)
      : input(ParallelHost::random(of.dtype, of.tokens, of.in, 1)),
        weight(ParallelHost::random(of.weight(), of.out, of.in, 2)),
        bias(ParallelHost::random(of.kind == ParallelKind::row ? of.dtype : Dtype::bf16, 1, of.out, 3)),
        grad_output(ParallelHost::random(of.dtype, of.tokens, of.out, 4)) {}
  ParallelHost input, weight, bias, grad_output;
};

struct ParallelResults {
  explicit ParallelResults(const ParallelCase& of)
      : output(of.dtype, of.tokens, of.out),
        grad_input(of.dtype, of.tokens, of.in),
        grad_weight(of.weight(), of.out, of.in),
        grad_bias(Dtype::f32, 1, of.out) {}
  ParallelHost output, grad_input, grad_weight, grad_bias;
};

inline bool is_delayed(const ParallelCase& of) { return of.recipe == "delayed"; }

// Two steps, so that delayed scales are of the first one's maxima, and the weight's codes are used again.
template <class Layer>
void run(Layer& layer, LinearForward forward, const LinearBackward& backward, DelayedScaling* delayed, Comm* comm,
         Stream& stream) {
  for (int step = 0; step < 2; ++step) {
    layer.forward(forward, stream);
    layer.backward(backward, stream);
    if (delayed == nullptr) continue;
    if (comm != nullptr) comm->all_reduce_max(delayed->amaxes(), stream);
    delayed->sync_amax_history(stream);
  }
}

// A row-parallel layer adds its bias after the sum, so here one rank has none either.
inline ParallelResults on_one(const ParallelCase& of, const ParallelInputs& inputs) {
  const auto backend = make_cpu_backend(1);
  Stream stream(*backend);
  DelayedScaling delayed(*backend);
  const bool bias = of.has_bias();
  Float8Linear layer(*backend, {.in_features = of.in, .out_features = of.out, .bias = bias}, recipe(of.recipe),
                     {.name = "up", .weight_dtype = of.weight(), .delayed = &delayed});
  ParallelResults results(of);
  run(layer,
      {.input = inputs.input.view(),
       .weight = inputs.weight.view(),
       .bias = bias ? inputs.bias.view() : Tensor{},
       .output = results.output.view()},
      {.grad_output = inputs.grad_output.view(),
       .grad_input = results.grad_input.view(),
       .grad_weight = results.grad_weight.view(),
       .grad_bias = bias ? results.grad_bias.view() : Tensor{}},
      is_delayed(of) ? &delayed : nullptr, nullptr, stream);
  return results;
}

// sqrt(sum (a - b)^2 / sum b^2); NaN where either has one.
inline double difference(const ParallelHost& a, const ParallelHost& b) {
  const std::vector<float> first = a.values();
  const std::vector<float> second = b.values();
  double error = 0;
  double size = 0;
  for (std::size_t i = 0; i < first.size(); ++i) {
    error += std::pow(static_cast<double>(first[i]) - static_cast<double>(second[i]), 2);
    size += std::pow(static_cast<double>(second[i]), 2);
  }
  return std::sqrt(error / size);
}

// How far a result may be from one rank's: 0 for its bits.
struct ParallelBounds {
  double output = 0, grad_input = 0, grad_weight = 0;
};

// docs/distributed.md.
inline ParallelBounds bounds_of(const ParallelCase& of) {
  if (of.ranks == 1) return {};
  const double summed = of.dtype == Dtype::f32 ? 1e-5 : 6e-3;  // the same products, added in another order
  const double cast = 0.06;                                    // operands with other scales
  const bool by_row = of.recipe.starts_with("rowwise");
  const bool is_folded = of.recipe == "rowwise_folded";
  if (of.kind == ParallelKind::column) return {.grad_input = by_row ? cast : summed};
  return {.output = by_row ? cast : summed,
          .grad_input = is_folded || of.recipe == "rowwise_with_gw_hp" ? cast : 0,
          .grad_weight = is_folded ? cast : 0};
}

}  // namespace ingot::test
