// The inner loop of the CPU's GEMM, compiled for two vector widths and chosen for the processor at hand. Both give the
// same bits: the vectors run along j, so that each sum is its own chain of scalar operations, and -ffp-contract=off
// keeps products and sums apart.
#include "ingot/runtime/gemm/gemm_kernel.h"

#include <utility>

namespace ingot::cpu {
namespace {

template <int Lanes>
struct FloatVector;
template <>
struct FloatVector<4> {
  using Type = float __attribute__((vector_size(16)));
};
template <>
struct FloatVector<8> {
  using Type = float __attribute__((vector_size(32)));
};

// multiply_tile() for the first `Rows` rows. The sums of a tile must stay in registers, which requires constant
// indices: hence a parameter pack (I = row * vectors + vector) instead of a loop. Inlined, so that it is compiled for
// the caller's instruction set.
template <int Lanes, int... I>
[[gnu::always_inline]] inline void multiply_rows(std::integer_sequence<int, I...> /*sums of the tile*/, i64 depth,
                                                 const float* a, const float* b, float* sums, i64 stride) {
  constexpr int kVectors = static_cast<int>(kTileCols) / Lanes;
  using V = typename FloatVector<Lanes>::Type;
  V tile[sizeof...(I)];
  (__builtin_memcpy(&tile[I], sums + I / kVectors * stride + I % kVectors * Lanes, sizeof(V)), ...);
  for (i64 k = 0; k < depth; ++k) {
    V right[kVectors];
    for (int v = 0; v < kVectors; ++v) __builtin_memcpy(&right[v], b + k * kTileCols + v * Lanes, sizeof(V));
    ((tile[I] += a[k * kTileRows + I / kVectors] * right[I % kVectors]), ...);
  }
  (__builtin_memcpy(sums + I / kVectors * stride + I % kVectors * Lanes, &tile[I], sizeof(V)), ...);
}

#if defined(__x86_64__)
[[gnu::target("avx2")]] void multiply_tile_avx2(i64 depth, const float* a, const float* b, float* sums, i64 stride) {
  multiply_rows<8>(std::make_integer_sequence<int, kTileRows * kTileCols / 8>{}, depth, a, b, sums, stride);
}
#endif

}  // namespace

void multiply_tile_portable(i64 depth, const float* a, const float* b, float* sums, i64 stride) {
  // Sixteen registers of four lanes hold half a tile.
  constexpr i64 kRows = kTileRows / 2;
  for (i64 i = 0; i < kTileRows; i += kRows) {
    multiply_rows<4>(std::make_integer_sequence<int, kRows * kTileCols / 4>{}, depth, a + i, b, sums + i * stride,
                     stride);
  }
}

void multiply_tile(i64 depth, const float* a, const float* b, float* sums, i64 stride) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx2")) return multiply_tile_avx2(depth, a, b, sums, stride);
#endif
  multiply_tile_portable(depth, a, b, sums, stride);
}

}  // namespace ingot::cpu
