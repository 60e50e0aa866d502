#include "ceiling.h"

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace ingot::bench {
namespace {

constexpr std::size_t kLargest = std::size_t{1} << 30U;
constexpr std::array kCopySizes{kLargest / 4, kLargest / 2, kLargest};

// Two matrices of bf16 that fill kLargest bytes each.
Operation buffers() {
  constexpr std::int64_t kCols = 8192;
  constexpr auto kRows = static_cast<std::int64_t>(kLargest) / (2 * kCols);
  using Role = Operand::Role;
  return {.operands = {{.name = "from", .role = Role::input, .rows = kRows, .cols = kCols},
                       {.name = "to", .role = Role::output, .rows = kRows, .cols = kCols}},
          .call = {}};
}

}  // namespace

CopyCeiling measure_copy_ceiling(MeasuredGpu& gpu, RandomData& random, const MeasureOptions& options) {
  // Bytes per sample: each sample copies every part of the buffers twice, at any size.
  constexpr std::size_t kCopied = 2 * kLargest;
  const Placed placed(buffers(), gpu.backend());
  fill(random, placed, 1);
  auto* const from = static_cast<std::byte*>(placed.tensors()["from"].data);
  auto* const to = static_cast<std::byte*>(placed.tensors()["to"].data);
  std::array<std::vector<double>, kCopySizes.size()> samples;
  for (int round = 0; round < options.rounds; ++round) {
    for (std::size_t i = 0; i < kCopySizes.size(); ++i) {
      const auto copy_all = [&] {
        for (std::size_t done = 0; done < kCopied; done += kCopySizes[i]) {
          gpu.copy(to + done % kLargest, from + done % kLargest, kCopySizes[i]);
        }
      };
      gpu.copy(to, from, kLargest);  // keeps the GPU busy while the host enqueues the timed copies
      samples[i].push_back(gpu.microseconds(copy_all));
    }
  }
  CopyCeiling best;
  for (std::size_t i = 0; i < kCopySizes.size(); ++i) {
    const double tb_per_s = 2.0 * static_cast<double>(kCopied) / median(samples[i]) * 1e-6;
    if (tb_per_s > best.tb_per_s) best = {tb_per_s, static_cast<double>(kCopySizes[i]) * 1e-6};
  }
  return best;
}

}  // namespace ingot::bench
