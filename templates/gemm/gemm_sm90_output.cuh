// The epilogue store of gemm_sm90: a warp turns a tile's accumulators into output. It applies scale_inv, bias and the
// epilogue, and stores through its own shared memory; gemm_sm90.cuh says how.
#pragma once

#include "gemm/gemm_epilogue.cuh"
#include "gemm/gemm_sm90_grouped_walk.cuh"
#include "gemm/gemm_sm90_position.cuh"
#include "gemm/gemm_sm90_producer.cuh"
#include "gemm/gemm_sm90_tiling.cuh"
#include "memory.cuh"
#include "numerics.cuh"
#include "platform.cuh"
#include "ptx/cluster.cuh"
#include "ptx/cvt.cuh"
#include "ptx/mma.cuh"
#include "ptx/opaque.cuh"
#include "ptx/shared.cuh"
#include "ptx/tma.cuh"
#include "ptx/wgmma.cuh"
#include "reduce.cuh"

namespace ingot {

#if INGOT_ON_DEVICE
template <class A, class B, class Out, GemmSm90Config C, class Epi, Sm90Tiling T = C.tiling>
struct Sm90Output {
  static constexpr u32 kWaves = sm90_waves(T);
  static constexpr u32 kN = sm90_columns(T);
  static constexpr u32 kSums = kN / 2;                                 // per thread and wave
  static constexpr u32 kColumns = kN / 128 + (kN % 128 != 0 ? 1 : 0);  // per thread, when scale_inv are fetched
  static constexpr bool kCodes = sizeof(Out) == 1;
  static constexpr u32 kChunk = sm90_chunk_columns(T, static_cast<u32>(sizeof(Out)));  // columns of a staged row
  static constexpr u32 kRowBytes = kChunk * static_cast<u32>(sizeof(Out));
  static constexpr u32 kUnits = kRowBytes / 16;
  static constexpr bool kColumnFactors = is_rowwise(C.scale_b);
  static constexpr bool kGrouped = has_extents(C.scale_b);
  static constexpr bool kFp8 = sizeof(A) == 1;       // has scale_inv
  static constexpr u32 kBiasAt = kGrouped ? 0 : kN;  // after the column scale_inv, if there may be any
  // Does the copy engine store? Waiting for it takes longer than a warp takes to read its rows back and store them
  // itself. So it does only in the schedule in which another warpgroup multiplies meanwhile and has more of the shared
  // memory.
  static constexpr bool kStoredByEngine = T.pingpong && !kCodes;
  static_assert(!sm90_has_half_chunks(T) || sizeof(Out) == 2);
  static_assert(kN % kChunk == 0);
  using Bias = typename GemmBias<A, B, Out>::Type;

  const Sm90GemmParams& p;
  const Sm90Block<C>& block;
  Sm90Position<T> position;
  u32 columns = 0;  // shared memory: this tile's column scale_inv, then its bias
  u32 other_half = 0;
  float scale = 1.0F;   // for an FP8 output
  u32 largest = 0;      // |out| of this thread so far, as bits; for 16-bit output a pair of them
  Sm90Expert expert{};  // in a grouped GEMM: whose tile is at hand

  INGOT_DEVICE Sm90Output(const Sm90GemmParams& params, const Sm90Block<C>& b, u32 warpgroup)
      : p(params), block(b), position(warpgroup) {
    if constexpr (kCodes) scale = *params.epilogue.scale;
  }

  INGOT_DEVICE u32 end_m() const { return sm90_end_m<C>(p, expert); }
  // The scale_inv of b, which each expert has.
  INGOT_DEVICE const float* factor_b() const {
    if constexpr (C.along_k) {
      return p.factor_b + expert.index * p.factor_b_group_stride;
    } else if constexpr (C.experts) {
      return p.factor_b + (kColumnFactors ? expert.index * p.n : expert.index);
    } else {
      return p.factor_b;
    }
  }

  // Each expert has its own.
  INGOT_DEVICE const Bias* bias() const {
    return static_cast<const Bias*>(p.bias) + (C.experts ? expert.index * p.n : 0);
  }

  // The scale_inv of a row, of a or, along K, of the output.
  INGOT_DEVICE float factor_a(u32 row) const {
    if constexpr (C.along_k) {
      const u32 of_expert = row - expert.index * p.m;
      return p.factor_a[expert.index * p.factor_a_group_stride + of_expert * p.factor_a_stride];
    } else if constexpr (C.experts) {
      return p.factor_a[expert.index * p.factor_a_group_stride + row * p.factor_a_stride];
    } else {
      return p.factor_a[row * p.factor_a_stride];
    }
  }

  // scale_inv and bias are loaded before the mainloop and used after it.
  struct Fetched {
    float rows[kWaves][2];
    float columns[kColumns];
    float bias[kColumns];
  };

  INGOT_DEVICE Fetched fetch(const Sm90TileIndex& first) const {
    Fetched fetched{};
    if constexpr (kFp8 && !kGrouped) {
      const float whole = kColumnFactors ? 1.0F : factor_b()[0];
      INGOT_UNROLL
      for (u32 wave = 0; wave < kWaves; ++wave) {
        INGOT_UNROLL
        for (u32 half = 0; half < 2; ++half) {
          const u32 row = min_of(first.m + position.wave_row(wave) + position.lane / 4 + half * 8, end_m() - 1);
          fetched.rows[wave][half] = factor_a(row) * whole;
        }
      }
    }
    INGOT_UNROLL
    for (u32 i = 0; i < kColumns; ++i) {
      const u32 column = min_of(first.n + i * 128 + position.thread, p.n - 1);
      if constexpr (kColumnFactors) fetched.columns[i] = factor_b()[column];
      if constexpr (C.bias) fetched.bias[i] = to_float(bias()[column]);
    }
    return fetched;
  }

  // Puts column scale_inv and bias in the warpgroup's shared memory. The previous tile had the other half of it, and
  // every warp has finished reading the tile before that: it has passed this barrier since.
  INGOT_DEVICE void share(const Fetched& fetched) {
    if constexpr (kColumnFactors || C.bias) {
      other_half ^= sm90_column_bytes(C);
      columns = block.columns + 2 * position.group * sm90_column_bytes(C) + other_half;
      INGOT_UNROLL
      for (u32 i = 0; i < kColumns; ++i) {
        const u32 column = i * 128 + position.thread;
        if (kN % 128 != 0 && column >= kN) continue;
        if constexpr (kColumnFactors) ptx::st_shared_float(columns + 4 * column, fetched.columns[i]);
        if constexpr (C.bias) ptx::st_shared_float(columns + 4 * (kBiasAt + column), fetched.bias[i]);
      }
      ptx::named_barrier_sync(3 + position.group, 128);
    }
  }

  // Applies scale_inv and bias to two neighbouring columns of a row.
  INGOT_DEVICE void finish(float& x, float& y, float factor_row, const float (&factors)[2],
                           const float (&bias)[2]) const {
    if constexpr (kFp8 && !kGrouped) {
      x = x * factor_row;
      y = y * factor_row;
    }
    if constexpr (kColumnFactors) {
      x = x * factors[0];
      y = y * factors[1];
    }
    if constexpr (C.bias) {
      x = x + bias[0];
      y = y + bias[1];
    }
  }

  // Eight columns of 16 rows go to the warp's staging rows. The 16-byte units of a row are swizzled so that neither
  // side has bank conflicts.
  INGOT_DEVICE static u32 swizzle(u32 row, u32 unit) {
    return unit ^ (kRowBytes == 64 ? row / 2 & 3 : sizeof(Out) == 4 && !kStoredByEngine ? (row & 3) * 2 : row & 7);
  }

  // The number of blocks of eight columns, an even number, whose other inputs are fetched together: as many as there
  // are registers for besides the accumulators.
  static constexpr u32 kBlocks = kChunk / 8;
  static constexpr u32 kRoom = kWaves * kSums > 128 ? 4 : 32;
  INGOT_HOST_DEVICE static constexpr u32 fetched_together() {
    u32 blocks = kBlocks;
    while (blocks > 2 && blocks * 2 * Epi::kWords > kRoom) blocks /= 2;
    return blocks;
  }
  static constexpr u32 kTogether = fetched_together();

  // Of the epilogue's other matrices, one that is read and one that is written pass through the warp's staging rows,
  // where the output will be. In whole rows of 128 bytes they take an eighth of the cache cycles that accesses by each
  // thread's own pairs would take, and the operands' tiles need those cycles too.
  static constexpr bool kFirstByRows = sizeof(Out) == 2 && Epi::kFirstBytes == 2;
  static constexpr bool kPreactivationByRows =
      sizeof(Out) == 2 && Epi::kPreactivation && !Epi::kAddsC && is_same<typename Epi::Beside, Out>;
  // Nothing else is read or written, so values may be computed for elements outside the output. That is a fraction of
  // the code, and of the time to compile it, that a test for each pair takes.
  static constexpr bool kAllByRows =
      Epi::kReadsNoOther && (kFirstByRows || Epi::kFirstBytes == 0) && (!Epi::kPreactivation || kPreactivationByRows);

  // c of f32 is fetched a chunk ahead: while that is on its way, the chunk before is staged and stored. There are
  // registers for it where a thread has at most 128 sums.
  static constexpr bool kFetchesAhead = Epi::kAddsC && Epi::kReadsNoOther && !Epi::kPreactivation && sizeof(Out) == 4 &&
                                        Epi::kFirstBytes == 4 && kTogether == kBlocks;
  using Fetch = typename Epi::Raw[kTogether][2];

  // What kTogether blocks of eight columns read besides the sums. `row`, `column`: where they begin in the output.
  INGOT_DEVICE void fetch_blocks(Fetch& raw, u32 row, u32 column, const typename Epi::Vectors& vectors) const {
    INGOT_UNROLL
    for (u32 j = 0; j < kTogether; ++j) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        const u32 m = row + position.lane / 4 + half * 8;
        const u32 n = column + j * 8 + position.lane % 4 * 2;
        if (m >= end_m() || n >= p.n) continue;
        raw[j][half] = Epi::template fetch<!kFirstByRows>(p.epilogue, vectors, m, n, n + 1 < p.n);
      }
    }
  }

  INGOT_DEVICE static u32 row_address(u32 staging, u32 r, u32 unit) {
    return staging + r * kRowBytes + swizzle(r, unit) * 16;
  }

  // The address that this lane passes to stmatrix and ldmatrix for the first two blocks of eight columns, of 16 bits
  // each. An exclusive or with 16 j makes it that of blocks j and j + 1, if j is even: staged rows are aligned.
  // (With 192 accumulators there is no register to keep it in from chunk to chunk.)
  INGOT_DEVICE u32 matrices_address(u32 staging) const {
    u32 own = position.lane;
    if constexpr (kWaves * kSums > 128) ptx::opaque(own);
    return row_address(staging, own % 16, own / 16);
  }

  // Loads 16 staged rows of the first matrix that the epilogue reads. What is outside of it is left as it is:
  // nobody stores what is computed from that.
  INGOT_DEVICE void bring_first(u32 row, u32 column, u32 staging) const {
    const u32 rows = row < end_m() ? min_of(end_m() - row, 16U) : 0;
    if (Epi::first_in_vectors(p.epilogue)) {
      const u32 n = column + position.lane % kUnits * 8;
      const u32 bytes = n < p.n ? min_of((p.n - n) * 2, 16U) : 0;
      INGOT_UNROLL_BY(1)
      for (u32 r = bytes != 0 ? position.lane / kUnits : 16; r < rows; r += 32 / kUnits) {
        ptx::cp_async<16>(row_address(staging, r, position.lane % kUnits), Epi::first_at(p.epilogue, row + r, n),
                          bytes);
      }
      ptx::cp_async_commit();
      ptx::cp_async_wait<0>();
    } else {
      const u32 n = column + position.lane * 2;
      INGOT_UNROLL_BY(kWaves * kSums > 128 ? 1 : 4)  // with 192 accumulators there are no registers for more
      for (u32 r = position.lane * 2 < kChunk && n < p.n ? 0 : 16; r < rows; ++r) {
        const auto* const at = reinterpret_cast<const u16*>(Epi::first_at(p.epilogue, row + r, n));
        const u32 second = n + 1 < p.n ? at[1] : 0;
        ptx::st_shared4(row_address(staging, r, position.lane / 4) + position.lane % 4 * 4, at[0] | second << 16);
      }
    }
    __syncwarp();
  }

  // Turns a chunk's sums into scale_inv * sum + bias, and stages those as the preactivation.
  INGOT_DEVICE void stage_preactivation(float (&d)[kSums], const float (&rows)[2], u32 chunk, u32 matrices) const {
    u32 words[4];
    INGOT_UNROLL
    for (u32 j = 0; j < kBlocks; ++j) {
      float x[4];
      finished(d, rows, chunk, j, x);
      INGOT_UNROLL
      for (u32 i = 0; i < 4; ++i) d[(chunk * kBlocks + j) * 4 + i] = x[i];
      words[j % 2 * 2] = pack(x[0], x[1]);
      words[j % 2 * 2 + 1] = pack(x[2], x[3]);
      if (j % 2 == 1) ptx::stmatrix_x4(matrices ^ (j - 1) * 16, words);
    }
  }

  // Neither scale_inv nor a bias are applied after the mainloop. As the sums are the same in each iteration of the loop
  // over chunks, the compiler would then compute the whole epilogue in front of it.
  static constexpr bool kFinishedSums = !Epi::kNothing && (!kFp8 || kGrouped) && !C.bias;

  // scale_inv * sum + bias for block j of eight columns: two neighbours of a row, and the same two eight rows below.
  INGOT_DEVICE void finished(float (&d)[kSums], const float (&rows)[2], u32 chunk, u32 j, float (&x)[4]) const {
    const u32 at = (chunk * kBlocks + j) * 4;
    const u32 local = chunk * kChunk + j * 8 + position.lane % 4 * 2;
    float factors[2] = {};
    float bias[2] = {};
    if constexpr (kColumnFactors) ptx::ld_shared_floats(columns + 4 * local, factors[0], factors[1]);
    if constexpr (C.bias) ptx::ld_shared_floats(columns + 4 * (kBiasAt + local), bias[0], bias[1]);
    INGOT_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      if constexpr (kFinishedSums) ptx::opaque(d[at + i]);
      x[i] = d[at + i];
    }
    finish(x[0], x[1], rows[0], factors, bias);
    finish(x[2], x[3], rows[1], factors, bias);
  }

  // `row`, `column`: where the chunk begins in the output. ahead: what was fetched of it.
  INGOT_DEVICE void stage_columns(float (&d)[kSums], const float (&rows)[2], u32 chunk, u32 staging,
                                  [[maybe_unused]] u32 matrices, u32 row, u32 column,
                                  const typename Epi::Vectors& vectors, [[maybe_unused]] const Fetch& ahead) {
    u32 words[4];
    [[maybe_unused]] const bool inside = row + 16 <= end_m() && column + kChunk <= p.n;
    INGOT_UNROLL
    for (u32 first = 0; first < kBlocks; first += kTogether) {
      Fetch raw = {};
      if constexpr (Epi::kWords != 0 && !(kFirstByRows && Epi::kNoOtherMatrix) && !kFetchesAhead) {
        fetch_blocks(raw, row, column + first * 8, vectors);
      }
      if constexpr (kFirstByRows) {
        INGOT_UNROLL
        for (u32 j = 0; j < kTogether; j += 2) {
          ptx::ldmatrix_x4(matrices ^ (first + j) * 16, words);
          INGOT_UNROLL
          for (u32 i = 0; i < 4; ++i) Epi::set_first(raw[j + i / 2][i % 2], words[i]);
        }
      }
      INGOT_UNROLL
      for (u32 i = 0; i < kTogether; ++i) {
        const u32 j = first + i;
        float x[4];
        if constexpr (kPreactivationByRows) {
          INGOT_UNROLL
          for (u32 k = 0; k < 4; ++k) x[k] = d[(chunk * kBlocks + j) * 4 + k];
        } else {
          finished(d, rows, chunk, j, x);
        }
        const u32 m = row + position.lane / 4;
        const u32 n = column + j * 8 + position.lane % 4 * 2;
        if constexpr (kFetchesAhead) {
          apply_epilogue(ahead[i], m, n, vectors, x);
        } else {
          apply_epilogue(raw[i], m, n, vectors, x);
        }
        if constexpr (Epi::kAmax && sizeof(Out) != 2) look_at(x, m, n, inside);
        if constexpr (kCodes) {
          INGOT_UNROLL
          for (u32 half = 0; half < 2; ++half) {
            const u32 r = position.lane / 4 + half * 8;
            ptx::st_shared2(staging + r * kRowBytes + swizzle(r, j / 2) * 16 + j % 2 * 8 + position.lane % 4 * 2,
                            encode_pair<Out>(x[2 * half] * scale, x[2 * half + 1] * scale));
          }
        } else if constexpr (sizeof(Out) == 4) {
          const u32 unit = 2 * j + position.lane % 4 / 2;
          INGOT_UNROLL
          for (u32 half = 0; half < 2; ++half) {
            const u32 r = position.lane / 4 + half * 8;
            ptx::st_shared_floats(staging + r * kRowBytes + swizzle(r, unit) * 16 + position.lane % 2 * 8, x[2 * half],
                                  x[2 * half + 1]);
          }
        } else {
          words[j % 2 * 2] = pack(x[0], x[1]);
          words[j % 2 * 2 + 1] = pack(x[2], x[3]);
          if constexpr (Epi::kAmax) {
            look_at_pair(words[j % 2 * 2], m, n, inside);
            look_at_pair(words[j % 2 * 2 + 1], m + 8, n, inside);
          }
          if (j % 2 == 1) ptx::stmatrix_x4(matrices ^ (j - 1) * 16, words);
        }
      }
    }
  }

  // x: two neighbouring elements of row m, and those of the row eight below.
  INGOT_DEVICE void apply_epilogue([[maybe_unused]] const typename Epi::Raw (&raw)[2], [[maybe_unused]] u32 m,
                                   [[maybe_unused]] u32 n, [[maybe_unused]] const typename Epi::Vectors& vectors,
                                   [[maybe_unused]] float (&x)[4]) {
    if constexpr (!Epi::kNothing) {
      INGOT_UNROLL
      for (u32 half = 0; half < 2; ++half) {
        if (!kAllByRows && (m + half * 8 >= end_m() || n >= p.n)) continue;
        Epi::template apply<!kPreactivationByRows>(p.epilogue, vectors, raw[half], m + half * 8, n, n + 1 < p.n,
                                                   x[2 * half], x[2 * half + 1]);
      }
    }
  }

  // Counts values for the amax. inside: the chunk is within the output, for the whole warp.
  INGOT_DEVICE void look_at(const float (&x)[4], u32 m, u32 n, bool inside) {
    INGOT_UNROLL
    for (u32 i = 0; i < 4; ++i) {
      const bool counts = inside || (m + i / 2 * 8 < end_m() && n + i % 2 < p.n);
      largest = max_of(largest, counts ? amax_bits(x[i]) : 0U);
    }
  }
  INGOT_DEVICE void look_at_pair(u32 pair, u32 m, u32 n, bool inside) {
    u32 counted = 0x7fff7fffU;
    if (!inside) counted = m >= end_m() || n >= p.n ? 0U : n + 1 < p.n ? counted : 0x7fffU;
    largest = max_u16x2(largest, pair & counted);
  }

  INGOT_DEVICE static u32 pack(float low, float high) {
    if constexpr (is_same<Out, bf16>) {
      return ptx::cvt_bf16x2(low, high);
    } else {
      return ptx::cvt_f16x2(low, high);
    }
  }

  // Stores 16 rows of a chunk, whose columns are all inside, from the warp's shared memory.
  INGOT_DEVICE void write_whole_rows(Out* out, i64 stride, u32 row, u32 column, u32 staging) const {
    INGOT_UNROLL
    for (u32 i = 0; i < 16; i += 32 / kUnits) {
      const u32 r = i + position.lane / kUnits;
      const u32 unit = position.lane % kUnits;
      const U32x4 vector = ptx::ld_shared16(row_address(staging, r, unit));
      if (row + r < end_m()) store_streaming(out + (row + r) * stride + column + unit * (kChunk / kUnits), vector);
    }
  }

  // The same of a chunk that may reach past the last column. vectors: rows start at multiples of 16 bytes.
  INGOT_DEVICE void write_rows(Out* out, i64 stride, bool vectors, u32 row, u32 column, u32 staging) const {
    if (vectors && column + kChunk <= p.n) return write_whole_rows(out, stride, row, column, staging);
    INGOT_UNROLL_BY(1)
    for (u32 r = 0; r < 16 && row + r < end_m(); ++r) {
      INGOT_UNROLL_BY(1)
      for (u32 c = position.lane; c < kChunk && column + c < p.n; c += 32) {
        const u32 byte = c * static_cast<u32>(sizeof(Out));
        const u32 from = staging + r * kRowBytes + swizzle(r, byte / 16) * 16 + byte % 16;
        Out* const to = out + (row + r) * stride + column + c;
        if constexpr (sizeof(Out) == 4) {
          *to = float_from_bits(ptx::ld_shared4(from));
        } else if constexpr (kCodes) {
          *to = Out{static_cast<u8>(ptx::ld_shared2(from & ~1U) >> (from % 2 * 8))};
        } else {
          *to = Out{ptx::ld_shared2(from)};
        }
      }
    }
  }

  // Prefetches what the epilogue will read of other matrices, during the mainloop.
  INGOT_DEVICE void prefetch(const Sm90TileIndex& first) const {
    constexpr u32 kAcross = kN / 32;
    INGOT_UNROLL
    for (u32 wave = 0; wave < kWaves; ++wave) {
      INGOT_UNROLL
      for (u32 i = 0; i < 16 * kAcross; i += 32) {
        const u32 row = first.m + position.wave_row(wave) + (i + position.lane) / kAcross;
        const u32 column = first.n + (i + position.lane) % kAcross * 32;
        if ((i + position.lane) / kAcross < 16 && row < end_m() && column < p.n) Epi::prefetch(p.epilogue, row, column);
      }
    }
  }

  // A kernel without an epilogue (it may record an amax) has the code of each chunk once, one after the other, which is
  // up to 3 % faster than a loop. With an epilogue, only what touches the sums is there once for each chunk, since they
  // are in registers; the rest is a loop over the chunks. Else it would take most of the time to compile the kernel.
  static constexpr bool kRolled = !Epi::kNothing;

  // The scale_inv of two rows. In a loop they are hidden from the compiler, which would otherwise multiply all sums in
  // front of it, and have no registers for the products.
  struct RowFactors {
    float of[2];
  };
  INGOT_DEVICE static RowFactors hidden_factors(const float (&rows)[2]) {
    RowFactors factors{{rows[0], rows[1]}};
    if constexpr (kRolled) ptx::wgmma_settle(factors.of);
    return factors;
  }

  // Writes a tile, a chunk of columns at a time.
  INGOT_DEVICE void write(float (&d)[kWaves][kSums], const float (&rows)[kWaves][2], const Sm90TileIndex& first) {
    constexpr u32 kAcross = kN / kChunk;
    const typename Epi::Vectors vectors = Epi::vectors(p.epilogue);
    const u32 staging = block.staging + (position.group * 4 + position.thread / 32) * sm90_staging_bytes(T);
    // The copy engine writes 16 bytes at a time, even past the last column.
    const bool by_engine = kStoredByEngine && p.whole_vectors != 0 && p.n % (16 / static_cast<u32>(sizeof(Out))) == 0;
    const auto row_of = [&](u32 chunk) { return first.m + position.wave_row(chunk / kAcross); };
    const auto column_of = [&](u32 chunk) { return first.n + chunk % kAcross * kChunk; };
    [[maybe_unused]] Fetch ahead = {};
    if constexpr (kFetchesAhead) fetch_blocks(ahead, row_of(0), column_of(0), vectors);
    INGOT_UNROLL_BY(kRolled ? 1 : kWaves * kAcross)
    for (u32 chunk = 0; chunk < kWaves * kAcross; ++chunk) {
      const u32 row = row_of(chunk);
      const u32 column = column_of(chunk);
      [[maybe_unused]] const u32 matrices = matrices_address(staging);
      if (by_engine) {
        if (position.lane == 0) ptx::bulk_wait_read();  // the chunk before
        __syncwarp();
      }
      if constexpr (kPreactivationByRows) {
        INGOT_UNROLL
        for (u32 i = 0; i < kWaves * kAcross; ++i) {
          if (i == chunk)
            stage_preactivation(d[i / kAcross], hidden_factors(rows[i / kAcross]).of, i % kAcross, matrices);
        }
        __syncwarp();
        Out* const out = static_cast<Out*>(p.epilogue.preactivation);
        const i64 stride = p.epilogue.preactivation_stride;
        write_rows(out, stride, rows_aligned<Out>(out, stride, 16), row, column, staging);
        __syncwarp();
      }
      if constexpr (kFirstByRows) {
        if (Epi::reads_first(p.epilogue)) bring_first(row, column, staging);
      }
      INGOT_UNROLL
      for (u32 i = 0; i < kWaves * kAcross; ++i) {
        if (i != chunk) continue;
        const RowFactors factors = hidden_factors(rows[i / kAcross]);
        stage_columns(d[i / kAcross], factors.of, i % kAcross, staging, matrices, row, column, vectors, ahead);
      }
      if constexpr (kFetchesAhead) {
        if (chunk + 1 < kWaves * kAcross) fetch_blocks(ahead, row_of(chunk + 1), column_of(chunk + 1), vectors);
      }
      bool whole = by_engine;
      if constexpr (C.experts) whole = whole && row + 16 <= end_m();  // the engine would write the next expert's rows
      if (whole) {
        ptx::fence_proxy_async();
        __syncwarp();
        if (position.lane == 0 && row < end_m() && column < p.n) {
          ptx::tma_store(&p.out_map, staging, static_cast<i32>(column), static_cast<i32>(row));
          ptx::bulk_commit();
        }
      } else {
        __syncwarp();
        write_rows(static_cast<Out*>(p.out), p.out_stride, p.whole_vectors != 0, row, column, staging);
        __syncwarp();
      }
    }
  }

  // After the last tile.
  INGOT_DEVICE void end() {
    if constexpr (kStoredByEngine) ptx::bulk_wait();
    if constexpr (Epi::kAmax) {
      if constexpr (sizeof(Out) == 2) largest = amax_bits_of_pairs<Out>(largest);
      raise_epilogue_amax(p.epilogue, largest);
    }
  }
};
#endif

}  // namespace ingot
