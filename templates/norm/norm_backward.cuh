// The backward pass of LayerNorm and RMSNorm: grad_input, and the sums over rows that become the gradients of gamma and
// beta (formulas: codegen/norm/norm_spec.h; order of a row's sums: norm.cuh). It reads each byte of the two inputs once
// and writes each byte of the output once.
//
// The sums over rows are in f32, in an order that depends only on the shape. With R = rows_per_chunk and G = groups of
// NormBackwardLaunch (norm_backward_launch.cuh), chunk c holds rows c R .. min(rows, (c + 1) R) - 1, and its group g
// holds every G-th of them, beginning with the g-th. Each group adds its rows in ascending order, starting from 0; then
// the groups' sums are added in ascending order; last, column_sum_finish adds the chunks' sums in ascending order.
//
// A block of 512 threads takes one chunk. Each group of threads walks its rows one at a time, with two times 8
// neighbouring columns per thread: the sums over rows stay in registers, and the next two rows are copied to shared
// memory while the current one is reduced. There are at most 132 chunks, one per SM of the H100 and H200. For large
// matrices the partial sums add a few per cent to the bytes; chunks of few rows are short, so that all SMs have work,
// and may write more sums than they read elements.
//
// A norm that multiplies by no gamma has no sums over rows. Then a block is smaller, so that even a small matrix keeps
// all SMs busy, and there are as many as run at once: each of its groups takes many rows of a large matrix, and copies
// the next one to shared memory meanwhile.
//
// Rows of more than 8192 columns do not fit the registers. Where shared memory has room for two rows of a
// multiprocessor, each thread reads its part of a row there twice, for the sums and for the output, and copies its part
// of a later row to the place of what it has read for the last time. norm_backward_wide.cuh takes others of up to 16384
// columns, where it can. All that are left are read three times from global memory: for their own sums, for the output,
// and for the sums over rows. The later reads hit the L2 if it has room for four rows of each block.
#pragma once

#include "memory.cuh"
#include "norm/norm.cuh"
#include "norm/norm_backward_launch.cuh"
#include "platform.cuh"
#include "reduce.cuh"
#include "shared.cuh"
#include "vec8.cuh"

namespace ingot {

template <class In, class Kind, NormBackwardConfig C>
struct NormBackward {
  using Launch = NormBackwardLaunch;
  static constexpr u32 kVec8s = Launch::kVec8s;
  static constexpr u32 kSums = kCentred<Kind> ? 2 : 1;  // sum of g * xhat; LayerNorm: also the sum of g
  // Is the group's next row loaded ahead? In f32, two rows do not fit the registers.
  static constexpr bool kAhead = C.affine && sizeof(In) == 2;
  // How many rows are copied ahead to slots in shared memory, if their columns can be read in vectors.
  static constexpr u32 kRowsAhead = Launch::rows_ahead(C.affine, sizeof(In));
  // For rows of more than 8192 columns: how many times 8 columns a thread sums over rows.
  static constexpr u32 kSlotVec8s = C.affine ? Launch::slot_vec8s(kCentred<Kind>, true) : 1;
  using RowSums = float[2][kMaxWarps][kSums];
  // The column sums that two or more groups pass on to each other.
  using ColumnSums = float[kSums][Launch::kColumnSums];

  const NormBackwardParams& p;
  u32 threads, lane, group;
  i64 groups, first_row, end_row;

  INGOT_DEVICE explicit NormBackward(const NormBackwardParams& params)
      : p(params),
        threads(1U << params.division.threads_log2),
        lane(threadIdx.x & (threads - 1)),
        group(threadIdx.x >> params.division.threads_log2),
        groups(i64{1} << params.division.groups_log2),
        first_row(i64{blockIdx.x} * params.division.rows_per_block),
        end_row(min_of(params.rows, first_row + params.division.rows_per_block)) {}

  INGOT_DEVICE const In* input(i64 row) const { return static_cast<const In*>(p.input) + row * p.input_stride; }
  INGOT_DEVICE const In* grad_output(i64 row) const {
    return static_cast<const In*>(p.grad_output) + row * p.grad_output_stride;
  }
  INGOT_DEVICE In* grad_input(i64 row) const { return static_cast<In*>(p.grad_input) + row * p.grad_input_stride; }
  INGOT_DEVICE const In* gamma() const { return static_cast<const In*>(p.gamma); }
  INGOT_DEVICE float* partials() const { return p.partials + blockIdx.x * (kSums * p.cols); }

  struct Statistics {
    float mean = 0.0F, rstd = 0.0F;
  };
  INGOT_DEVICE Statistics statistics(i64 row) const { return {kCentred<Kind> ? p.mean[row] : 0.0F, p.rstd[row]}; }

  // Turns x into xhat.
  INGOT_DEVICE static void normalise(float (&x)[kVec8], const Statistics& s) {
    INGOT_UNROLL
    for (float& element : x) element = normalised<Kind>(element, s.mean, s.rstd);
  }
  // 8 columns of x as xhat, and of the gradients.
  INGOT_DEVICE static void unpack_pair(const Vec8<In>& x, const Vec8<In>& grad, const Statistics& s,
                                       float (&xhat)[kVec8], float (&g)[kVec8]) {
    unpack(x, xhat);
    unpack(grad, g);
    normalise(xhat, s);
  }
  // Turns the gradients into g.
  INGOT_DEVICE static void scale(float (&grad)[kVec8], const float (&factors)[kVec8]) {
    INGOT_UNROLL
    for (u32 c = 0; c < kVec8; ++c) grad[c] = grad[c] * (C.zero_centred ? factors[c] + 1.0F : factors[c]);
  }
  // Adds the terms of 8 columns to the row's sums; terms past the end of the row are 0.
  INGOT_DEVICE static void take(const float (&g)[kVec8], const float (&xhat)[kVec8], i64 cols_left,
                                float (&sums)[kSums]) {
    float terms[kVec8];
    INGOT_UNROLL
    for (u32 c = 0; c < kVec8; ++c) terms[c] = c < cols_left ? g[c] * xhat[c] : 0.0F;
    sums[0] = sums[0] + vec8_sum(terms);
    if constexpr (kCentred<Kind>) {
      INGOT_UNROLL
      for (u32 c = 0; c < kVec8; ++c) terms[c] = c < cols_left ? g[c] : 0.0F;
      sums[1] = sums[1] + vec8_sum(terms);
    }
  }
  INGOT_DEVICE void to_means(float (&sums)[kSums]) const {
    INGOT_UNROLL
    for (float& sum : sums) sum = sum * p.inverse_cols;
  }
  INGOT_DEVICE static Vec8<In> gradient(const float (&g)[kVec8], const float (&xhat)[kVec8],
                                        const float (&means)[kSums], const Statistics& s) {
    float result[kVec8];
    INGOT_UNROLL
    for (u32 c = 0; c < kVec8; ++c) {
      const float centred = kCentred<Kind> ? g[c] - means[kSums - 1] : g[c];
      result[c] = (centred - xhat[c] * means[0]) * s.rstd;
    }
    return pack<In>(result);
  }
  // Adds one row to the sums over rows.
  INGOT_DEVICE static void take_row(const float (&grad)[kVec8], const float (&xhat)[kVec8],
                                    float (&sums)[kSums][kVec8]) {
    INGOT_UNROLL
    for (u32 c = 0; c < kVec8; ++c) {
      sums[0][c] = sums[0][c] + grad[c] * xhat[c];
      if constexpr (kCentred<Kind>) sums[1][c] = sums[1][c] + grad[c];
    }
  }

  // ---- Rows that fit the registers -------------------------------------------------------------------------------

  struct Row {
    Vec8<In> x[kVec8s] = {};
    Vec8<In> grad[kVec8s] = {};
    Statistics s{};
  };

  INGOT_DEVICE u32 column(u32 i) const { return (i * threads + lane) * kVec8; }
  INGOT_DEVICE bool inside(u32 i) const { return column(i) < static_cast<u32>(p.cols); }

  template <class Access>
  INGOT_DEVICE Row load(i64 row, const Access& access) const {
    Row loaded;
    if (row >= end_row) return loaded;
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (!inside(i)) continue;
      loaded.x[i] = access.load_once(input(row), column(i));
      loaded.grad[i] = access.load_once(grad_output(row), column(i));
    }
    loaded.s = statistics(row);
    return loaded;
  }

  // The thread's slot for 8 columns of x (input 0) or grad (1) of the group's step-th row. The block's slots for one of
  // these are neighbours.
  INGOT_DEVICE static u32 slot(u32 step, u32 i, u32 input) {
    const u32 of_row = kRowsAhead < 2 ? 0 : step % kRowsAhead * (kVec8s * 2);
    return shared_memory() + ((of_row + i * 2 + input) * blockDim.x + threadIdx.x) * 16;
  }
  // Begins to copy the thread's part of that row to its slots.
  INGOT_DEVICE void copy_ahead(u32 step) const {
    const i64 row = first_row + step * groups + group;
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (row >= end_row || !inside(i)) continue;
      copy_async<16>(slot(step, i, 0), input(row) + column(i), 16);
      copy_async<16>(slot(step, i, 1), grad_output(row) + column(i), 16);
    }
    commit_copies();
  }
  INGOT_DEVICE Row from_slots(u32 step) const {
    Row row;
    wait_for_copies<kRowsAhead - 1>();
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (!inside(i)) continue;
      row.x[i].vectors[0].bits = load_shared16(slot(step, i, 0));
      row.grad[i].vectors[0].bits = load_shared16(slot(step, i, 1));
    }
    return row;
  }

  // Access: WholeVec8s or PaddedVec8s.
  template <class Access>
  INGOT_DEVICE void kept_row(i64 row, Row& current, const Vec8<In> (&gammas)[kVec8s],
                             float (&over_rows)[kVec8s][kSums][kVec8], const Access& access,
                             float (&row_sums)[kMaxWarps][kSums]) const {
    float sums[kSums] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      float xhat[kVec8];
      float g[kVec8];
      unpack_pair(current.x[i], current.grad[i], current.s, xhat, g);
      if (row < end_row && inside(i)) {
        if constexpr (C.affine) take_row(g, xhat, over_rows[i]);
        scale_kept(g, gammas[i]);
        take(g, xhat, access.left(column(i)), sums);
      }
      forget_values(current.x[i]);
      forget_values(current.grad[i]);
    }
    group_sums(sums, threads, row_sums);
    to_means(sums);
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (row >= end_row || !inside(i)) continue;
      float xhat[kVec8];
      float g[kVec8];
      unpack_pair(current.x[i], current.grad[i], current.s, xhat, g);
      scale_kept(g, gammas[i]);
      access.store(grad_input(row), column(i), gradient(g, xhat, sums, current.s));
    }
  }

  // Of a small matrix, a group of threads takes one row (NormBackwardLaunch::one_row): it copies nothing ahead, and has
  // registers for its values.
  INGOT_DEVICE void only_row(RowSums& row_sums) const {
    const i64 row = (i64{blockIdx.x} << p.division.groups_log2) + group;
    const u32 end = row < p.rows ? static_cast<u32>(p.cols) : 0;
    const auto has = [&](u32 i) { return column(i) < end; };
    const In* x = input(row) + column(0);
    const In* grad = grad_output(row) + column(0);
    hide(x);  // or the products are computed again for each column
    hide(grad);
    Row only;
    if (end != 0) only.s = statistics(row);
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (!has(i)) continue;
      only.x[i] = load_vec8_once(x + i * threads * kVec8);
      only.grad[i] = load_vec8_once(grad + i * threads * kVec8);
    }
    float xhat[kVec8s][kVec8];
    float g[kVec8s][kVec8];
    float sums[kSums] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      unpack_pair(only.x[i], only.grad[i], only.s, xhat[i], g[i]);
      if (has(i)) take(g[i], xhat[i], kVec8, sums);
    }
    In* to = grad_input(row) + column(0);
    hide(to);
    group_sums(sums, threads, row_sums[0]);
    to_means(sums);
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (has(i)) store_vec8(to + i * threads * kVec8, gradient(g[i], xhat[i], sums, only.s));
    }
  }

  template <class Access>
  INGOT_DEVICE void kept_rows(const Access& access, RowSums& row_sums) const {
    float over_rows[kVec8s][kSums][kVec8] = {};
    Vec8<In> gammas[kVec8s] = {};
    INGOT_UNROLL
    for (u32 i = 0; i < kVec8s; ++i) {
      if (C.affine && inside(i)) gammas[i] = access.load_again(gamma(), column(i));
    }
    const u32 steps = static_cast<u32>((end_row - first_row + groups - 1) >> p.division.groups_log2);
    Row next;
    constexpr bool kFromSlots = kRowsAhead != 0 && is_same<Access, WholeVec8s>;
    if constexpr (kFromSlots) {
      INGOT_UNROLL
      for (u32 step = 0; step < kRowsAhead; ++step) copy_ahead(step);
      if (first_row + group < end_row) next.s = statistics(first_row + group);
    } else if constexpr (kAhead) {
      next = load(first_row + group, access);
    }
    INGOT_UNROLL_BY(1)
    for (u32 step = 0; step < steps; ++step) {
      const i64 row = first_row + step * groups + group;
      Row current;
      if constexpr (kFromSlots) {
        current = from_slots(step);
        current.s = next.s;
        copy_ahead(step + kRowsAhead);
        if (row + groups < end_row) next.s = statistics(row + groups);
      } else {
        current = kAhead ? next : load(row, access);
        if constexpr (kAhead) next = load(row + groups, access);
      }
      kept_row(row, current, gammas, over_rows, access, row_sums[step % 2]);
    }
    if constexpr (C.affine) {
      if (groups > 1) __syncthreads();  // the column sums reuse the slots' memory
      merge_groups<Access>(over_rows, dynamic_shared_as<ColumnSums>());
    }
  }

  INGOT_DEVICE static void scale_kept(float (&grad)[kVec8], const Vec8<In>& gamma) {
    if constexpr (C.affine) {
      float factors[kVec8];
      unpack(gamma, factors);
      scale(grad, factors);
    }
  }

  // The groups add their sums one after the other; the last group holds the chunk's sums and stores them.
  template <class Access>
  INGOT_DEVICE void merge_groups(float (&sums)[kVec8s][kSums][kVec8], ColumnSums& column_sums) const {
    INGOT_UNROLL_BY(1)
    for (u32 g = 0; g < groups; ++g) {
      if (group == g) {
        INGOT_UNROLL
        for (u32 i = 0; i < kVec8s; ++i) {
          INGOT_UNROLL
          for (u32 k = 0; k < kSums; ++k) {
            if (!inside(i)) continue;
            INGOT_UNROLL
            for (u32 c = 0; c < kVec8; ++c) {
              if (g != 0) sums[i][k][c] = column_sums[k][column(i) + c] + sums[i][k][c];
              if (g + 1 != groups) column_sums[k][column(i) + c] = sums[i][k][c];
            }
            if (g + 1 == groups) store_partials<Access>(partials() + k * p.cols, column(i), sums[i][k]);
          }
        }
      }
      __syncthreads();
    }
  }

  // `target`: the partial sums of column 0. With whole vec8s the number of columns is a multiple of 8, so every 8 sums
  // start at a multiple of 32 bytes.
  template <class Access>
  INGOT_DEVICE void store_partials(float* target, u32 col, const float (&sums)[kVec8]) const {
    const Vec8<float> vec8 = pack<float>(sums);
    if constexpr (is_same<Access, WholeVec8s>) {
      INGOT_UNROLL
      for (u32 i = 0; i < 2; ++i) *reinterpret_cast<U32x4*>(target + col + 4 * i) = vec8.vectors[i].bits;
    } else {
      store_padded(target, i64{col}, p.cols, false, vec8);
    }
  }

  // ---- Rows that fit shared memory, of more than 8192 columns ----------------------------------------------------

  // From one of the thread's slots to the next.
  static constexpr u32 kSlotStep = Launch::kThreads * 16;
  INGOT_DEVICE u32 row_slot(u32 index) const {
    return shared_memory() + index * Launch::slot_row_bytes(p.cols) + threadIdx.x * 16;
  }
  INGOT_DEVICE u32 grad_offset() const { return Launch::slot_row_bytes(p.cols) / 2; }  // from x to its gradients

  // Calls each(i) for every 8 columns of the thread. Only with sums over rows, i has to be a constant.
  template <class Each>
  INGOT_DEVICE void each_slot_vec8(const Each& each) const {
    if constexpr (C.affine) {
      INGOT_UNROLL
      for (u32 i = 0; i < kSlotVec8s; ++i) {
        if (inside(i)) each(i);
      }
    } else {
      INGOT_UNROLL_BY(2)
      for (u32 i = 0; inside(i); ++i) each(i);
    }
  }

  // A row has x and then its gradients. Each thread reads only what it copied.
  INGOT_DEVICE void copy_to_slot(u32 slot, i64 row, u32 i) const {
    copy_async<16>(slot + i * kSlotStep, input(row) + column(i), 16);
    copy_async<16>(slot + grad_offset() + i * kSlotStep, grad_output(row) + column(i), 16);
  }
  INGOT_DEVICE void read_slot(u32 slot, u32 i, const Statistics& s, float (&xhat)[kVec8], float (&g)[kVec8]) const {
    Vec8<In> x;
    Vec8<In> grad;
    x.vectors[0].bits = load_shared16(slot + i * kSlotStep);
    grad.vectors[0].bits = load_shared16(slot + grad_offset() + i * kSlotStep);
    unpack_pair(x, grad, s, xhat, g);
  }

  INGOT_DEVICE void slot_rows(RowSums& row_sums) const {
    float over_rows[kSlotVec8s][kSums][kVec8] = {};
    Vec8<In> gammas[kSlotVec8s] = {};
    if constexpr (C.affine) {
      each_slot_vec8([&](u32 i) { gammas[i] = load_vec8_again(gamma() + column(i)); });
    }
    u32 left = static_cast<u32>(end_row - first_row);
    INGOT_UNROLL_BY(1)
    for (u32 r = 0; r < p.slot_rows; ++r) {
      if (r < left) each_slot_vec8([&](u32 i) { copy_to_slot(row_slot(r), first_row + r, i); });
      commit_copies();
    }
    Statistics next = statistics(first_row);
    u32 index = 0;
    INGOT_UNROLL_BY(1)
    for (; left != 0; --left) {
      const Statistics s = next;
      if (left > 1) next = statistics(end_row - left + 1);
      const u32 slot = row_slot(index);
      if (p.slot_rows == 1) {
        wait_for_copies<0>();
      } else {
        wait_for_copies<Launch::kMaxSlotRows - 1>();
      }
      float sums[kSums] = {};
      each_slot_vec8([&](u32 i) {
        float xhat[kVec8];
        float g[kVec8];
        read_slot(slot, i, s, xhat, g);
        if constexpr (C.affine) {
          take_row(g, xhat, over_rows[i]);
          forget_values(gammas[i]);
        }
        scale_kept(g, gammas[C.affine ? i : 0]);
        take(g, xhat, kVec8, sums);
      });
      group_sums(sums, Launch::kThreads, row_sums[left % 2]);
      to_means(sums);
      each_slot_vec8([&](u32 i) {
        float xhat[kVec8];
        float g[kVec8];
        read_slot(slot, i, s, xhat, g);
        if (left > p.slot_rows) copy_to_slot(slot, end_row - left + p.slot_rows, i);
        if constexpr (C.affine) forget_values(gammas[i]);
        scale_kept(g, gammas[C.affine ? i : 0]);
        store_vec8(grad_input(end_row - left) + column(i), gradient(g, xhat, sums, s));
      });
      commit_copies();
      index = index + 1 == p.slot_rows ? 0 : index + 1;
    }
    if constexpr (C.affine) {
      each_slot_vec8([&](u32 i) {
        INGOT_UNROLL
        for (u32 k = 0; k < kSums; ++k) {
          store_partials<WholeVec8s>(partials() + k * p.cols, column(i), over_rows[i][k]);
        }
      });
    }
  }

  // ---- All other rows --------------------------------------------------------------------------------------------

  INGOT_DEVICE void streamed_rows(bool vectors, RowSums& row_sums) const {
    const i64 batch = groups == 1 ? Launch::kRowsPerBatch : end_row - first_row;
    u32 parity = 0;
    INGOT_UNROLL_BY(1)
    for (i64 first = first_row; first < end_row; first += batch) {
      const i64 end = min_of(end_row, first + batch);
      INGOT_UNROLL_BY(1)
      for (i64 step = 0; step < ceil_div(end - first, groups); ++step) {
        streamed_row(first + step * groups + group, end, vectors, row_sums[parity]);
        parity ^= 1U;
      }
      if constexpr (C.affine) streamed_columns(first, end, vectors);
    }
  }

  INGOT_DEVICE void streamed_row(i64 row, i64 end, bool vectors, float (&row_sums)[kMaxWarps][kSums]) const {
    const bool active = row < end;
    const Statistics s = active ? statistics(row) : Statistics{};
    float sums[kSums] = {};
    INGOT_UNROLL_BY(1)
    for (u32 pass = 0; pass < 2; ++pass) {
      INGOT_UNROLL_BY(1)
      for (i64 col = i64{lane} * kVec8; active && col < p.cols; col += i64{threads} * kVec8) {
        float xhat[kVec8];
        float g[kVec8];
        load_padded(input(row), col, p.cols, vectors, xhat);
        load_padded(grad_output(row), col, p.cols, vectors, g);
        normalise(xhat, s);
        if constexpr (C.affine) {
          float factors[kVec8];
          load_padded(gamma(), col, p.cols, vectors, factors);
          scale(g, factors);
        }
        if (pass == 0) {
          take(g, xhat, p.cols - col, sums);
        } else {
          store_padded(grad_input(row), col, p.cols, vectors, gradient(g, xhat, sums, s));
        }
      }
      if (pass == 1) continue;
      group_sums(sums, threads, row_sums);
      to_means(sums);
    }
  }

  // Adds the rows of a batch to the sums of the batches before it. With several groups there is only one batch.
  INGOT_DEVICE void streamed_columns(i64 first, i64 end, bool vectors) const {
    INGOT_UNROLL_BY(1)
    for (i64 col = i64{threadIdx.x} * kVec8; col < p.cols; col += i64{Launch::kThreads} * kVec8) {
      float totals[kSums][kVec8] = {};
      INGOT_UNROLL_BY(1)
      for (i64 g = 0; g < groups; ++g) {
        float sums[kSums][kVec8] = {};
        if (first != first_row) each_partial(col, [&](u32 k, u32 c, float& partial) { sums[k][c] = partial; });
        INGOT_UNROLL_BY(1)
        for (i64 row = first + g; row < end; row += groups) {
          float xhat[kVec8];
          float grad[kVec8];
          load_padded(input(row), col, p.cols, vectors, xhat);
          load_padded(grad_output(row), col, p.cols, vectors, grad);
          normalise(xhat, statistics(row));
          take_row(grad, xhat, sums);
        }
        INGOT_UNROLL
        for (u32 k = 0; k < kSums; ++k) {
          INGOT_UNROLL
          for (u32 c = 0; c < kVec8; ++c) totals[k][c] = totals[k][c] + sums[k][c];
        }
      }
      each_partial(col, [&](u32 k, u32 c, float& partial) { partial = totals[k][c]; });
    }
  }

  template <class Each>
  INGOT_DEVICE void each_partial(i64 col, Each each) const {
    INGOT_UNROLL
    for (u32 k = 0; k < kSums; ++k) {
      INGOT_UNROLL
      for (u32 c = 0; c < kVec8; ++c) {
        if (col + c < p.cols) each(k, c, partials()[k * p.cols + col + c]);
      }
    }
  }
};

template <class In, class Kind, NormBackwardConfig C>
INGOT_KERNEL void INGOT_LAUNCH_BOUNDS(NormBackwardLaunch::kThreads, !C.affine && sizeof(In) == 2 ? 2 : 1)
    norm_backward(const __grid_constant__ NormBackwardParams p) {
  using Rows = NormBackward<In, Kind, C>;
  __shared__ typename Rows::RowSums row_sums;
  start_in_turn();
  // This way comes first, and the host tests for it, because the instructions before the first load take a tenth of a
  // small matrix's time.
  if constexpr (!C.affine && sizeof(In) == 2) {
    if (p.one_row) [[likely]]
      return Rows(p).only_row(row_sums);
  }
  const bool vectors = vector_aligned<In>(p.input, p.input_stride) &&
                       vector_aligned<In>(p.grad_output, p.grad_output_stride) &&
                       vector_aligned<In>(p.grad_input, p.grad_input_stride) && (!C.affine || aligned(p.gamma, 16));
  Rows rows(p);
  // So that they stay in registers. The compiler would find them out again for each row, which costs more.
  hide(rows.threads);
  hide(rows.lane);
  hide(rows.group);
  hide(rows.first_row);
  hide(rows.end_row);
  const bool kept = p.cols <= i64{rows.threads} * Rows::kVec8s * kVec8;
  if (kept && vectors && p.cols % kVec8 == 0) {
    rows.kept_rows(WholeVec8s{}, row_sums);
  } else if (kept) {
    rows.kept_rows(PaddedVec8s{static_cast<u32>(p.cols)}, row_sums);
  } else {
    if constexpr (sizeof(In) == 2) {
      if (p.slot_rows != 0) return rows.slot_rows(row_sums);
    }
    rows.streamed_rows(vectors, row_sums);
  }
}

}  // namespace ingot
