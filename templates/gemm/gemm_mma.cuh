// out[M, N] = round(scale_inv_a * scale_inv_b * sum_k a(m, k) b(n, k) + bias) on the tensor cores of sm_80 and up
// (mma.sync), followed by the epilogue (gemm_epilogue.cuh). It takes FP8 of any two formats, bf16 or f16, with any
// size, stride and address: what neither cuBLASLt nor gemm_sm90 takes.
//
// The tensor cores multiply 16-bit operands: FP8 codes are decoded exactly, to f16 (decode_f16.cuh) or, next to a bf16
// operand, to bf16. sm_89 and later could multiply OCP codes directly, but would add in fewer bits than f32, which only
// `fast` allows, and Hopper has no such mma.sync (ptxas decodes to f16, in every warp). So one kernel serves all
// formats and GPUs.
//
// Schedule: a block computes a tile of outputs, in steps of 64 of K. Each thread copies 16 bytes at a time to its own
// slots in shared memory: asynchronously if rows start at multiples of 16 or 4 bytes, otherwise by loads of words or
// elements. Only that thread reads its slots, so it waits for no other. It decodes them into the next step's tile while
// the warps multiply the current step's: each code is decoded once per block, not by each warp that needs it, and a
// step has one barrier. A tile's rows have 128 bytes, with swizzled 16-byte units.
//
// Accumulation is in f32, in the tensor cores' order, which depends only on the shape. With scale_inv of groups of 128
// of K, each group has its own sum: total = total + sum * (scale_inv_a * scale_inv_b), as in gemm_simt.
#pragma once

#include "gemm/decode_f16.cuh"
#include "gemm/gemm_epilogue.cuh"
#include "gemm/gemm_mma_tiling.cuh"
#include "gemm/gemm_params.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "gemm/warp_mma.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/opaque.cuh"

namespace ingot {

struct GemmMmaParams {
  GemmParams gemm;
  u32 factor_b_shift;      // for scale_inv of groups: 2^n rows of b share them
  u32 a_copied, b_copied;  // mma_copied_bytes(); 0 where rows are not stored along k
  u32 out_pairs;           // do all rows of out start at a multiple of two elements?
};

// The dtype in which the tensor cores multiply A by B.
template <class A, class B>
struct MmaElement {
  using Type = A;
};
template <Fp8Format A, class B>
struct MmaElement<A, B> {
  using Type = B;
};
template <Fp8Format A, Fp8Format B>
struct MmaElement<A, B> {
  using Type = f16;
};

// value = decoded * 2^kMmaExponent: what decoding leaves out of a product.
template <class T>
inline constexpr int kMmaExponent = 0;
template <Fp8Format T>
inline constexpr int kMmaExponent<T> = decode_exponent<T>();

// The offset of 16 bytes of a row's k in a tile.
INGOT_HOST_DEVICE u32 mma_unit(u32 row, u32 unit) { return row * kMmaRowBytes + ((unit ^ row) & 7U) * 16; }

struct INGOT_MAY_ALIAS MmaHalfWord {
  u16 bits;
};

// One operand of a block: Rows rows, kMmaDepth of K at a time, in chunks of 16 bytes; multiplied as Element.
template <class T, class Element, u32 Rows, u32 Threads>
struct MmaOperand {
  static constexpr u32 kSize = static_cast<u32>(sizeof(T));
  static constexpr u32 kAcross = kMmaDepth * kSize / 16;  // chunks per row
  static constexpr u32 kChunks = Rows * kAcross / Threads;
  static constexpr u32 kStageBytes = Rows * kMmaDepth * kSize;

  const T* data;
  u32 tile;           // index of the block's tile, in units of Rows rows
  i64 extent, depth;  // the operand's rows, and k
  i64 stride, stride_k;
  u32 copied;

  struct Chunk {
    u32 row, unit;  // of the tile, of the step
  };
  // The tile coordinates of the thread's chunk j. Neighbouring threads take neighbouring memory.
  INGOT_DEVICE Chunk chunk(u32 thread, u32 j) const {
    const u32 index = j * Threads + thread;
    return stride_k == 1 ? Chunk{index / kAcross, index % kAcross} : Chunk{index % Rows, index / Rows};
  }
  INGOT_DEVICE static u32 slot(u32 stage, u32 j) { return stage + (j * Threads + threadIdx.x) * 16; }

  INGOT_DEVICE i64 row_of(const Chunk& at) const { return i64{tile} * Rows + at.row; }
  INGOT_DEVICE static i64 first_k(u32 step, const Chunk& at) { return i64{step} * kMmaDepth + at.unit * kPerVector<T>; }
  // How many bytes of the chunk belong to the operand.
  INGOT_DEVICE u32 valid_bytes(const Chunk& at, i64 k) const {
    if (row_of(at) >= extent || k >= depth) return 0;
    return static_cast<u32>(min_of(i64{16}, (depth - k) * kSize));
  }

  // Fetches a step's chunks to the thread's slots, with zeros outside the operand. A call takes one of four ways;
  // hide() keeps the compiler from computing their addresses ahead of the loop, where they would cost registers.
  INGOT_DEVICE void fetch(u32 stage, u32 step) const {
    u32 thread = threadIdx.x;
    hide(thread);
    if (copied == 16) {
      fetch_copied<16>(thread, stage, step);
    } else if (copied == 4) {
      fetch_copied<4>(thread, stage, step);
    } else if (stride_k == 1) {
      fetch_words(thread, stage, step);
    } else {
      fetch_elements(thread, stage, step);
    }
  }

  template <u32 Bytes>
  INGOT_DEVICE void fetch_copied(u32 thread, u32 stage, u32 step) const {
    INGOT_UNROLL
    for (u32 j = 0; j < kChunks; ++j) {
      const Chunk at = chunk(thread, j);
      const i64 k = first_k(step, at);
      const u32 valid = valid_bytes(at, k);
      const u8* const source = reinterpret_cast<const u8*>(data + (valid == 0 ? 0 : row_of(at) * stride + k));
      INGOT_UNROLL
      for (u32 part = 0; part < 16; part += Bytes) {
        const u32 size = part >= valid ? 0 : min_of(Bytes, valid - part);
        copy_async<Bytes>(slot(stage, j) + part, source + (size == 0 ? 0 : part), size);
      }
    }
  }

  // Fetches rows along k that start anywhere, two chunks at a time.
  INGOT_DEVICE void fetch_words(u32 thread, u32 stage, u32 step) const {
    INGOT_UNROLL_BY(1)
    for (u32 j = 0; j < kChunks; j += 2) {
      const U32x4 one = words(chunk(thread, j), step);
      const U32x4 other = words(chunk(thread, j + 1), step);
      store_shared16(slot(stage, j), one);
      store_shared16(slot(stage, j + 1), other);
    }
  }

  // Puts one chunk together from whole words, unless one of these reaches outside the operand.
  INGOT_DEVICE U32x4 words(const Chunk& at, u32 step) const {
    const i64 k = first_k(step, at);
    const u64 begin = reinterpret_cast<u64>(data);
    const u64 end = begin + static_cast<u64>((extent - 1) * stride + depth) * kSize;
    const u64 source = begin + static_cast<u64>(row_of(at) * stride + k) * kSize;
    const u64 word = source & ~u64{3};
    if (valid_bytes(at, k) < 16 || word < begin || word + 20 > end) return elements(at, k);
    const PairWord* const from = reinterpret_cast<const PairWord*>(word);
    const u32 shift = static_cast<u32>(source & 3) * 8;
    const auto joined = [&](u32 i) { return static_cast<u32>((u64{from[i + 1].bits} << 32 | from[i].bits) >> shift); };
    return {joined(0), joined(1), joined(2), joined(3)};
  }

  INGOT_DEVICE void fetch_elements(u32 thread, u32 stage, u32 step) const {
    INGOT_UNROLL_BY(1)
    for (u32 j = 0; j < kChunks; ++j) {
      const Chunk at = chunk(thread, j);
      store_shared16(slot(stage, j), elements(at, first_k(step, at)));
    }
  }

  // Loads one chunk element by element.
  INGOT_DEVICE U32x4 elements(const Chunk& at, i64 k) const {
    const u32 valid = valid_bytes(at, k) / kSize;
    const T* const source = data + row_of(at) * stride + k * stride_k;
    u32 words[4] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < kPerVector<T>; ++i) {
      const u32 bits = i < valid ? source[i * stride_k].bits : 0;
      words[i * kSize / 4] |= bits << (i * kSize % 4 * 8);
    }
    return {words[0], words[1], words[2], words[3]};
  }

  // Decodes the thread's chunks of a step that has arrived, into the tile from which they are multiplied.
  INGOT_DEVICE void decode(u32 stage, u32 target) const {
    u32 thread = threadIdx.x;
    hide(thread);
    U32x4 chunks[kChunks];
    INGOT_UNROLL
    for (u32 j = 0; j < kChunks; ++j) chunks[j] = load_shared16(slot(stage, j));
    INGOT_UNROLL
    for (u32 j = 0; j < kChunks; ++j) {
      const Chunk at = chunk(thread, j);
      const U32x4& chunk = chunks[j];
      if constexpr (kSize == 2) {
        store_shared16(target + mma_unit(at.row, at.unit), chunk);
      } else {
        store_shared16(target + mma_unit(at.row, 2 * at.unit), decode_eight(chunk.x, chunk.y));
        store_shared16(target + mma_unit(at.row, 2 * at.unit + 1), decode_eight(chunk.z, chunk.w));
      }
    }
  }

  INGOT_DEVICE static U32x4 decode_eight(u32 first_four, u32 second_four) {
    u32 low[2];
    u32 high[2];
    decode_four<T>(first_four, low);
    decode_four<T>(second_four, high);
    if constexpr (is_same<Element, bf16>) {
      to_bf16_pairs(low);
      to_bf16_pairs(high);
    }
    return {low[0], low[1], high[0], high[1]};
  }
};

// The accumulators of a warp: tiles of 16 rows by 8 columns, laid out as in multiply_add().
template <MmaTiling T>
struct MmaSums {
  static constexpr u32 kRows = T.m / 32;
  static constexpr u32 kColumns = 4;
  float d[kRows][kColumns][4] = {};
};

// The epilogue's values for the two neighbouring columns that a thread has in each 8, fetched once.
template <u32 Columns>
struct MmaColumns {
  float factors[Columns][2];
  float bias[Columns][2];
};

template <class A, class B, class Out, GemmMmaConfig C, class Epi, MmaTiling T = C.tiling>
struct MmaBlock {
  using Element = typename MmaElement<A, B>::Type;
  using Sums = MmaSums<T>;
  using Bias = typename GemmBias<A, B, Out>::Type;
  static constexpr u32 kThreads = mma_threads(T);
  static constexpr u32 kStages = 2 / static_cast<u32>(max_of(sizeof(A), sizeof(B)));
  static constexpr u32 kStepsOfGroup = kGemmGroup / kMmaDepth;
  // 2^kExponent is what decoding leaves out of a product.
  static constexpr int kExponent = kMmaExponent<A> + kMmaExponent<B>;
  static constexpr float kScale = static_cast<float>(1U << kExponent);
  using OperandA = MmaOperand<A, Element, T.m, kThreads>;
  using OperandB = MmaOperand<B, Element, T.n, kThreads>;

  const GemmParams& p;
  const GemmMmaParams& mma;
  OperandA a;
  OperandB b;
  u32 tiles, stages;  // addresses in shared memory
  u32 lane, warp_m, warp_n;

  INGOT_DEVICE static MmaBlock make(const GemmMmaParams& mma) {
    const GemmParams& p = mma.gemm;
    const Sm90TileIndex tile = sm90_tile_index(blockIdx.x, static_cast<u32>(ceil_div(p.m, i64{T.m})),
                                               static_cast<u32>(ceil_div(p.n, i64{T.n})));
    const u32 base = shared_memory();
    const u32 warp = threadIdx.x / 32;
    return {.p = p,
            .mma = mma,
            .a = {static_cast<const A*>(p.a), tile.m, p.m, p.k, p.a_stride_m, p.a_stride_k, mma.a_copied},
            .b = {static_cast<const B*>(p.b), tile.n, p.n, p.k, p.b_stride_n, p.b_stride_k, mma.b_copied},
            .tiles = base,
            .stages = base + 2 * mma_tile_bytes(T),
            .lane = threadIdx.x % 32,
            .warp_m = warp % 2 * (T.m / 2),
            .warp_n = warp / 2 * 32};
  }

  // The row and column of the thread's outputs.
  INGOT_DEVICE i64 row_of(u32 i, u32 half) const { return i64{a.tile} * T.m + warp_m + lane / 4 + i * 16 + half * 8; }
  INGOT_DEVICE i64 column_of(u32 j) const { return i64{b.tile} * T.n + warp_n + lane % 4 * 2 + j * 8; }

  // The shared-memory address of step s.
  INGOT_DEVICE u32 stage_of(u32 s) const {
    return stages + s % kStages * (OperandA::kStageBytes + OperandB::kStageBytes);
  }
  INGOT_DEVICE u32 tile_of(u32 s) const { return tiles + s % 2 * mma_tile_bytes(T); }

  INGOT_DEVICE void fetch(u32 s) const {
    a.fetch(stage_of(s), s);
    b.fetch(stage_of(s) + OperandA::kStageBytes, s);
  }
  INGOT_DEVICE void decode(u32 s) const {
    a.decode(stage_of(s), tile_of(s));
    b.decode(stage_of(s) + OperandA::kStageBytes, tile_of(s) + T.m * kMmaRowBytes);
  }

  INGOT_DEVICE void multiply(Sums& sums, u32 s) const {
    const u32 tile_a = tile_of(s);
    const u32 tile_b = tile_a + T.m * kMmaRowBytes;
    INGOT_UNROLL
    for (u32 k = 0; k < kMmaDepth / 16; ++k) {
      u32 of_a[Sums::kRows][4];
      u32 of_b[Sums::kColumns / 2][4];
      INGOT_UNROLL
      for (u32 i = 0; i < Sums::kRows; ++i) {
        load_matrices(tile_a + mma_unit(warp_m + i * 16 + lane % 16, 2 * k + lane / 16), of_a[i]);
      }
      INGOT_UNROLL
      for (u32 j = 0; j < Sums::kColumns / 2; ++j) {
        const u32 row = warp_n + j * 16 + lane / 16 * 8 + lane % 8;
        load_matrices(tile_b + mma_unit(row, 2 * k + lane / 8 % 2), of_b[j]);
      }
      INGOT_UNROLL
      for (u32 i = 0; i < Sums::kRows; ++i) {
        INGOT_UNROLL
        for (u32 j = 0; j < Sums::kColumns; ++j) {
          const u32 pair[2] = {of_b[j / 2][j % 2 * 2], of_b[j / 2][j % 2 * 2 + 1]};
          multiply_add<Element>(sums.d[i][j], of_a[i], pair);
        }
      }
    }
  }

  // The scale_inv of the thread's rows and columns for one group of K.
  struct GroupFactors {
    float rows[Sums::kRows][2];
    float columns[Sums::kColumns][2];
  };
  INGOT_DEVICE GroupFactors group_factors(u32 group) const {
    GroupFactors factors;
    INGOT_UNROLL
    for (u32 i = 0; i < Sums::kRows; ++i) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const i64 m = min_of(row_of(i, half), p.m - 1);
        factors.rows[i][half] = p.factor_a[m * p.factor_a_stride + group * p.factor_a_group_stride];
      }
    }
    INGOT_UNROLL
    for (u32 j = 0; j < Sums::kColumns; ++j) {
      INGOT_UNROLL
      for (u32 c = 0; c < 2; ++c) {
        const i64 row_b = min_of(column_of(j) + c, p.n - 1) >> mma.factor_b_shift;
        factors.columns[j][c] = p.factor_b[row_b * p.factor_b_stride + group * p.factor_b_group_stride];
      }
    }
    return factors;
  }
  INGOT_DEVICE static void add_group(Sums& totals, Sums& sums, const GroupFactors& factors) {
    INGOT_UNROLL
    for (u32 i = 0; i < Sums::kRows; ++i) {
      INGOT_UNROLL
      for (u32 j = 0; j < Sums::kColumns; ++j) {
        INGOT_UNROLL
        for (u32 x = 0; x < 4; ++x) {
          const float factor = factors.rows[i][x / 2] * factors.columns[j][x % 2];
          totals.d[i][j][x] = fused_multiply_add(sums.d[i][j][x] * kScale, factor, totals.d[i][j][x]);
          sums.d[i][j][x] = 0.0F;
        }
      }
    }
  }

  // The mainloop, over all of K. Each iteration fetches one step, decodes another and multiplies a third.
  INGOT_DEVICE void sum(Sums& sums, Sums& totals) const {
    const u32 steps = static_cast<u32>(ceil_div(p.k, i64{kMmaDepth}));
    GroupFactors factors{};
    INGOT_UNROLL_BY(1)
    for (u32 turn = 0; turn < steps + kStages + 1; ++turn) {
      const u32 decoded = turn - kStages;         // wraps around in the first iterations
      const u32 multiplied = turn - kStages - 1;  // likewise
      if (C.group_factors && multiplied < steps && multiplied % kStepsOfGroup == 0) {
        factors = group_factors(multiplied / kStepsOfGroup);
      }
      wait_for_copies<kStages - 1>();
      if (decoded < steps) decode(decoded);
      if (turn < steps) fetch(turn);
      commit_copies();
      if (multiplied < steps) {
        multiply(sums, multiplied);
        if (C.group_factors && (multiplied % kStepsOfGroup == kStepsOfGroup - 1 || multiplied == steps - 1)) {
          add_group(totals, sums, factors);
        }
      }
      __syncthreads();
    }
  }

  // ---- The epilogue: everything between a sum and the output -----------------------------------------------------

  INGOT_DEVICE MmaColumns<Sums::kColumns> fetch_columns() const {
    MmaColumns<Sums::kColumns> columns{};
    INGOT_UNROLL
    for (u32 j = 0; j < Sums::kColumns; ++j) {
      INGOT_UNROLL
      for (u32 c = 0; c < 2; ++c) {
        const i64 n = min_of(column_of(j) + c, p.n - 1);
        if (!C.group_factors && p.factor_b != nullptr) columns.factors[j][c] = p.factor_b[n * p.factor_b_stride];
        if (p.bias != nullptr) columns.bias[j][c] = to_float(static_cast<const Bias*>(p.bias)[n]);
      }
    }
    return columns;
  }

  // Computes one output, before it is rounded.
  INGOT_DEVICE float finish(float value, float factor_row, float factor_column, float bias) const {
    if constexpr (!C.group_factors) {
      value = value * kScale;
      if (p.factor_a != nullptr) value = value * factor_row;
      if (p.factor_b != nullptr) value = value * factor_column;
    }
    return p.bias != nullptr ? value + bias : value;
  }

  // Stores two neighbouring outputs.
  INGOT_DEVICE void store(i64 m, i64 n, float x, float y, [[maybe_unused]] float scale) const {
    Out* const out = static_cast<Out*>(p.out) + (m * p.out_stride + n);
    if (n >= p.n) return;
    const bool both = n + 1 < p.n;
    if constexpr (HighPrecision<Out>) {
      store_pair(out, x, y, mma.out_pairs != 0, both);
    } else if (mma.out_pairs != 0 && both) {
      reinterpret_cast<MmaHalfWord*>(out)->bits = encode_pair<Out>(x * scale, y * scale);
    } else {
      out[0] = gemm_output<Out>(x, scale);
      if (both) out[1] = gemm_output<Out>(y, scale);
    }
  }

  INGOT_DEVICE void write(const Sums& sums) const {
    const MmaColumns<Sums::kColumns> columns = fetch_columns();
    const float scale = Fp8Format<Out> ? *p.epilogue.scale : 1.0F;
    const typename Epi::Vectors vectors = Epi::vectors(p.epilogue);
    u32 largest = 0;
    INGOT_UNROLL
    for (u32 i = 0; i < Sums::kRows; ++i) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const i64 m = row_of(i, half);
        if (m >= p.m) continue;
        const float factor = !C.group_factors && p.factor_a != nullptr ? p.factor_a[m * p.factor_a_stride] : 1.0F;
        INGOT_UNROLL
        for (u32 j = 0; j < Sums::kColumns; ++j) {
          const i64 n = column_of(j);
          float x = finish(sums.d[i][j][2 * half], factor, columns.factors[j][0], columns.bias[j][0]);
          float y = finish(sums.d[i][j][2 * half + 1], factor, columns.factors[j][1], columns.bias[j][1]);
          if constexpr (!Epi::kNothing || Epi::kAmax) {
            if (n >= p.n) continue;
            const bool both = n + 1 < p.n;
            Epi::apply(p.epilogue, vectors, Epi::fetch(p.epilogue, vectors, m, n, both), m, n, both, x, y);
            if constexpr (Epi::kAmax) {
              largest = max_of(largest, gemm_amax_bits<Out>(x));
              if (both) largest = max_of(largest, gemm_amax_bits<Out>(y));
            }
          }
          store(m, n, x, y, scale);
        }
      }
    }
    if constexpr (Epi::kAmax) raise_epilogue_amax(p.epilogue, largest);
  }
};

// Requires M, N > 0.
template <class A, class B, class Out, GemmMmaConfig C, class Epi = PlainEpilogue>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS((mma_threads<C>()), (mma_blocks_at_once<C>())) gemm_mma(const GemmMmaParams p) {
  start_in_turn();
  write_output_factor<Out>(p.gemm.epilogue);
  const auto block = MmaBlock<A, B, Out, C, Epi>::make(p);
  MmaSums<C.tiling> sums{};
  if constexpr (C.group_factors) {
    MmaSums<C.tiling> totals{};
    block.sum(sums, totals);
    block.write(totals);
  } else {
    block.sum(sums, sums);
    block.write(sums);
  }
}

}  // namespace ingot
